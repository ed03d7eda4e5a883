"""A connection within the process: two ends that hand frames to each other.

A frame is handed over in the next turn of the event loop, with all others of this turn, so `send` never runs the other side's
code. Both directions have water marks, as a socket has.
"""

from __future__ import annotations

from typing import Final

from ..errors import TooLarge
from ..plugins import Closed, Host, Receiver
from ._stream.close_codes import closed_by_peer

HIGH_BYTES: Final = 64 * 1024
HIGH_FRAMES: Final = 256
"""Frames or bytes that may wait for the other side before `pause_writing`; `resume_writing` follows when all is taken."""


class MemoryTransport:
    """One end of an in-process connection."""

    __slots__ = (
        "_bytes", "_deaf", "_host", "_inbox", "_last", "_other", "_over", "_paused", "_receiver", "_scheduled", "address",
        "max_frame",
    )  # fmt: skip

    name = "memory"
    hops = 0

    def __init__(self, host: Host, address: str) -> None:
        self.address: str = address
        self.max_frame: int = host.limits.message
        self._host = host
        self._other: MemoryTransport | None = None
        self._receiver: Receiver | None = None
        # What the other end has sent, and its size.
        self._inbox: list[bytes] = []
        self._bytes = 0
        self._scheduled = False
        # We have asked our own side to pause, because the other end's inbox is full.
        self._paused = False
        # Our own side reads nothing for now.
        self._deaf = False
        # Nothing more is sent or taken; `_last` is told when the inbox is empty.
        self._over = False
        self._last: Closed | None = None

    def join(self, other: MemoryTransport) -> None:
        """Make the two ends of one connection. Called once, on either."""
        self._other, other._other = other, self

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._schedule()

    def send(self, frame: bytes) -> None:
        size = len(frame)
        if size > self.max_frame:
            raise TooLarge(f"a frame of {size} bytes, the limit is {self.max_frame}: raise Limits(message=...) on both sides")
        other = self._other
        if self._over or other is None or other._over:
            return
        if size > other.max_frame:
            # Its limit is lower than ours: it ends the connection, as a socket would.
            why = Closed(1009, f"a frame of {size} bytes, the limit is {other.max_frame}")
            other._end(why)
            self._end(why)
            return
        other._inbox.append(frame)
        other._bytes += size
        other._schedule()
        if not self._paused and (other._bytes > HIGH_BYTES or len(other._inbox) > HIGH_FRAMES):
            self._paused = True
            if self._receiver is not None:
                self._receiver.pause_writing()

    def write_backlog(self) -> int:
        return 0 if self._other is None else self._other._bytes

    def pause_reading(self) -> None:
        """Take nothing for now: the other end is asked to pause when it has sent enough."""
        self._deaf = True

    def resume_reading(self) -> None:
        if self._deaf:
            self._deaf = False
            self._schedule()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End in order: what was sent still arrives, then the other end is told."""
        if self._over:
            return
        if self._other is not None:
            self._other._end(closed_by_peer(code, reason))
        self._drop()
        self._end(Closed(code, reason))

    def abort(self, why: Closed) -> None:
        """Cut: what has not arrived is lost."""
        if self._over:
            return
        if self._other is not None and not self._other._over:
            self._other._drop()
            self._other._end(Closed(1006, "the peer cut the connection"))
        self._drop()
        self._end(why)

    def tick(self, now: float) -> None:
        """Nothing can go silent here."""

    def _drop(self) -> None:
        self._inbox = []
        self._bytes = 0

    def _end(self, why: Closed) -> None:
        if not self._over:
            self._over = True
            self._deaf = False
            self._last = why
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._receiver is not None:
            self._scheduled = True
            self._host.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        receiver, frames = self._receiver, self._inbox
        assert receiver is not None
        if self._deaf and not self._over:
            return
        if frames:
            self._drop()
            receiver.frames_received(frames)
        # What they made our side do may have ended everything, or brought more.
        if self._last is not None and not self._inbox:
            last, self._last = self._last, None
            receiver.closed(last)
        other = self._other
        if other is not None and other._paused:
            other._paused = False
            if not other._over and other._receiver is not None:
                other._receiver.resume_writing()
