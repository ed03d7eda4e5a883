"""An asyncio event loop whose time is no wall time: it jumps to the next timer when nothing else is to be done."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop in virtual time, which begins at 0: ``asyncio.Runner(loop_factory=VirtualLoop)``, or with anyio
    ``anyio.run(main, backend="asyncio", backend_options={"loop_factory": VirtualLoop})``.

    It calls back in the order in which it was asked to, so a program whose randomness has a seed does the same in each run.
    Sockets, threads and processes have no part in virtual time: it does not wait for them.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._quiet: asyncio.Future[float | None] | None = None
        self._numbers = itertools.count()
        super().__init__(_Jumps(self))
        self.set_task_factory(self._task)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    async def settled(self) -> float | None:
        """Wait until nothing is left to be done at this time.

        Returns:
            Seconds until the next timer; None if there is none.
        """
        self._quiet = self.create_future()
        return await self._quiet

    def _task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(coro, loop=loop, number=next(self._numbers), **options)

    def advance(self, seconds: float | None) -> None:
        """Nothing is left to be done at this time, and so many seconds are left until the next timer.

        Raises:
            RuntimeError: There is none, and no task asks for that.
        """
        if self._quiet is not None:
            quiet, self._quiet = self._quiet, None
            if not quiet.done():
                quiet.set_result(seconds)
        elif seconds is None:
            raise RuntimeError("every task waits, and no timer is set: in virtual time nothing would ever happen again")
        else:
            self._now += seconds


class _Jumps(selectors.DefaultSelector):
    """Selector that lets time pass where a loop would wait for its sockets or the next timer."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        ready = super().select(0)
        if not ready:
            self._loop.advance(timeout)
        return ready


class _Task(asyncio.Task[Any]):
    """Task with a number for its hash: anyio keeps tasks in sets, and cancels them in their order, which else is that of
    their addresses in memory.
    """

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number
