"""Endpoints: dialling, listening, and the adapter of a word in the URL that does both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import field, frozen

from .._secrets import shown_members
from .admission import Gate
from .framing import Framing
from .transports import Host, Transport

if TYPE_CHECKING:
    import socket
    import ssl

    from .protocols import ProtocolAdapter


@frozen(kw_only=True)
class DialOptions:
    """Options of a client's connection."""

    host: Host
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    subprotocol: str
    headers: Mapping[str, str] = field(factory=dict, repr=shown_members)
    tls: ssl.SSLContext | None = None
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports that carry its messages in a form of their own (HTTP)."""
    framing: Framing | None = None
    """The protocol's own framing, for transports over byte streams and WebSockets; None for theirs."""


class Connector(Protocol):
    """Makes connections to one place; what `connect()` takes in place of a URL.

    It may offer more: see `EndpointFeatures`.
    """

    @property
    def url(self) -> str:
        """For people and errors."""
        ...

    @property
    def reconnects(self) -> bool:
        """True if it can be asked again after a connection was lost."""
        ...

    async def connect(self, options: DialOptions) -> Transport:
        """One attempt, bounded by `Limits.connect_timeout` and `Limits.handshake_timeout`.

        Raises:
            ConnectFailed: With the address and the reason.
            Unauthorized: The server refuses who we are.
            Forbidden: The server does not let us in.
            Unsupported: The protocol has no form over this transport.
            LocalProtocolError: Headers or TLS options for a connection that has none, or a header of the handshake's own.
        """
        ...


def _unheard(address: str, why: str, about: str) -> None:
    """Tell nobody."""


@frozen(kw_only=True)
class ListenOptions:
    """Options of a listener."""

    host: Host
    gate: Gate
    protocol: str
    reads: frozenset[Literal["text", "binary"]]
    writes: Literal["text", "binary"]
    subprotocol: str
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None
    private: bool = False
    """Every peer is admitted, so none may come from another machine. Checked by listeners that learn from a connection at which
    address it came in, or where its client is."""
    adapter: ProtocolAdapter | None = None
    """The protocol, for transports that carry its messages in a form of their own (HTTP)."""
    framing: Framing | None = None
    """The protocol's own framing, as in `DialOptions`."""
    sockets: tuple[socket.socket, ...] = ()
    """Bound already, by `EndpointFeatures.bind` in another process too, and now the listener's: it binds nothing, and leaves
    what belongs to the address, such as the file of a Unix socket, to others."""
    turned_away: Callable[[str, str, str], None] = _unheard
    """``turned_away(address, why, about)`` is told of a client that breaks a rule of this listener, such as `origins`: for the
    log, in which those with the same word `about` are counted together."""


class Listening(Protocol):
    """A bound listener."""

    @property
    def url(self) -> str:
        """The real address, without the protocol: ``tcp://127.0.0.1:40123``."""
        ...

    async def aclose(self) -> None:
        """Stop accepting and release the address; connections stay."""


class TransportAdapter(Protocol):
    """One transport of the URL: how to dial and how to listen.

    It may offer more: see `EndpointFeatures`.
    """

    def connector(self, url: str) -> Connector:
        """For an address without the protocol, for example ``ws://host/path``.

        Raises:
            ValueError: The address lacks something, or has what means nothing here; the text says what.
        """
        ...

    def is_private(self, url: str) -> bool:
        """True if only this machine can reach that address when it is bound (loopback, Unix socket, memory)."""
        ...

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and accept.

        Raises:
            OSError: The address is taken or not ours.
            ValueError: The address lacks something, or something in `origins` or `hosts` is none.
            LocalProtocolError: `tls` is given without need, or is missing.
            Unsupported: The protocol has no form over this transport.
        """
        ...
