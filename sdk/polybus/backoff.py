"""Back-off: how long to wait between attempts."""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import field, frozen
from attrs.validators import ge, instance_of, optional

from ._validation import at_least, more_than_no_time

__all__ = ["Backoff"]


@frozen
class Backoff:
    """Exponential back-off with a maximum and full jitter.

    Args:
        initial: Upper limit of the first wait in seconds.
        maximum: Upper limit of every wait in seconds.
        attempts: Number of consecutive failures after which the link gives up; None for no limit.
        factor: Factor by which the limit grows with each attempt.
        jitter: Wait a random part of the limit, so that many clients do not reconnect at the same time. False waits for the
            whole limit.

    Raises:
        TypeError: An argument is not a number.
        ValueError: A time is negative, zero or infinite, `attempts` is negative, or the factor is below 1.
    """

    initial: float = field(default=0.25, validator=more_than_no_time)
    maximum: float = field(default=30.0, validator=more_than_no_time)
    attempts: int | None = field(default=None, validator=optional(at_least(0)))
    factor: float = field(default=2.0, validator=[instance_of((int, float)), ge(1)])
    jitter: bool = True

    def delay(self, attempt: int, rng: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait before attempt number `attempt` (from 0)."""
        bound = self.bound(attempt)
        return bound * rng() if self.jitter else bound

    def bound(self, attempt: int) -> float:
        """Return the longest possible `delay` before this attempt, in seconds."""
        return float(min(self.maximum, self.initial * self.factor ** min(attempt, 64)))
