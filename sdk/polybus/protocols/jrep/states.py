"""Errai's five states of a bus (`BUS/client/framework/BusState`), derived from polybus events."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

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


_U, _L, _C = BusState.UNINITIALIZED, BusState.LOCAL_ONLY, BusState.CONNECTING
_I, _F = BusState.CONNECTION_INTERRUPTED, BusState.CONNECTED

STATES: Final[Mapping[BusState, Mapping[str, BusState]]] = {
    state: {"up": _F, "lost": _I, "gone": _L, "trying": _F if state is _F else _C, "left": _U} for state in BusState
}
"""The next state when a link is up, when the last link is lost or closed for good, when a link is trying to connect, and after
the bus is left.
"""


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
        if self._state is None:
            self._state = self._now()
            return self._state
        while True:
            try:
                kind = self._kind_of(await anext(self._events))
            except StopAsyncIteration:
                if self._state is BusState.UNINITIALIZED:
                    raise
                kind = "left"
            following = STATES[self._state][kind] if kind is not None else self._state
            if following is not self._state:
                self._state = following
                return following

    def _now(self) -> BusState:
        bus = self._bus
        if not (bus.ready or bus.leaving):
            return _U
        self._up.update(peer for peer in bus.peers if peer.connected)
        if self._up:
            return _F
        if bus.peers:
            return _I
        return _C if bus.stats().links else _L  # no peer known yet

    def _kind_of(self, event: BusEvent) -> str | None:
        if isinstance(event, LinkUp):
            self._up.add(event.peer)
            return "up"
        if isinstance(event, LinkRetrying):
            return "trying"
        if not isinstance(event, LinkDown):
            return None
        self._up.discard(event.peer)
        if self._up:
            return None
        return "lost" if self._bus.peers else "gone"
