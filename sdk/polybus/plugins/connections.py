"""Shared parts of transports over a connection: states, water marks, the slowest pace, and a timer."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final

import anyio

from .transports import Host

HIGH_WATER: Final = 32 * 1024
"""Unsent bytes above which writers are asked to pause."""
LOW_WATER: Final = 8 * 1024
"""Unsent bytes below which writers may resume."""

SLOWEST: Final = 512
"""Bytes per second, averaged over `Limits.frame_timeout`: half of the slowest line in use (GPRS, 8 kbit/s). A slower sender
makes us keep its partial frame at next to no cost of its own."""


class TransportState(enum.Enum):
    """State of a connection."""

    OPEN = 1
    CLOSING = 2
    """The close is sent; further input is discarded."""
    LOST = 3


class Pace:
    """Progress of one frame or body that has begun to arrive; must stay above a minimum for any size.

    Args:
        now: When its beginning was seen.
        arrived: Bytes that had arrived by then.
    """

    __slots__ = ("_arrived", "_since", "began")

    def __init__(self, now: float, arrived: int) -> None:
        self.began: float = now
        self._since = now
        self._arrived = arrived

    def deadline(self, now: float, arrived: int, seconds: float) -> float:
        """Time at which it is too slow without further bytes: `seconds` after it last gained `SLOWEST` times `seconds`."""
        if arrived < self._arrived:
            self.began = self._since = now
            self._arrived = arrived
        elif arrived - self._arrived >= SLOWEST * seconds:
            self._since = now
            self._arrived = arrived
        return self._since + seconds


def call_later(host: Host, delay: float, function: Callable[[], None]) -> Callable[[], None]:
    """Call `function` after `delay` seconds; call the returned function to cancel."""
    if host.backend == "asyncio":
        return asyncio.get_running_loop().call_later(delay, function).cancel
    scope = anyio.CancelScope()

    async def call() -> None:
        with scope:
            await anyio.sleep(delay)
            function()

    host.spawn(call)
    return scope.cancel
