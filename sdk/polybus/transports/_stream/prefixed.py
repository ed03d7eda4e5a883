"""A connection of frames with a length in front, and the watch over a peer that is silent.

Liveness: a bare peer does not answer our keep-alives, so silence alone is not death here; but its kernel acknowledges them.
After `Limits.ping_interval` of silence one is written. If `Limits.ping_timeout` later nothing was acknowledged for so long,
the peer's machine or the way to it is gone. Where the kernel does not tell that (it is no Linux), its own keep-alive has the
same times. A peer that is there but reads nothing is found by the write deadline.
"""

from __future__ import annotations

from typing import Final

from ...plugins import Closed, Host
from .length_prefix import KEEP_ALIVE, LengthFramer, pack_length
from .transport import StreamTransport, TransportState
from .wire import Wire

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
