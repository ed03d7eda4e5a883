"""Waits before the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import field, frozen
from attrs.validators import ge, instance_of, optional

from ._validation import at_least, more_than_no_time

__all__ = ["Backoff"]


@frozen
class Backoff:
    """The wait before the next attempt: exponential, capped, with full jitter.

    Args:
        initial: Seconds, the bound of the first wait.
        maximum: Seconds, the bound of every wait.
        attempts: How many in a row before the link is given up; None for no end.
        factor: By how much the bound grows.
        jitter: Wait a random part of the bound (spreads a crowd of clients); False waits all of it.

    Raises:
        TypeError: No number.
        ValueError: A time that is negative, zero or infinite, a negative number of attempts, or a factor below 1.
    """

    initial: float = field(default=0.25, validator=more_than_no_time)
    maximum: float = field(default=30.0, validator=more_than_no_time)
    attempts: int | None = field(default=None, validator=optional(at_least(0)))
    factor: float = field(default=2.0, validator=[instance_of((int, float)), ge(1)])
    jitter: bool = True

    def delay(self, attempt: int, rng: Callable[[], float] = random.random) -> float:
        """Seconds before attempt number `attempt` (from 0)."""
        bound = self.bound(attempt)
        return bound * rng() if self.jitter else bound

    def bound(self, attempt: int) -> float:
        """The longest that `delay` can be."""
        return float(min(self.maximum, self.initial * self.factor ** min(attempt, 64)))
