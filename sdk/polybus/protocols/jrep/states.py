"""Errai's five states of a bus (`BUS/client/framework/BusState`), derived from polybus events."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from typing import Any

from ...events import BusEvent, LinkDown, LinkRetrying, LinkUp


class BusState(enum.Enum):
    """The state of a bus in Errai's terms."""

    UNINITIALIZED = "uninitialized"
    """The bus has not been started, or has been closed."""
    LOCAL_ONLY = "local only"
    """The bus is running without a link."""
    CONNECTING = "connecting"
    CONNECTION_INTERRUPTED = "connection interrupted"
    """A link is down and will reconnect."""
    CONNECTED = "connected"


def bus_states(bus: Any) -> AsyncIterator[BusState]:
    """Yield a bus's current state and then every change, until the bus closes with UNINITIALIZED.

    ::

        async for state in bus_states(bus):
            print(state.name)
    """
    return _States(bus)


class _States(AsyncIterator[BusState]):
    """Iterator over the states. It is not a generator, so it does not have to be closed."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus
        self._events = bus.events()
        self._up: set[Any] = set()
        self._state: BusState | None = None

    async def __anext__(self) -> BusState:
        before = self._state
        following = self._now() if before is None else before
        while following is before:
            try:
                following = self._after(await anext(self._events), following)
            except StopAsyncIteration:
                if before is BusState.UNINITIALIZED:
                    raise
                following = BusState.UNINITIALIZED
        self._state = following
        return following

    def _now(self) -> BusState:
        bus = self._bus
        if not (bus.ready or bus.leaving):
            return BusState.UNINITIALIZED
        self._up.update(peer for peer in bus.peers if peer.connected)
        if self._up:
            return BusState.CONNECTED
        if bus.peers:
            return BusState.CONNECTION_INTERRUPTED
        return BusState.CONNECTING if bus.stats().links else BusState.LOCAL_ONLY  # no peer known yet

    def _after(self, event: BusEvent, state: BusState) -> BusState:
        if isinstance(event, LinkUp):
            self._up.add(event.peer)
            return BusState.CONNECTED
        if isinstance(event, LinkRetrying) and state is not BusState.CONNECTED:
            return BusState.CONNECTING
        if isinstance(event, LinkDown):
            self._up.discard(event.peer)
            if not self._up:
                return BusState.CONNECTION_INTERRUPTED if self._bus.peers else BusState.LOCAL_ONLY
        return state
