"""Warnings in the log about handlers that block the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .workers import Job

logger: logging.Logger = logging.getLogger("polybus.handlers")

LONG: Final = 1.0
"""Seconds without a wait, from which on a handler is named."""
_SILENCE: Final = 60.0
"""Seconds for which the same handler is not named again."""


class StallWarnings:
    """Measures handlers afterwards, between two of their waits: until then nothing else could run anyway.

    Args:
        clock: Gives seconds; a clock that is never set.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock: Callable[[], float] = clock
        self._told: dict[str, tuple[float, int]] = {}

    def ended(self, job: Job, began: float) -> None:
        """Warn of a job that has run longer than `LONG` without a wait."""
        now = self.clock()
        function = job.function
        last, unsaid = self._told.get(function, (0.0, -1))
        if unsaid >= 0 and now - last < _SILENCE:
            self._told[function] = last, unsaid + 1
            return
        self._told[function] = now, 0
        logger.warning(
            "polybus: %s, for %.200r, has blocked the event loop for %.1f s%s: in this time nobody else was answered, nothing "
            "was sent, and deadlines passed unseen. Make it a plain def without inline=True, which runs in a thread, or give "
            "what blocks to anyio.to_thread.run_sync",
            function,
            job.subject,
            now - began,
            f" (and {unsaid} times more since this was last said)" if unsaid > 0 else "",
        )
