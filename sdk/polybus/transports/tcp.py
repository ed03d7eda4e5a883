"""TCP, TLS and Unix sockets: frames with a length in front, or in the form that their protocol brings (`Framing`).

Liveness: a bare peer does not answer our keep-alives, so silence alone is not death here; but its kernel acknowledges them.
After `Limits.ping_interval` of silence one is written. If `Limits.ping_timeout` later nothing was acknowledged for so long,
the peer's machine or the way to it is gone. Where the kernel does not tell that (it is no Linux), its own keep-alive has the
same times. A peer that is there but reads nothing is found by the write deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from attrs import define, field

from ..errors import BusError, ConnectFailed, LocalProtocolError, Unsupported
from ..plugins import Admission, Closed, Connector, DialOptions, Handshake, Host, Listening, ListenOptions, Transport
from ._stream.addresses import ServerAddresses
from ._stream.close_codes import code_for, text_of
from ._stream.dial import dial_tcp, dial_unix, dial_with_preface
from ._stream.framed import FramedTransport, PendingFramedConnection
from ._stream.length_prefix import KEEP_ALIVE, LengthFramer, closing_frame, pack_length
from ._stream.listen import PendingConnection, StreamListener
from ._stream.sockets import bind_tcp, bind_unix, load_names
from ._stream.tls import ClientTls, check_server_tls
from ._stream.transport import StreamTransport, TransportState
from ._stream.urls import bare_address, unix_path
from ._stream.wire import Wire

if TYPE_CHECKING:
    import socket
    import ssl

_LARGE: Final = 64 * 1024


class TcpTransport(StreamTransport[LengthFramer]):
    """One connection of length-prefixed frames."""

    __slots__ = ("_asked_at", "_kept_alive_at")

    admitted: Final = False
    """The kernel has accepted it; whether the server does, shows only when it does not."""

    def __init__(self, name: str, wire: Wire, host: Host) -> None:
        super().__init__(name, wire, host, LengthFramer(host.limits.message))
        self._kept_alive_at = self._heard_at
        # Since when it has to be seen that a keep-alive has arrived.
        self._asked_at: float | None = None

    def send(self, frame: bytes) -> None:
        size = len(frame)
        if size > self.max_frame:
            self._check_size(size)
        if self._state is not TransportState.OPEN:
            return
        if size < _LARGE:
            self._wire.write(pack_length(size) + frame)
        else:
            self._wire.write(pack_length(size))
            self._wire.write(frame)

    def framed(self, frame: bytes) -> bytes:
        """The bytes of a frame, the same on every connection. May raise `TooLarge`."""
        if len(frame) > self.max_frame:
            self._check_size(len(frame))
        return pack_length(len(frame)) + frame

    def data_received(self, data: bytes) -> None:
        self._heard = True
        framer = self._framer
        frames = framer.feed(data)
        if frames:
            self._deliver(frames)
        if framer.ended is not None:
            self._peer_left(framer.ended)
        elif framer.broken is not None:
            if self._state is TransportState.OPEN:  # else it has been told, and may go on while it is given to read that
                self._fail(framer.broken.code, framer.broken.reason)
        elif framer.empty_frames > self._host.limits.empty_frames:
            self._check_flood()

    def _peer_left(self, why: Closed) -> None:
        if self._state is TransportState.OPEN:
            self._leave(why)
            self._wire.hang_up()

    def _check_silence(self, now: float) -> None:
        limits = self._host.limits
        if self._asked_at is not None and now - self._asked_at >= limits.ping_timeout:
            signs = self._wire.signs() if self._heard_at <= self._asked_at else None
            if signs is None or not signs.unanswered:
                self._asked_at = None
            elif signs.silence >= limits.ping_timeout:
                self.abort(Closed(1006, f"no sign of life for {signs.silence:.0f} s: nothing that was sent was acknowledged"))
                return
        if now - max(self._heard_at, self._kept_alive_at) >= limits.ping_interval:
            self._kept_alive_at = now
            if self._asked_at is None:
                self._asked_at = now
            self._wire.write(KEEP_ALIVE)


class PendingTcpConnection(PendingConnection):
    """A connection on tcp, tls or unix before it is let in: there is nothing to read."""

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


@define
class TcpConnector:
    """Dials ``tcp://host:port``, ``tls://host:port`` or ``unix:///path``."""

    url: str
    reconnects: bool = field(default=True, init=False)
    _tls: ClientTls = field(factory=ClientTls, init=False)
    _addresses: ServerAddresses | None = field(default=None, init=False)

    @property
    def addresses(self) -> ServerAddresses:
        """Addresses of the service, as far as they are known."""
        if self._addresses is None:
            own = bare_address(self.url)
            self._addresses = ServerAddresses(own.host, own.port)
        return self._addresses

    def other_servers(self, addresses: Sequence[str], leaving: bool) -> None:
        """Try these addresses too, when one does not answer."""
        if not self.url.startswith("unix:"):
            self.addresses.learn(addresses, leaving)

    async def connect(self, options: DialOptions) -> Transport:
        """One attempt."""
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
            tls = self._tls.context(name, options.tls)
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
    """A connection of frames with a length in front."""
    transport = TcpTransport(name, wire, options.host)
    wire.attach(transport)
    return transport


def _framed(name: str, wire: Wire, options: DialOptions, said: bytes = b"") -> FramedTransport:
    """A connection with the framing of its protocol; `said` has come in already."""
    assert options.framing is not None
    transport = FramedTransport(name, wire, options.host, options.framing)
    wire.attach(transport)
    if said:
        transport.data_received(said)
    return transport


def _pending(options: ListenOptions) -> type[PendingConnection]:
    """The kind of connections that come in."""
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
        """Import what looking up a name needs; all else is here."""
        load_names()

    def connector(self, url: str) -> Connector:
        """For an address without the protocol."""
        bare_address(url)
        return TcpConnector(url)

    def is_private(self, url: str) -> bool:
        """True if only this machine can reach that address."""
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
        """For an address without the protocol."""
        unix_path(url)
        return TcpConnector(url)

    def is_private(self, url: str) -> bool:
        """Always: a Unix socket never leaves the machine."""
        return True

    async def bind(self, url: str) -> list[socket.socket]:
        """Listening socket, for `ListenOptions.sockets`; its file is removed by who has called this."""
        return [bind_unix(unix_path(url))]

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Bind and accept. The file of a dead server is replaced, and removed again by `Listening.aclose`."""
        return StreamListener(url, options, list(options.sockets) or await self.bind(url), None, _pending(options))
