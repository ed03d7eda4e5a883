"""Errai's five states of a bus (`BUS/client/framework/BusState`), from the events of ours."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...events import BusEvent, LinkDown, LinkRetrying, LinkUp

if TYPE_CHECKING:
    from ..._bus.bus import Bus

__all__ = ["STATES", "BusState", "bus_states"]


class BusState(enum.Enum):
    """States of a bus."""

    UNINITIALIZED = "uninitialized"
    """It has not been entered, or has been left."""
    LOCAL_ONLY = "local only"
    """It runs without any link."""
    CONNECTING = "connecting"
    CONNECTION_INTERRUPTED = "connection interrupted"
    """A link is down and will come back."""
    CONNECTED = "connected"


_U, _L, _C = BusState.UNINITIALIZED, BusState.LOCAL_ONLY, BusState.CONNECTING
_I, _F = BusState.CONNECTION_INTERRUPTED, BusState.CONNECTED

STATES: Final[Mapping[BusState, Mapping[str, BusState]]] = {
    _U: {"up": _F, "lost": _I, "gone": _L, "trying": _C, "left": _U},
    _L: {"up": _F, "lost": _I, "gone": _L, "trying": _C, "left": _U},
    _C: {"up": _F, "lost": _I, "gone": _L, "trying": _C, "left": _U},
    _I: {"up": _F, "lost": _I, "gone": _L, "trying": _C, "left": _U},
    _F: {"up": _F, "lost": _I, "gone": _L, "trying": _F, "left": _U},
}
"""A link is up; the last one that was up is lost, or is gone for good; one is being tried; the bus has been left."""


def bus_states(bus: Bus) -> AsyncIterator[BusState]:
    """The state of a bus now, and each one that follows; it ends with UNINITIALIZED when the bus is left.

    ::

        async for state in bus_states(bus):
            print(state.name)
    """
    return _States(bus)


class _States(AsyncIterator[BusState]):
    """Not a generator: it need not be closed."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._events = bus.events()
        self._up: set[Any] = set()
        self._state: BusState | None = None

    async def __anext__(self) -> BusState:
        if self._state is None:
            self._state = _now(self._bus, self._up)
            return self._state
        while True:
            try:
                kind = _kind_of(await anext(self._events), self._bus, self._up)
            except StopAsyncIteration:
                if self._state is BusState.UNINITIALIZED:
                    raise
                kind = "left"
            following = STATES[self._state][kind] if kind is not None else self._state
            if following is not self._state:
                self._state = following
                return following


def _now(bus: Bus, up: set[Any]) -> BusState:
    runtime = bus._services.runtime
    if runtime is None:
        return BusState.UNINITIALIZED
    up.update(link.peer for link in runtime.links if link.stands)
    if up:
        return BusState.CONNECTED
    states = {link.state.value for link in runtime.links}
    if "connecting" in states:
        return BusState.CONNECTING
    return BusState.CONNECTION_INTERRUPTED if states & {"down", "failing"} else BusState.LOCAL_ONLY


def _kind_of(event: BusEvent, bus: Bus, up: set[Any]) -> str | None:
    if isinstance(event, LinkUp):
        up.add(event.peer)
        return "up"
    if isinstance(event, LinkRetrying):
        return "trying"
    if isinstance(event, LinkDown):
        up.discard(event.peer)
        if up:
            return None
        links = bus._services.runtime.links if bus._services.runtime is not None else ()
        return "lost" if any(link.opened for link in links) else "gone"
    return None
