"""TCP, TLS and Unix sockets. Frames have a length prefix, or use the protocol's own framing (`Framing`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import BusError, ConnectFailed, LocalProtocolError, Unsupported
from ..plugins import Admission, Connector, DialOptions, Handshake, Listening, ListenOptions, Transport
from ..plugins.close_codes import code_for, text_of
from ._stream.addresses import NetConnector
from ._stream.dial import dial_tcp, dial_unix, dial_with_preface
from ._stream.framed import FramedTransport, PendingFramedConnection
from ._stream.listen import PendingConnection, StreamListener
from ._stream.prefixed import TcpTransport, closing_frame
from ._stream.wire import Wire
from .sockets import bare_address, bind_tcp, bind_unix, load_names, unix_path
from .tls import check_server_tls

if TYPE_CHECKING:
    import socket
    import ssl


class PendingTcpConnection(PendingConnection):
    __slots__ = ()

    def begin(self) -> None:
        listener = self.listener
        options = listener.options
        self.ask(
            Handshake(
                protocol=options.protocol,
                transport=_name(listener.url),
                url=listener.url,
                address=self.wire.address,
                tls_peer=self.wire.tls_peer(),
            )
        )

    def no(self, error: BusError) -> bytes:
        return closing_frame(code_for(error), text_of(error))

    def let_in(self, admission: Admission) -> TcpTransport:
        return TcpTransport(_name(self.listener.url), self.wire, self.listener.options.host)


def _name(url: str) -> str:
    return url.partition(":")[0]


class TcpConnector(NetConnector):
    """Connects to ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``."""

    def other_servers(self, addresses: Sequence[str], leaving: bool) -> None:
        if not self.url.startswith("unix:"):
            super().other_servers(addresses, leaving)

    async def connect(self, options: DialOptions) -> Transport:
        name = _name(self.url)
        if options.headers:
            given = ", ".join(options.headers)
            text = f"{name} carries no headers ({given}): use ws:// or wss://, or let the protocol identify you"
            raise LocalProtocolError(text, protocol=name)
        if name == "unix":
            if options.tls is not None:
                raise LocalProtocolError("tls= given for unix://, which never leaves the machine", protocol="unix")
            wire = await dial_unix(self.url, unix_path(self.url), options.host)
        else:
            tls = self.tls.context(name, options.tls)
            try:
                return await self._dial(name, tls, options)
            except ConnectFailed:
                self.addresses.failed()
                raise
        return _prefixed(name, wire, options) if options.framing is None else _framed(name, wire, options)

    async def _dial(self, name: str, tls: ssl.SSLContext | None, options: DialOptions) -> Transport:
        host, port = self.addresses.current
        url = self.addresses.url(self.url)
        own = self.addresses.host
        if options.framing is None:
            return _prefixed(name, await dial_tcp(url, host, port, tls, options.host, own), options)
        if tls is None:
            return _framed(name, await dial_tcp(url, host, port, None, options.host, own), options)
        wire, said = await dial_with_preface(url, host, port, tls, options.host, own, options.framing.plain_preface)
        return _framed(name, wire, options, said)


def _prefixed(name: str, wire: Wire, options: DialOptions) -> TcpTransport:
    transport = TcpTransport(name, wire, options.host)
    wire.attach(transport)
    return transport


def _framed(name: str, wire: Wire, options: DialOptions, said: bytes = b"") -> FramedTransport:
    """Create a connection with the protocol's framing. `said` is what has already been received."""
    assert options.framing is not None
    transport = FramedTransport(name, wire, options.host, options.framing)
    wire.attach(transport)
    if said:
        transport.data_received(said)
    return transport


def _pending(options: ListenOptions) -> type[PendingConnection]:
    if options.framing is None:
        return PendingTcpConnection
    if options.tls is not None and options.framing.plain_preface(b"") is not None:
        raise Unsupported(f"{options.protocol} over tls:// begins in plain: polybus connects to such servers, and is none")
    return PendingFramedConnection


class Tcp:
    """``tcp://host:port``"""

    name = "tcp"

    @staticmethod
    def load(serves: bool) -> None:
        """Import the modules that look up host names."""
        load_names()

    def connector(self, url: str) -> Connector:
        """A connector for an address without the protocol."""
        bare_address(url)
        return TcpConnector(url)

    def is_private(self, url: str) -> bool:
        """True if only this machine can reach the address."""
        return bare_address(url).private

    async def bind(self, url: str) -> list[socket.socket]:
        """Listening sockets, for `ListenOptions.sockets`."""
        address = bare_address(url)
        return await bind_tcp(address.host, address.port)

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and accept."""
        address = bare_address(url)
        check_server_tls(self.name, options.tls)
        pending = _pending(options)
        sockets = list(options.sockets) or await self.bind(url)
        real = address.with_port(sockets[0].getsockname()[1])
        return StreamListener(real, options, sockets, options.tls, pending)


class Tls(Tcp):
    """``tls://host:port``"""

    name = "tls"


class Unix:
    """``unix:///path``"""

    name = "unix"

    def connector(self, url: str) -> Connector:
        """A connector for an address without the protocol."""
        unix_path(url)
        return TcpConnector(url)

    def is_private(self, url: str) -> bool:
        """Always True: a Unix socket is local."""
        return True

    async def bind(self, url: str) -> list[socket.socket]:
        """Create the listening socket for `ListenOptions.sockets`. The caller removes its file."""
        return [bind_unix(unix_path(url))]

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and accept. The socket file of a dead server is replaced, and `Listening.aclose` removes the file."""
        return StreamListener(url, options, list(options.sockets) or await self.bind(url), None, _pending(options))
