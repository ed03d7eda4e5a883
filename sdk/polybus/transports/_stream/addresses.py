"""The addresses of one service, tried one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from attrs import define, field

from ...secrets import shown_url
from ..sockets import host_port, net_address
from ..tls import ClientTls

_MOST: Final = 64
"""Maximum number of remembered addresses besides the application's own."""


@define
class ServerAddresses:
    """The application's address, and further ones that its server has named.

    With TLS, each needs a certificate for the application's name, because addresses that a server sends in plain text before
    TLS could lead anywhere.
    """

    host: str
    port: int
    _others: list[tuple[str, int]] = field(factory=list)
    _at: int = 0

    @property
    def current(self) -> tuple[str, int]:
        return [(self.host, self.port), *self._others][self._at]

    def url(self, url: str) -> str:
        scheme, _, rest = url.partition("://")
        own = host_port(self.host, self.port)
        return url if not self._at else f"{scheme}://{rest.replace(own, host_port(*self.current), 1)}"

    def failed(self) -> None:
        self._at = (self._at + 1) % (1 + len(self._others))

    def learn(self, addresses: Sequence[str], leaving: bool) -> None:
        """Replace the remembered addresses; malformed ones are ignored. `leaving`: also switch to the next address."""
        current = self.current
        known = dict.fromkeys(found for text in addresses if (found := _parsed(text)) is not None)
        self._others = [address for address in known if address != (self.host, self.port)][:_MOST]
        everything = [(self.host, self.port), *self._others]
        self._at = everything.index(current) if current in everything else 0
        if leaving:
            self.failed()


@define
class NetConnector:
    """Base of network connectors: URL, TLS, and known addresses."""

    url: str = field(repr=shown_url)
    reconnects: bool = field(default=True, init=False)
    tls: ClientTls = field(factory=ClientTls, init=False, repr=False)
    _addresses: ServerAddresses | None = field(default=None, init=False)

    @property
    def addresses(self) -> ServerAddresses:
        if self._addresses is None:
            own = net_address(self.url)
            self._addresses = ServerAddresses(own.host, own.port)
        return self._addresses

    def other_servers(self, addresses: Sequence[str], leaving: bool) -> None:
        self.addresses.learn(addresses, leaving)


def _parsed(text: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None
