"""The addresses of one service, of which one is tried at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from attrs import define, field

from ...secrets import shown_url
from ..sockets import host_port, net_address
from ..tls import ClientTls

_MOST: Final = 64
"""Addresses besides the application's own that are remembered."""


@define
class ServerAddresses:
    """The address that the application has given, and those that a server there has named.

    With TLS, every one of them has to have a certificate for the name that the application has given: what a server names in
    plain, before TLS, could else lead anywhere.
    """

    host: str
    port: int
    _others: list[tuple[str, int]] = field(factory=list)
    _at: int = 0

    @property
    def current(self) -> tuple[str, int]:
        """The address whose turn it is."""
        return [(self.host, self.port), *self._others][self._at]

    def url(self, url: str) -> str:
        """A URL with the address whose turn it is, for people."""
        scheme, _, rest = url.partition("://")
        own = host_port(self.host, self.port)
        return url if not self._at else f"{scheme}://{rest.replace(own, host_port(*self.current), 1)}"

    def failed(self) -> None:
        """Go on to the next address."""
        self._at = (self._at + 1) % (1 + len(self._others))

    def learn(self, addresses: Sequence[str], leaving: bool) -> None:
        """Remember these and no others; what is none is left out. With `leaving` the current one has had its turn."""
        current = self.current
        known = dict.fromkeys(found for text in addresses if (found := _parsed(text)) is not None)
        self._others = [address for address in known if address != (self.host, self.port)][:_MOST]
        everything = [(self.host, self.port), *self._others]
        self._at = everything.index(current) if current in everything else 0
        if leaving:
            self.failed()


@define
class NetConnector:
    """The half that connectors to services on a network share: the URL, TLS, and the addresses as far as they are known."""

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
        """Try these addresses too, when one does not answer."""
        self.addresses.learn(addresses, leaving)


def _parsed(text: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None
