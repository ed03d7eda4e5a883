"""An asyncio event loop in virtual time, which jumps to the next timer when nothing else can run."""

from __future__ import annotations

import asyncio
import itertools
import math
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, starting at 0.

    Use it with ``asyncio.Runner(loop_factory=VirtualLoop)``, or ``anyio.run(main, backend="asyncio",
    backend_options={"loop_factory": VirtualLoop})``.

    Callbacks run in an order that depends only on the program, so a program with seeded randomness behaves the same on every
    run. Virtual time does not wait for sockets, threads or processes.
    """

    # Inherited from asyncio's loop. A heap, ordered by time.
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._now = 0.0
        self._quiet: asyncio.Future[float | None] | None = None
        self._numbers = itertools.count()
        super().__init__(_Jumps(self))
        self.set_task_factory(self._task)

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if when == math.inf:  # infinity means never
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    async def settled(self) -> float | None:
        """Wait until all callbacks due at the current time have run.

        Returns:
            Seconds until the next timer, or `None` if no timer is set.
        """
        self._quiet = self.create_future()
        return await self._quiet

    def advance(self) -> None:
        """Jump to the next timer after running all callbacks due at the current time.

        Raises:
            RuntimeError: If there are no timers and no task is waiting in `settled`.
        """
        due = self._scheduled[0].when() if self._scheduled else None
        if self._quiet is not None:
            quiet, self._quiet = self._quiet, None
            if not quiet.done():
                quiet.set_result(None if due is None else due - self._now)
        elif due is None:
            raise RuntimeError("all tasks are waiting and no timer is set, so virtual time would stand still forever")
        else:
            self._now = due

    def _task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(coro, loop=loop, number=next(self._numbers), **options)


class _Jumps(selectors.DefaultSelector):
    """A selector that advances virtual time instead of waiting for sockets or the next timer."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self._loop.advance()
        return ready


class _Task(asyncio.Task[Any]):
    """A task hashed by its number, because anyio cancels tasks in set order, which would depend on memory addresses."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number
