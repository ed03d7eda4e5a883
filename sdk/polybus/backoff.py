"""Waits between attempts."""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import field, frozen
from attrs.validators import ge, instance_of, optional

from ._validation import at_least, more_than_no_time

__all__ = ["Backoff"]


@frozen
class Backoff:
    """Wait before the next attempt: exponential, capped, with full jitter.

    Args:
        initial: Bound of the first wait in seconds.
        maximum: Bound of every wait in seconds.
        attempts: Failed attempts in a row before the link gives up; None for no limit.
        factor: Growth of the bound per attempt.
        jitter: Wait a random part of the bound, which spreads many clients. False waits the whole bound.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A time is negative, zero or infinite, attempts are negative, or the factor is below 1.
    """

    initial: float = field(default=0.25, validator=more_than_no_time)
    maximum: float = field(default=30.0, validator=more_than_no_time)
    attempts: int | None = field(default=None, validator=optional(at_least(0)))
    factor: float = field(default=2.0, validator=[instance_of((int, float)), ge(1)])
    jitter: bool = True

    def delay(self, attempt: int, rng: Callable[[], float] = random.random) -> float:
        """Seconds to wait before attempt number `attempt` (from 0)."""
        bound = self.bound(attempt)
        return bound * rng() if self.jitter else bound

    def bound(self, attempt: int) -> float:
        """Longest value of `delay` for this attempt, in seconds."""
        return float(min(self.maximum, self.initial * self.factor ** min(attempt, 64)))
