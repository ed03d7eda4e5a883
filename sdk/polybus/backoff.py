"""Back-off: how long to wait before reconnecting or retrying."""

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
        initial: Upper limit of the first pause in seconds.
        maximum: Upper limit of all pauses in seconds.
        attempts: Number of consecutive failures after which to give up, or `None` for no limit.
        factor: Factor by which the limit grows after each failure.
        jitter: Wait for a random part of the limit, so that clients do not all reconnect at the same time. Otherwise, wait for
            the whole limit.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If a time is negative, zero or infinite, `attempts` is negative, or `factor` is below 1.
    """

    initial: float = field(default=0.25, validator=more_than_no_time)
    maximum: float = field(default=30.0, validator=more_than_no_time)
    attempts: int | None = field(default=None, validator=optional(at_least(0)))
    factor: float = field(default=2.0, validator=[instance_of((int, float)), ge(1)])
    jitter: bool = True

    def delay(self, attempt: int, rng: Callable[[], float] = random.random) -> float:
        """Return the number of seconds to wait before an attempt, counted from 0."""
        bound = self.bound(attempt)
        return bound * rng() if self.jitter else bound

    def bound(self, attempt: int) -> float:
        """Return the longest possible `delay` before this attempt in seconds."""
        return float(min(self.maximum, self.initial * self.factor ** min(attempt, 64)))
