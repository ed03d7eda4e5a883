"""Receives frames from a connection, and spreads long frames and large batches over several event-loop iterations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from msgspec import Struct, field

from ...message import Message
from ...plugins import Closed, SessionFeatures, TransportFeatures

if TYPE_CHECKING:
    from ...errors import RemoteProtocolError
    from ...plugins import ProtocolAdapter, Session, SessionEvent, SessionOutput, Transport
    from ...plugins.extensions import Recorder, Tap
    from .link import Link

_AT_ONCE: Final = 16 * 1024
"""Bytes of frames to handle per event-loop iteration. 4 KiB can change a thousand subscriptions, and 256 KiB took a second."""
_LONG: Final = 32 * 1024
"""Maximum size of a frame that is not split, in bytes."""
_EACH: Final = 32
"""Bytes to add for each frame, because even empty frames take time."""
_STILL_COME: Final = 1024 * 1024
"""Maximum number of bytes to queue if the transport cannot pause. Beyond that, everything is handled immediately."""


class ConnectionReceiver:
    """Receives the callbacks of a connection. Implements `plugins.Receiver`.

    After `over`, callbacks are ignored, because the transport may be late and the link may have another connection.
    """

    __slots__ = ("_link", "_pieces", "frames_received")

    def __init__(self, link: Any, transport: Transport, session: Session) -> None:
        self._link: Link | Any | None = link
        self._pieces: _FramePieces | None = None
        self.frames_received: Callable[[Sequence[bytes]], None] = link.frames_received  # the link's own method, for speed
        if (cut := SessionFeatures.of(session).pieces) is not None:
            self._pieces = _FramePieces(link, transport, cut)
            self.frames_received = self._pieces.frames_received

    def hand_over(self, link: Any) -> None:
        self._link = link
        self.frames_received = link.frames_received

    def over(self) -> None:
        self._link = None
        self.frames_received = lambda frames: None
        if self._pieces is not None:
            self._pieces.drop()

    def closing(self, why: Closed) -> None:
        if self._pieces is not None:
            self._pieces.finish()
        if self._link is not None:
            self._link.closing(why)

    def closed(self, why: Closed) -> None:
        if self._pieces is not None:
            self._pieces.finish()
        if self._link is not None:
            self._link.closed(why)

    def lost(self, count: int, why: str) -> None:
        if self._link is not None:
            self._link.lost(count, why)

    def malformed(self, error: RemoteProtocolError) -> None:
        if self._link is not None:
            self._link.refused(error.reason, str(error), self._link.runtime.time())

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.pause_writing()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resume_writing()


class _FramePieces(Struct, eq=False):
    """Frames of a connection that have not been handled yet. Reading is paused until the link has handled all of them."""

    _link: Link
    _transport: Transport
    _pieces: Callable[[bytes], Sequence[bytes]]
    _waiting: deque[bytes] = field(default_factory=deque)
    _bytes: int = 0

    def frames_received(self, frames: Sequence[bytes]) -> None:
        """Handle frames immediately, unless there are too many or other frames are waiting."""
        if self._waiting:
            self._waiting.extend(frames)
            self._bytes += sum(map(len, frames))
            if self._bytes > _STILL_COME:
                self.finish()
        elif sum(map(len, frames)) + _EACH * len(frames) <= _AT_ONCE or (len(frames) == 1 and len(frames[0]) <= _LONG):
            self._link.frames_received(frames)
        else:
            self._waiting.extend(frames)
            if self._handle_one():
                TransportFeatures.of(self._transport).pause_reading()
                self._link.runtime.call_soon(self._turn)

    def finish(self) -> None:
        while self._handle_one():
            pass

    def drop(self) -> None:
        self._waiting.clear()

    def _turn(self) -> None:
        if self._handle_one():
            self._link.runtime.call_soon(self._turn)
        else:
            self._bytes = 0
            TransportFeatures.of(self._transport).resume_reading()

    def _handle_one(self) -> bool:
        waiting = self._waiting
        if waiting and self._link.ending:
            waiting.clear()
        if not waiting:
            return False
        frame = waiting.popleft()
        if len(frame) > _LONG:
            frame, *others = self._pieces(frame)
            waiting.extendleft(reversed(others))
        frames, size = [frame], len(frame) + _EACH
        while waiting and (size := size + len(waiting[0]) + _EACH) <= _AT_ONCE:
            frames.append(waiting.popleft())
        self._link.frames_received(frames)
        return bool(waiting)


def each(output: SessionOutput) -> Iterable[Message | SessionEvent | bytes]:
    return (output,) if isinstance(output, Message) else output


class Confirmation(Struct, eq=False):
    """A pending confirmation request. It needs no timeout, because heartbeats are answered only after it.

    Attributes:
        refused: Patterns that the peer refused to subscribe to. None if the connection ended first.
    """

    over: anyio.Event = field(default_factory=anyio.Event)
    refused: Collection[str | int] | None = None

    def end(self, refused: Collection[str | int] | None) -> None:
        self.refused = refused
        self.over.set()


class Taps(Struct, eq=False):
    _session: Session
    _transport: Transport
    _taps: list[Tap] = []

    def add(self, recorder: Recorder, adapter: ProtocolAdapter, transport: Transport, *, opened: bool, who: str | None) -> bool:
        """Add a recorder. Returns False if the recorder has already been added."""
        if any(tap.recorder is recorder for tap in self._taps):
            return False
        self._taps.append(recorder.tap(adapter, transport, opened=opened, who=who))
        return True

    def remove(self, recorder: Recorder) -> bool:
        before = len(self._taps)
        self._taps = [tap for tap in self._taps if tap.recorder is not recorder]
        return len(self._taps) < before

    def around(self) -> tuple[Session, Transport]:
        session: Any = self._session
        transport: Any = self._transport
        for tap in self._taps:
            session, transport = tap.around(session, transport)
        return session, transport

    def over(self, why: Closed) -> None:
        for tap in self._taps:
            tap.over(why)
