"""Base class for transports over a byte connection: startup, shutdown and timeouts."""

from __future__ import annotations

import math
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from attrs import define, field

from ...errors import TooLarge
from ...plugins import Closed, FrameCutter, Host, Receiver, ReceiverFeatures, Transport
from ...plugins.connections import SLOWEST, Pace, TransportState, call_later, write_stalled
from ..sockets import closed_with
from .framing import Framer
from .wire import Wire, WireUser


def how_it_broke(cutter: FrameCutter) -> Closed | None:
    error = cutter.broken
    return None if error is None else Closed(error.close_code or 1002, error.text)


_A_TICK = 0.5
_GOODBYE = 0.1
"""Seconds for the peer to read a goodbye if nothing else was sent before."""


class WireTransport(Transport, WireUser, Protocol): ...


F = TypeVar("F", bound=Framer)


@define(eq=False, repr=False, weakref_slot=False)
class StreamTransport(ABC, Generic[F]):
    """Base class for transports that run over a `Wire`. It handles startup, shutdown and timeouts.

    Instead of a timer per frame, `tick` checks liveness about once a second, so a limit may be exceeded by a second.
    """

    name: str
    _wire: Wire
    _host: Host
    _framer: F
    hops = 0
    max_frame: int = field(init=False)
    _state: TransportState = field(default=TransportState.OPEN, init=False)
    _receiver: Receiver | None = field(default=None, init=False)
    # Frames received before `start`, then None.
    _early: list[bytes] | None = field(factory=list, init=False)
    _why: Closed | None = field(default=None, init=False)
    _paused: bool = field(default=False, init=False)
    # True while reading is paused.
    _deaf: bool = field(default=False, init=False)
    _cancel_timer: Callable[[], None] | None = field(default=None, init=False)
    # Liveness: True if input arrived since the last tick, and the time when a tick last noticed input.
    _heard: bool = field(default=True, init=False)
    _heard_at: float = field(init=False)
    # Pace of an incomplete frame, from the first tick that sees it.
    _pace: Pace | None = field(default=None, init=False)
    _flood_since: float = field(init=False)
    # Writing: last progress of the system and the peer, and the start of a stall.
    _stuck_at: tuple[int, int] = field(default=(0, 0), init=False)
    _stuck_since: float | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.max_frame = self._host.limits.message
        self._heard_at = self._flood_since = self._host.time()

    @property
    def address(self) -> str:
        return self._wire.address

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        if self._paused:
            receiver.pause_writing()
        self._host.call_soon(self._begin)

    def _begin(self) -> None:
        receiver, early = self._receiver, self._early
        self._early = None
        assert receiver is not None
        # If the peer ended the connection, its frames come first. If this side did, they are dropped.
        if early and (self._state is not TransportState.CLOSING or self._framer.ended or self._framer.broken):
            receiver.frames_received(early)
        if self._state is TransportState.LOST:
            receiver.closed(self._why or closed_with(None))
            return
        if not self._deaf:
            self._wire.resume_reading()

    def keep_short(self) -> None:
        self._wire.keep_short()

    def pause_reading(self) -> None:
        """Pause reading. Once the operating system's buffers are full, the peer can no longer send."""
        if self._state is TransportState.OPEN and not self._deaf:
            self._deaf = True
            if self._early is None:
                self._wire.pause_reading()

    def resume_reading(self) -> None:
        if self._deaf:
            self._deaf = False
            if self._early is None:
                self._wire.resume_reading()

    def send_alone(self, frame: bytes) -> None:
        wire = self._wire
        wire.alone = True
        try:
            self.send(frame)
        finally:
            wire.alone = False

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Send a frame, joined with the other frames of this event-loop iteration."""

    @property
    def send_framed(self) -> Callable[[bytes, int], None]:
        """Function that sends bytes from `framed`, which connections share: ``send_framed(data, turn)``."""
        return self._wire.write_first

    def write_backlog(self) -> int:
        return self._wire.backlog()

    def slow_arrival(self) -> int:
        """Return the bytes received of a frame that has been incomplete for a tick, or 0. Many such frames cost memory."""
        pace = self._pace
        return self._framer.arrived if pace is not None and self._host.time() - pace.began >= _A_TICK else 0

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._state is TransportState.OPEN:
            only_goodbye = code == 1000 and not (self._wire.taken() or self._wire.backlog())
            self._leave(Closed(code, reason), _GOODBYE if only_goodbye else math.inf)
            for data in self._framer.goodbye(code, reason):
                self._wire.write(data)
            if self._framer.ends_with_goodbye:
                self._wire.hang_up()

    def abort(self, why: Closed) -> None:
        if self._state is not TransportState.LOST:
            self._state = TransportState.CLOSING
            self._wire.shut = True
            self._why = why
            self._wire.abort()

    def tick(self, now: float) -> None:
        if self._state is not TransportState.OPEN:
            return
        if self._heard or self._deaf:  # silence means nothing if this side doesn't read
            self._heard = False
            self._heard_at = now
        if now - self._flood_since >= 1:
            self._flood_since = now
            self._framer.empty_frames = 0
        self._check_frame(now)
        self._check_writing(now)
        if self._state is TransportState.OPEN:
            self._check_silence(now)

    @abstractmethod
    def _check_silence(self, now: float) -> None: ...

    # -- for subclasses

    def _check_size(self, size: int) -> None:
        if size > self.max_frame:
            raise TooLarge(f"a frame of {size} bytes, the limit is {self.max_frame}: raise Limits(message=...) on both sides")

    def _deliver(self, frames: list[bytes]) -> None:
        self._pace = None
        if self._state is not TransportState.OPEN:
            return
        if self._early is not None:
            self._early += frames
        elif self._receiver is not None:
            self._receiver.frames_received(frames)

    def _leave(self, why: Closed, longest: float = math.inf) -> None:
        if not self._paused:  # stop the writer now, since `closed` comes later
            self.pause_writing()
        self._state = TransportState.CLOSING
        self._wire.shut = True
        self._why = why
        self._wire.resume_reading()
        self._cancel_timer = call_later(self._host, min(self._host.limits.close_timeout, longest), self._wire.abort)
        ReceiverFeatures.of(self._receiver).closing(why)

    def _fail(self, code: int, reason: str) -> None:
        self.close(code, reason)

    def _check_flood(self) -> None:
        now = self._host.time()
        if now - self._flood_since < 1:
            self._fail(1008, f"more than {self._host.limits.empty_frames} empty frames in a second")
        self._flood_since = now
        self._framer.empty_frames = 0

    def _check_frame(self, now: float) -> None:
        arrived = self._framer.arrived
        if not arrived or self._deaf:
            self._pace = None
            return
        seconds = self._host.limits.frame_timeout
        if self._pace is None:
            self._pace = Pace(now, arrived)
        elif now >= self._pace.deadline(now, arrived, seconds):
            less = f"less than {math.ceil(SLOWEST * seconds)} bytes came within {seconds:g} s (Limits.frame_timeout)"
            self._fail(1002, f"a frame stalled: {less}: {self._framer.partial}")

    def _check_writing(self, now: float) -> None:
        if not self._wire.backlog():
            self._stuck_since = None
            return
        # The kernel accepts more only when much of its buffer is free (Linux: a third of up to 4 MiB). On a slow
        # line that takes a minute, although the peer's kernel steadily acknowledges data.
        signs = self._wire.signs()
        progress = self._wire.taken(), signs.outstanding if signs is not None else 0
        if self._stuck_since is None or progress != self._stuck_at:
            self._stuck_since = now
            self._stuck_at = progress
        elif now - self._stuck_since >= self._host.limits.write_timeout:
            self.abort(write_stalled(self._host.limits.write_timeout, self._wire.backlog()))

    # -- what the wire calls

    def eof_received(self) -> None:
        if self._state is TransportState.OPEN:
            partial = self._framer.partial
            self._leave(Closed(1006, f"truncated: {partial}") if partial else closed_with(None))
        self._wire.hang_up()

    def wire_lost(self, error: Exception | None) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None
        # asyncio reports the end of a connection that the peer's TLS has refused before it reports the refusal.
        if self._why is None or (isinstance(error, ssl.SSLError) and self._why == closed_with(None)):
            partial = self._framer.partial
            why = closed_with(error)
            self._why = Closed(why.code, f"truncated: {partial} ({why.reason})") if partial else why
        self._state = TransportState.LOST
        self._wire.shut = True
        if self._early is None and self._receiver is not None:
            self._receiver.closed(self._why)

    def pause_writing(self) -> None:
        self._paused = True
        if self._receiver is not None and self._state is TransportState.OPEN:
            self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        if self._receiver is not None and self._state is TransportState.OPEN:
            self._receiver.resume_writing()
