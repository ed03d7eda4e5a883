"""Sources of time and chance that are not the event loop's: randomness, and the clocks by which it is measured or dated.

Everything else that a bus knows of time comes from its event loop. So a run is a function of its input where the loop keeps
virtual time and these sources are a seed's: see `polybus.testing.simulated`, which sets them for what runs inside it. They are
read through a context variable because ids are also made where no event loop runs.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from attrs import field, frozen


@frozen(kw_only=True)
class Sources:
    """Randomness and clocks."""

    urandom: Callable[[int], bytes] = os.urandom
    """Gives so many random bytes: for ids and secrets."""
    rng: random.Random = field(factory=random.SystemRandom)
    """For sessions, and for the jitter of pauses."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds, by which is measured what keeps the event loop busy: its own clock may stand still meanwhile."""
    wall_clock_ns: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970, for protocols whose messages say when they were made; may be set back."""


sources: Final[ContextVar[Sources]] = ContextVar("polybus_sources", default=Sources())  # noqa: B039  # immutable
