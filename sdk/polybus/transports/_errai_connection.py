"""One logical connection of an Errai client over HTTP: many requests, one queue of what waits to be fetched (J.REP notes 2.1).

What the client sends comes in the bodies of its requests. What it is sent waits here until some request can take it along: a
long poll, a stream of events, or the answer to whatever it posts next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from ..errors import TooLarge
from ..plugins import Closed
from ._stream import State
from ._wire import HIGH_WATER, LOW_WATER, call_later

if TYPE_CHECKING:
    from ..plugins import Host, Receiver

__all__ = ["NOTHING", "ErraiConnection", "next_payload"]

NOTHING = b"[]"
_EACH = b'"ToSubject"'
"""Stands in each message, and perhaps in texts besides."""
_MESSAGES = 1024
"""Of one payload: more are refused by those who read it."""
_SILENCE = 90.0
"""Seconds without any request after which a session is over, as on a real server."""


def next_payload(queue: deque[bytes], limit: int) -> bytes:
    """As many frames as one payload may hold, taken from the front of a queue; at least one."""
    frame = queue.popleft()
    taken, size, messages = [frame[1:-1]], len(frame), frame.count(_EACH)
    while queue:
        size, messages = size + len(queue[0]), messages + queue[0].count(_EACH)
        if size > limit or messages > _MESSAGES:
            break
        taken.append(queue.popleft()[1:-1])
    return b"[%b]" % b",".join([inner for inner in taken if inner])


class ErraiConnection:
    """A `plugins.Transport` whose frames are fetched."""

    hops = 0

    def __init__(self, name: str, address: str, host: Host, ended: Callable[[ErraiConnection], None]) -> None:
        self.name: str = name
        self.address: str = address
        self.max_frame: int = host.limits.message
        self._host = host
        self._ended = ended
        self.polls: bool = False
        """Whether messages are fetched by requests that do nothing else."""
        self._state = State.OPEN
        self._receiver: Receiver | None = None
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._seen = host.time()
        self._fetching = 0
        """Requests that wait for something; only the last one gets it."""
        self._turn = 0
        self._changed = anyio.Event()
        self._why: Closed | None = None
        self._cancel_timer: Callable[[], None] | None = None

    # -- plugins.Transport

    def start(self, receiver: Receiver) -> None:
        """Deliver to this one."""
        self._receiver = receiver

    def send(self, frame: bytes) -> None:
        """Keep a frame until it is fetched. After the end: ignored.

        Raises:
            TooLarge: The frame is over `Limits.message`.
        """
        if len(frame) > self.max_frame:
            raise TooLarge(f"a payload of {len(frame)} bytes: the limit is {self.max_frame} (Limits.message)")
        if self._state is not State.OPEN:
            return
        self._queue.append(frame)
        self._size += len(frame)
        self._wake()
        if self._size > HIGH_WATER and not self._paused and self._receiver is not None:
            self._paused = True
            self._receiver.pause_writing()

    def write_backlog(self) -> int:
        """Bytes that have not been fetched yet."""
        return self._size

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Let what waits be fetched; after `Limits.close_timeout` it is dropped. `Receiver.closed` follows."""
        if self._state is State.OPEN:
            self._state = State.CLOSING
            self._why = Closed(code, reason)
            self._cancel_timer = call_later(self._host, self._host.limits.close_timeout, self._finish)
            self._wake()
            if not self._queue:
                self._host.call_soon(self._finish)

    def abort(self, why: Closed) -> None:
        """End at once. `Receiver.closed` follows with this reason."""
        if self._state is not State.LOST:
            self._state, self._why = State.CLOSING, why
            self._queue.clear()
            self._host.call_soon(self._finish)

    def tick(self, now: float) -> None:
        """About once a second: who asks for nothing any more has gone."""
        if not self._fetching and now - self._seen > _SILENCE and self._state is State.OPEN:
            self.abort(Closed(1006, f"no request for {_SILENCE:g} s"))

    # -- requests

    @property
    def over(self) -> bool:
        """Whether nothing will come any more."""
        return self._state is State.LOST or (self._state is State.CLOSING and not self._queue)

    def receive(self, payload: bytes) -> None:
        """The body of a request."""
        self._seen = self._host.time()
        if self._state is State.OPEN and self._receiver is not None:
            self._receiver.frames_received([payload])

    async def fetch(self, wait: float) -> bytes:
        """What waits, as one payload; nothing after `wait` seconds, or when a later request waits in place of this one."""
        turn = self._turn = self._turn + 1
        self._wake()
        self._fetching += 1
        try:
            with anyio.move_on_after(wait):
                while not self._queue and self._state is State.OPEN and self._turn == turn:
                    await self._changed.wait()
        finally:
            self._fetching -= 1
            self._seen = self._host.time()
        return self.take() if self._turn == turn else NOTHING

    def take(self) -> bytes:
        """All that waits, in as few messages as it is."""
        if not self._queue:
            return NOTHING
        payload = next_payload(self._queue, self.max_frame)
        self._size = sum(map(len, self._queue))
        if self._paused and self._size <= LOW_WATER and self._state is State.OPEN and self._receiver is not None:
            self._paused = False
            self._receiver.resume_writing()
        if self._state is State.CLOSING and not self._queue:
            self._host.call_soon(self._finish)
        return payload

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _finish(self) -> None:
        if self._state is State.LOST:
            return
        self._state = State.LOST
        if self._cancel_timer is not None:
            self._cancel_timer()
        self._queue.clear()
        self._size = 0
        self._wake()
        self._ended(self)
        if self._receiver is not None:
            self._receiver.closed(self._why or Closed(1001, "the server ended the session"))
