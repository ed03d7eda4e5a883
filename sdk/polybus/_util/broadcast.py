"""Delivers events of a bus or broker to their readers."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from .event_loop import Notifier

KEPT = 4096
"""Maximum size in bytes of a body that an event contains, because a reader may have a thousand unread events."""
_SIZE = 1000
_SOON = 16

Event = TypeVar("Event")


class EventHub(Struct, Generic[Event], eq=False):
    """Passes events to all readers."""

    _waiter: Callable[[], Any]
    """``waiter`` of the event loop, which may start later."""
    _wake: Callable[[Any], None]
    _streams: weakref.WeakSet[EventStream[Event]] = field(default_factory=weakref.WeakSet)

    def stream(self) -> EventStream[Event]:
        stream: EventStream[Event] = EventStream(Notifier(self._waiter, self._wake))
        self._streams.add(stream)
        return stream

    @property
    def read(self) -> bool:
        return bool(self._streams)

    @property
    def late(self) -> bool:
        """True if a reader has more than 16 unread events. New events should then be small."""
        return any(len(stream) > _SOON for stream in self._streams)

    def emit(self, event: Event) -> None:
        if self._streams:
            for stream in list(self._streams):
                stream.put(event)

    def close(self) -> None:
        """End each reader's iteration once it has read its remaining events."""
        for stream in list(self._streams):
            stream.close()


class EventStream(AsyncIterator[Event]):
    """One reader's events. If more than 1,000 are unread, the oldest are dropped."""

    def __init__(self, changed: Notifier) -> None:
        self._changed = changed
        self._queue: deque[Event] = deque(maxlen=_SIZE)
        self._closed = False

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, event: Event) -> None:
        self._queue.append(event)
        self._changed.signal()

    def close(self) -> None:
        self._closed = True
        self._changed.signal()

    async def __anext__(self) -> Event:
        await self._changed.until(lambda: self._closed or len(self._queue) > 0)
        if not self._queue:
            raise StopAsyncIteration
        return self._queue.popleft()
