"""Parts that transports over a connection have in common: its states, water marks, the slowest pace, and a timer."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final

import anyio

from .transports import Host

HIGH_WATER: Final = 32 * 1024
"""Bytes that wait to be written above which whoever writes is asked to pause."""
LOW_WATER: Final = 8 * 1024
"""Bytes below which it may go on."""

SLOWEST: Final = 512
"""Bytes a second, on average over `Limits.frame_timeout`: half of what the slowest line in use carries (GPRS, 8 kbit/s). Who
sends less has us keep what is there of a frame at next to no cost of its own."""


class TransportState(enum.Enum):
    """States of a connection."""

    OPEN = 1
    CLOSING = 2
    """The last words are said; what still comes in is thrown away."""
    LOST = 3


class Pace:
    """The pace of one frame or body that has begun to arrive: a bound on progress, whatever its size.

    Args:
        now: When its beginning was seen.
        arrived: How much of it was there.
    """

    __slots__ = ("_arrived", "_since", "began")

    def __init__(self, now: float, arrived: int) -> None:
        self.began: float = now
        self._since = now
        self._arrived = arrived

    def deadline(self, now: float, arrived: int, seconds: float) -> float:
        """Time at which it is too slow, unless more comes: `seconds` after it last was `SLOWEST` times `seconds` further."""
        if arrived < self._arrived:  # another one
            self.began = self._since = now
            self._arrived = arrived
        elif arrived - self._arrived >= SLOWEST * seconds:
            self._since = now
            self._arrived = arrived
        return self._since + seconds


def call_later(host: Host, delay: float, function: Callable[[], None]) -> Callable[[], None]:
    """Call after `delay` seconds; what is returned cancels it."""
    if host.backend == "asyncio":
        return asyncio.get_running_loop().call_later(delay, function).cancel
    scope = anyio.CancelScope()

    async def call() -> None:
        with scope:
            await anyio.sleep(delay)
            function()

    host.spawn(call)
    return scope.cancel
