"""The WebSocket transport after the handshake."""

from __future__ import annotations

from typing import Final

from attrs import define, field

from ...plugins import Closed, DialOptions, FrameCutter, Framing, FramingFeatures, ListenOptions
from ...plugins.connections import TransportState
from .._stream.transport import StreamTransport, how_it_broke
from .._stream.wire import GATHERED, Wire
from ..sockets import PingProgress
from .framing import WebSocketFramer

_LARGE: Final = 64 * 1024


@define(eq=False, repr=False, weakref_slot=False)
class WebSocketTransport(StreamTransport[WebSocketFramer]):
    """Transport over a WebSocket connection, one message per frame.

    After `Limits.ping_interval` of silence the transport sends a ping. If no answer arrives within `Limits.ping_timeout`, it
    aborts the connection, even if the ping could not be sent because the peer doesn't read. The timeout restarts while the
    kernel reports progress of the data ahead of the ping. While the rest of a large frame arrives slowly, the sender's own ping
    is stuck behind that frame. An unsolicited pong about once a second then keeps the sender from timing out.
    """

    # The unanswered ping.
    _pinged_at: float | None = field(default=None, init=False)
    _ping: PingProgress | None = field(default=None, init=False)

    def send(self, frame: bytes) -> None:
        if len(frame) > self.max_frame:
            self._check_size(len(frame))
        if self._state is not TransportState.OPEN:
            return
        header, payload = self._framer.encode(frame)
        if len(payload) < _LARGE:
            self._wire.write(header + payload)
        else:
            self._wire.write(header)
            self._wire.write(payload)

    def framed(self, frame: bytes) -> bytes | None:
        """Return a frame's bytes, or `None` for a client, because masking makes each client frame different."""
        if len(frame) > self.max_frame:
            self._check_size(len(frame))
        return b"".join(self._framer.encode(frame)) if self._framer.server else None

    def data_received(self, data: bytes) -> None:
        self._heard = True
        framer = self._framer
        frames = framer.feed(data)
        if framer.out:
            # Drop pongs for a peer that doesn't read: only the last is required (RFC 6455, section 5.5.3).
            if self._paused and framer.ended is None and framer.broken is None:
                framer.out = None
            self._write_out()
        if frames:
            self._deliver(frames)
        over = framer.ended or framer.broken
        if over is not None:
            self._peer_left(over)
        elif framer.empty_frames > self._host.limits.empty_frames:
            self._check_flood()

    def _write_out(self) -> None:
        out, self._framer.out = self._framer.out, None
        for data in out or ():
            self._wire.write(data)

    def _peer_left(self, why: Closed) -> None:
        """Close TCP (RFC 6455, section 7.1.1) after the peer's closing frame or protocol error. Our closing frame has already
        been written.
        """
        if self._state is TransportState.OPEN:
            self._leave(why)
        self._wire.hang_up()

    def _fail(self, code: int, reason: str) -> None:
        self._framer.fail(code, reason)
        self._write_out()
        self._peer_left(Closed(code, reason))

    def _check_frame(self, now: float) -> None:
        super()._check_frame(now)
        pace = self._pace
        slow = pace is not None and now - pace.began >= self._host.limits.ping_timeout / 2
        if slow and self._state is TransportState.OPEN and not self._wire.backlog():
            self._wire.write(self._framer.sign_of_life(asks=False))

    def _check_silence(self, now: float) -> None:
        limits = self._host.limits
        if self._pinged_at is not None:
            if self._heard_at >= self._pinged_at:
                self._pinged_at = self._ping = None
            elif self._ping is not None and self._ping.comes_near(self._wire.signs):
                self._pinged_at = now
            elif now - self._pinged_at >= limits.ping_timeout:
                self.abort(Closed(1006, f"no answer to ping within {limits.ping_timeout:g} s"))
        elif now - self._heard_at >= limits.ping_interval:
            self._pinged_at = now
            self._wire.write(self._framer.sign_of_life(asks=True))
            self._ping = PingProgress(self._wire.signs(), self._wire.backlog())


@define(eq=False, repr=False, weakref_slot=False)
class FramedWebSocketTransport(WebSocketTransport):
    """A WebSocket transport that treats messages as chunks of a stream with the protocol's own framing."""

    _framing: Framing
    _cutter: FrameCutter = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if FramingFeatures.of(self._framing).gathers:
            self._wire.burst = GATHERED
        self._cutter = self._framing.cutter(self._host.limits, self.name)

    def send(self, frame: bytes) -> None:
        self._check_size(len(frame))
        super().send(self._framing.pack(frame))

    def framed(self, frame: bytes) -> bytes | None:
        self._check_size(len(frame))
        return super().framed(self._framing.pack(frame))

    def _deliver(self, frames: list[bytes]) -> None:
        cutter = self._cutter
        if cut := [frame for chunk in frames for frame in cutter.feed(chunk)]:
            super()._deliver(cut)
        broken = how_it_broke(cutter)
        if broken is not None and self._state is TransportState.OPEN:
            self._fail(broken.code, broken.reason)


def make_transport(
    name: str, wire: Wire, options: DialOptions | ListenOptions, *, server: bool, limit: int | None = None
) -> WebSocketTransport:
    host, framing = options.host, options.framing
    if limit is None:
        limit = host.limits.message if framing is None else host.limits.payload
    framer = WebSocketFramer(server=server, limit=limit, reads=options.reads, writes=options.writes)
    if framing is None:
        return WebSocketTransport(name, wire, host, framer)
    return FramedWebSocketTransport(name, wire, host, framer, framing)
