"""Workers for the event loop of a browser, where a hop costs more than a request: plain functions run in the event that brings
their request."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING

from .stall_warnings import LONG
from .workers import Workers

if TYPE_CHECKING:
    from .._util.event_loop import Loop
    from .workers import Job

__all__ = ["EagerWorkers"]


class EagerWorkers(Workers):
    """Workers that leave plain functions no job to wait for.

    The order is that of `Workers`: a function runs at once only where nothing has been submitted before that has not begun.
    Nobody's code is run into: inside a task, the job waits for a worker.

    Args:
        loop: The event loop.
        spawn: Runs a coroutine function as a task of the bus.
        context: The one in which the bus was entered.
    """

    def __init__(self, loop: Loop, spawn: Callable[..., None], context: contextvars.Context) -> None:
        super().__init__(loop, spawn)
        self._context = context

    def submit(self, job: Job) -> None:
        """Run it, or queue it."""
        run_plain = job.run_plain
        if self._taken or run_plain is None or asyncio.current_task() is not None or not self._run(job, run_plain):
            super().submit(job)

    def _run(self, job: Job, run_plain: Callable[[], bool]) -> bool:
        self._taken = True  # what the function itself submits waits
        began = self.stalls.clock()
        try:
            return self._context.copy().run(run_plain)
        finally:
            if self.stalls.clock() - began > LONG:
                self.stalls.ended(job, began)
            self._taken = False
            if self._ready:
                self._summon()
