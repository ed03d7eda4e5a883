"""The clock on the wall, for protocols whose messages say when they were made: the default of an argument of theirs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["wall_clock_ns"]

wall_clock_ns: Final[Callable[[], int]] = time.time_ns
"""Nanoseconds since 1970; may be set back."""
