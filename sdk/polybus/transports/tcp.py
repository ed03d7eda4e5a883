"""TCP, TLS and Unix sockets, with length-prefixed frames or the protocol's own framing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from attrs import field, frozen

from ..errors import BusError, LocalProtocolError, Unsupported
from ..plugins import (
    Admission,
    Closed,
    Connector,
    DialOptions,
    FrameCutter,
    Framing,
    FramingFeatures,
    Handshake,
    Host,
    Listening,
    ListenOptions,
    Transport,
)
from ..plugins.close_codes import code_for, text_of
from ..plugins.connections import TransportState
from ..secrets import shown_url
from ._stream.dial import NetConnector, dial_tcp, dial_unix, dial_with_preface
from ._stream.framing import CLOSING, KEEP_ALIVE, Framer, LengthFramer, closing_frame, pack_length
from ._stream.listen import PendingConnection, StreamListener
from ._stream.transport import StreamTransport, how_it_broke
from ._stream.wire import GATHERED, Wire
from .sockets import bare_address, bind_tcp, bind_unix, load_names, unix_path
from .tls import check_server_tls

if TYPE_CHECKING:
    import socket
    import ssl

_OPEN: Final = TransportState.OPEN  # an attribute of an enum class costs three times as much
_LARGE: Final = 64 * 1024


class TcpTransport(StreamTransport[Framer]):
    """Transport for length-prefixed frames.

    Third-party peers don't answer keep-alives, but their kernel acknowledges them, so silence is not a failure. After
    `Limits.ping_interval` of silence polybus sends a keep-alive. If the peer's kernel acknowledges nothing within
    `Limits.ping_timeout`, the connection is considered lost. Systems other than Linux don't report acknowledgements. On these
    systems the kernel's own keep-alive uses the same intervals. The write timeout detects a peer that doesn't read.
    """

    __slots__ = ("_asked_at", "_kept_alive_at")

    admitted: ClassVar[bool] = False
    """False because only the kernel has accepted the connection, and the server may still send a rejection."""

    def __init__(self, name: str, wire: Wire, host: Host, framer: Framer | None = None) -> None:
        super().__init__(name, wire, host, framer or LengthFramer(host.limits.message))
        self._kept_alive_at = self._heard_at
        # Time of the first keep-alive that is not acknowledged.
        self._asked_at: float | None = None

    def send(self, frame: bytes) -> None:
        size = len(frame)
        if size > self.max_frame:
            self._check_size(size)
        if self._state is not _OPEN:
            return
        if size < _LARGE:
            self._wire.write(pack_length(size) + frame)
        else:
            self._wire.write(pack_length(size))
            self._wire.write(frame)

    def framed(self, frame: bytes) -> bytes:
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
            if self._state is TransportState.OPEN:  # while closing, the peer may send until it reads the reason
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
                self.abort(Closed(1006, f"no sign of life for {signs.silence:.0f} s: no data was acknowledged"))
                return
        if now - max(self._heard_at, self._kept_alive_at) >= limits.ping_interval:
            self._kept_alive_at = now
            if self._asked_at is None:
                self._asked_at = now
            self._wire.write(KEEP_ALIVE)


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

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.unread.startswith(pack_length(CLOSING)):  # the client has left without sending anything
            self.unread.clear()
            self.eof_received()

    def no(self, error: BusError) -> bytes:
        if self.listener.options.framing is not None:
            return b""  # the protocol cannot reject a client before its handshake
        return closing_frame(code_for(error), text_of(error))

    def let_in(self, admission: Admission) -> TcpTransport:
        return _transport(self.listener.url, self.wire, self.listener.options)


def _name(url: str) -> str:
    return url.partition(":")[0]


class TcpConnector(NetConnector):
    async def dial(self, tls: ssl.SSLContext | None, options: DialOptions) -> Transport:
        _check_headers(self.url, options)
        host, port = self.addresses.current
        url, own = self.addresses.url(self.url), self.addresses.host
        if options.framing is None or tls is None:
            return _attached(self.url, await dial_tcp(url, host, port, tls, options.host, own), options)
        wire, said = await dial_with_preface(url, host, port, tls, options.host, own, options.framing.plain_preface)
        return _attached(self.url, wire, options, said)


@frozen
class UnixConnector:
    url: str = field(repr=shown_url)
    reconnects: bool = field(default=True, init=False)

    async def connect(self, options: DialOptions) -> Transport:
        _check_headers(self.url, options)
        _check_no_tls(options)
        return _attached(self.url, await dial_unix(self.url, unix_path(self.url), options.host), options)


def _check_no_tls(options: DialOptions | ListenOptions) -> None:
    if options.tls is not None:
        raise LocalProtocolError("unix:// never leaves the machine and cannot use tls=", protocol="unix")


def _check_headers(url: str, options: DialOptions) -> None:
    if options.headers:
        given, name = ", ".join(options.headers), _name(url)
        text = f"{name} carries no headers ({given}): use ws:// or wss://, or let the protocol identify you"
        raise LocalProtocolError(text, protocol=name)


def _transport(url: str, wire: Wire, options: DialOptions | ListenOptions) -> TcpTransport:
    name, host, framing = _name(url), options.host, options.framing
    return TcpTransport(name, wire, host) if framing is None else FramedTransport(name, wire, host, framing)


def _attached(url: str, wire: Wire, options: DialOptions, said: bytes = b"") -> TcpTransport:
    """Create a transport. Its input starts with the bytes in `said`."""
    transport = _transport(url, wire, options)
    wire.attach(transport)
    if said:
        transport.data_received(said)
    return transport


class ProtocolFramer(Framer):
    __slots__ = ("_cutter",)

    ends_with_goodbye: ClassVar[bool] = True

    def __init__(self, cutter: FrameCutter, limit: int) -> None:
        super().__init__(limit)
        self._cutter = cutter

    @property
    def partial(self) -> str:
        return self._cutter.partial

    @property
    def arrived(self) -> int:
        return self._cutter.arrived

    def feed(self, data: bytes) -> list[bytes]:
        if self.broken is not None:
            return []
        cutter = self._cutter
        frames = list(cutter.feed(data))
        if cutter.broken is not None:
            self.broken: Closed | None = how_it_broke(cutter)
        return frames

    def goodbye(self, code: int, reason: str) -> list[bytes]:
        return []


class FramedTransport(TcpTransport):
    __slots__ = ("_pack",)

    admitted: ClassVar[bool] = True
    """The server accepts the client in the protocol's own handshake."""

    def __init__(self, name: str, wire: Wire, host: Host, framing: Framing) -> None:
        super().__init__(name, wire, host, ProtocolFramer(framing.cutter(host.limits, name), host.limits.message))
        if FramingFeatures.of(framing).gathers:
            wire.burst = GATHERED
        self._pack = framing.pack

    def send(self, frame: bytes) -> None:
        if len(frame) > self.max_frame:
            self._check_size(len(frame))
        if self._state is _OPEN:
            self._wire.write(self._pack(frame))

    def framed(self, frame: bytes) -> bytes:
        self._check_size(len(frame))
        return self._pack(frame)

    def _check_silence(self, now: float) -> None:
        pass


