"""Slowest pace at which something must arrive that has begun to: a bound on progress, whatever its size."""

from __future__ import annotations

from typing import Final

SLOWEST: Final = 512
"""Bytes a second, on average over `Limits.frame_timeout`: half of what the slowest line in use carries (GPRS, 8 kbit/s). Who
sends less has us keep what is there of a frame at next to no cost of its own."""


class Pace:
    """Of one frame or body.

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
