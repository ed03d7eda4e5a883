"""The readers of a bus's events."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from .events import BusEvent

if TYPE_CHECKING:
    from .bus import Bus

__all__ = ["EventHub", "EventStream"]

_SIZE = 1000


class EventHub:
    """Hands events to whoever reads them; costs nothing while nobody does."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()

    def stream(self) -> EventStream:
        """A new reader, from now on."""
        stream = EventStream(self._bus)
        self._streams.add(stream)
        return stream

    def emit(self, event: BusEvent) -> None:
        """Hand an event to all readers."""
        if self._streams:
            for stream in list(self._streams):
                stream.put(event)

    def close(self) -> None:
        """The bus was left: readers end when they have read what is there."""
        for stream in list(self._streams):
            stream.close()


class EventStream(AsyncIterator[BusEvent]):
    """One reader; the oldest of 1,000 unread events give way to new ones."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._queue: deque[BusEvent] = deque(maxlen=_SIZE)
        self._waiters: list[Any] = []
        self._closed = False

    def put(self, event: BusEvent) -> None:
        """An event has happened."""
        self._queue.append(event)
        self._wake()

    def close(self) -> None:
        """No more will happen."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._bus._wake(waiter)

    async def __anext__(self) -> BusEvent:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            waiter = self._bus._waiter()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self._queue.popleft()
