"""Provides random numbers and clocks that a simulation can replace.

All other times come from the event loop. With virtual time and seeded sources, as in `polybus.testing.simulated`, a run depends
only on its input. The sources are stored in a context variable because ids are also created without an event loop.
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
    """Random numbers for sessions and for jitter."""
    monotonic: Callable[[], float] = time.monotonic
    """Monotonic time in seconds, for measuring work that blocks the event loop. The loop's own clock may be virtual."""
    wall_clock_ns: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970, for protocols that send dates. This time can go backwards."""


sources: Final[ContextVar[Sources]] = ContextVar("polybus_sources", default=Sources())  # noqa: B039  # immutable
