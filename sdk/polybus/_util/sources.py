"""Sources of time and randomness other than the event loop: random numbers, and clocks for measurements and dates.

All other times of a bus come from its event loop. A run therefore depends only on its input if the loop has virtual time and
these sources are seeded: see `polybus.testing.simulated`, which replaces them for its runs. A context variable holds them
because ids are also created without an event loop.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from msgspec import Struct, field


class Sources(Struct, frozen=True, kw_only=True):
    urandom: Callable[[int], bytes] = os.urandom
    """Random bytes for ids and secrets."""
    rng: random.Random = field(default_factory=random.SystemRandom)
    """For sessions, and for the jitter of pauses."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds for measuring work that blocks the event loop, whose own clock may stand still."""
    wall_clock_ns: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970, for protocols with dates in messages; may be set back."""


sources: Final[ContextVar[Sources]] = ContextVar("polybus_sources", default=Sources())  # noqa: B039  # immutable
