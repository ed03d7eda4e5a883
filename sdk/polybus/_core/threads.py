"""The threads of `def` handlers.

A thread cannot be stopped. A handler that is cancelled while its thread runs is answered for at once, but keeps its places,
among the threads and among the running requests, until the thread returns; so their number stays bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from attrs import define

if TYPE_CHECKING:
    from .._util.event_loop import Loop

THREADS = 40
"""Threads of one bus that run at the same time; further `def` handlers wait for their turn."""


class Threads:
    """Runs functions in worker threads. Made anew each time the bus is entered: limiters belong to one event loop.

    Args:
        abandoned: Calls of an earlier run of the bus, whose threads may run still.
    """

    def __init__(self, loop: Loop, abandoned: list[_ThreadCall]) -> None:
        self._loop = loop
        self.abandoned: list[_ThreadCall] = [work for work in abandoned if not work.returned]
        self._limiter = anyio.CapacityLimiter(max(1, THREADS - len(self.abandoned)))
        self._unlimited = anyio.CapacityLimiter(math.inf)  # anyio gives its token back when the caller is cancelled
        self._waits: set[anyio.CancelScope] = set()
        self._deadline = math.inf

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread. When cancelled, it still waits for the thread.

        Raises:
            Exception: As the function raises it.
        """
        work = _ThreadCall(self._loop, function)
        async with self._limiter:
            try:
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._unlimited)
            finally:
                if not work.give_up():
                    await self._wait(work)

    async def _wait(self, work: _ThreadCall) -> None:
        with anyio.CancelScope(shield=True, deadline=self._deadline) as scope:
            self._waits.add(scope)
            try:
                await work.wait()
            finally:
                self._waits.discard(scope)
        if not work.returned:
            self.abandoned.append(work)

    def leave(self, deadline: float) -> None:
        """End: the bus is left, and callers wait for their threads until the deadline at the most."""
        self._deadline = deadline
        for scope in self._waits:
            scope.deadline = deadline


@define(eq=False)
class _ThreadCall:
    """One call in a thread."""

    _loop: Loop
    _function: Callable[[], Any]
    _waiter: Any = None
    _called: bool = False
    _given_up: bool = False
    returned: bool = False

    # Two threads meet here without a lock: each sets its own flag before it looks at the other's.

    def __call__(self) -> Any:
        self._called = True
        try:
            return None if self._given_up else self._function()
        except KeyboardInterrupt as error:  # the real one comes to the main thread; this one would end the event loop
            raise RuntimeError("a def handler raised KeyboardInterrupt") from error
        finally:
            self.returned = True
            if self._waiter is not None:
                with suppress(RuntimeError):  # the loop is over
                    self._loop.call_from_thread(self._wake)

    def give_up(self) -> bool:
        """Give the result up. True if no thread runs it, or will."""
        self._given_up = True
        return self.returned or not self._called

    async def wait(self) -> None:
        """Wait until it has returned."""
        self._waiter = self._loop.waiter()
        if not self.returned:
            await self._waiter

    def _wake(self) -> None:
        self._loop.wake(self._waiter)