def _check_preface(options: ListenOptions) -> None:
    if options.framing is not None and options.tls is not None and options.framing.plain_preface(b"") is not None:
        raise Unsupported(f"{options.protocol} over tls:// starts in plain text: polybus can only connect to such servers")


class Tcp:
    """``tcp://host:port``"""

    name = "tcp"

    @staticmethod
    def load(serves: bool) -> None:
        load_names()

    def connector(self, url: str) -> Connector:
        bare_address(url)
        return TcpConnector(url)

    def is_private(self, url: str) -> bool:
        return bare_address(url).private

    async def bind(self, url: str) -> list[socket.socket]:
        address = bare_address(url)
        return await bind_tcp(address.host, address.port)

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        address = bare_address(url)
        check_server_tls(self.name, options.tls)
        _check_preface(options)
        sockets = list(options.sockets) or await self.bind(url)
        real = address.with_port(sockets[0].getsockname()[1])
        return StreamListener(real, options, sockets, options.tls, PendingTcpConnection)


class Tls(Tcp):
    """``tls://host:port``"""

    name = "tls"


class Unix:
    """``unix:///path``"""

    name = "unix"

    def connector(self, url: str) -> Connector:
        unix_path(url)
        return UnixConnector(url)

    def is_private(self, url: str) -> bool:
        return True

    async def bind(self, url: str) -> list[socket.socket]:
        """Bind the listening socket. The caller removes the socket file."""
        return [bind_unix(unix_path(url))]

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Listen on the path, replacing a socket file without a server. `aclose` removes the file."""
        _check_no_tls(options)
        return StreamListener(url, options, list(options.sockets) or await self.bind(url), None, PendingTcpConnection)
