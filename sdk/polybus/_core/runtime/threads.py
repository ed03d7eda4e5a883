"""Threads for `def` handlers and `def` dependencies, usually at most `Limits.threads` at a time.

A call waits only for its first thread. Later it may hold a resource, such as a database connection, or another handler may be
waiting for its answer, so waiting for a thread could deadlock. Further threads, including those for clean-up, start immediately
and make new calls wait longer. For the same reason a thread that waits in a blocking verb returns its slot, and takes it back
without waiting.

Threads cannot be stopped. A cancelled handler is answered immediately but keeps its slots until its thread returns, so that the
number of threads stays bounded.
"""

from __future__ import annotations

import contextvars
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from msgspec import Struct

from .context import current_call
from .workers import Line

if TYPE_CHECKING:
    from .runtime import Runtime

_FULL: Final = 1.0
"""Seconds that calls must wait without interruption before a warning is logged."""

logger: logging.Logger = logging.getLogger("polybus.handlers")

holding: contextvars.ContextVar[CallThreads | None] = contextvars.ContextVar("polybus_holding", default=None)
"""Current call if it may hold a resource, which is the case in its threads and once its first dependency was created."""
_in_thread: contextvars.ContextVar[_ThreadCall | None] = contextvars.ContextVar("polybus_in_thread", default=None)


def holds() -> bool:
    """Return True if the current call must not wait for threads. It, or a handler waiting for it, may hold a resource."""
    call, asked = holding.get(), current_call.get()
    return (call is not None and not call.over) or (asked is not None and asked.asked_by_holder and not asked.ended)


class Threads:
    """Thread slots of a running bus.

    Args:
        runtime: Runtime of the bus.
        limit: Number of slots.
        abandoned: Calls of an earlier run with threads that are still running.
    """

    def __init__(self, runtime: Runtime, limit: int, abandoned: list[_ThreadCall]) -> None:
        self.loop = runtime.loop
        self.abandoned: list[_ThreadCall] = [work for work in abandoned if not work.returned]
        self.unlimited = anyio.CapacityLimiter(math.inf)  # anyio returns its token when the caller is cancelled
        self._runtime = runtime
        self._limit = limit
        self._free = max(1, limit - len(self.abandoned))
        """Number of free slots. Negative if calls have taken slots without waiting."""
        self._line: Line[Any] = Line()
        self._full_since = 0.0
        self._waits: set[anyio.CancelScope] = set()
        self._deadline = math.inf

    async def take(self, owner: tuple[object, object]) -> None:
        if self._free > 0 and not self._line:
            self._free -= 1
            return
        if not self._line:
            self._full_since = self._runtime.time()
            self._runtime.deadlines.watch(self, self._full_since + _FULL)
        waiter = self.loop.waiter()
        self._line.append(waiter, owner)
        try:
            await waiter
        except BaseException:
            if not self._line.remove(waiter):  # woken, but cancelled before it ran
                self.give()
            raise

    def take_at_once(self) -> None:
        self._free -= 1

    def give(self) -> None:
        """Return a slot. It is passed on one event-loop iteration later, because the call may start another thread now."""
        self._free += 1
        if self._line:
            self.loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._free > 0 and self._line:
            self._free -= 1
            self.loop.wake(self._line.pop())

    def expire(self, now: float) -> float:
        if not self._line:
            return math.inf
        if now < self._full_since + _FULL:
            return self._full_since + _FULL
        self._runtime.warnings.warn(
            logger,
            "all %d threads for def handlers and def dependencies have been taken for %.0f s, and %d calls wait for one: raise "
            "Limits.threads, make what waits for others an async def, or let fewer in (Limits.running, handle(running=))",
            self._limit,
            now - self._full_since,
            len(self._line),
            lines=1,
        )
        return math.inf

    async def returned(self, work: _ThreadCall) -> None:
        """Wait for the thread of a call that has ended, until the deadline of `leave`."""
        with anyio.CancelScope(shield=True, deadline=self._deadline) as scope:
            self._waits.add(scope)
            try:
                await work.wait()
            finally:
                self._waits.discard(scope)
        if not work.returned:
            self.abandoned.append(work)

    def leave(self, deadline: float) -> None:
        """Set the deadline for threads to return, because the bus is exiting."""
        self._deadline = deadline
        for scope in self._waits:
            scope.deadline = deadline


class CallThreads(Struct, eq=False):
    """The threads of a handler call. Only one runs at a time."""

    _threads: Threads
    name: str
    owner: tuple[object, object]
    """Network address and peer that the call runs for."""
    holds: bool
    """True if the call may hold a resource and must not wait for threads."""
    over: bool = False
    _work: _ThreadCall | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, and wait until it returns even if the caller is cancelled.

        Exceptions that would end the event loop are raised as `RuntimeError`.
        """
        threads = self._threads
        if self.holds:
            threads.take_at_once()
        else:
            await threads.take(self.owner)
        work = self._work = _ThreadCall(threads, self, function)
        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=threads.unlimited)
        finally:
            try:
                if not work.give_up():
                    await threads.returned(work)
            finally:
                self._work = None
                work.leave()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return the slot while a blocking verb waits in the thread. Called on the event loop."""
        work = self._work
        if work is None:  # the thread has returned but has started another that is still running
            yield
            return
        work.wait_begins()
        try:
            yield
        finally:
            work.wait_ends()


@contextmanager
def waiting_in_thread() -> Iterator[None]:
    """Return the slot while a thread waits for another event loop. Does nothing outside a call."""
    work = _in_thread.get()
    if work is None:
        yield
        return
    work.tell(work.wait_begins)
    try:
        yield
    finally:
        work.tell(work.wait_ends)


class _ThreadCall(Struct, eq=False):
    """A function that runs in a thread and occupies a slot."""

    _threads: Threads
    _call: CallThreads
    _function: Callable[[], Any]
    _ended: anyio.Event | None = None
    _called: bool = False
    _given_up: bool = False
    returned: bool = False
    waited_for: bool = False
    """True if the interpreter joins the thread at exit. This is the case with asyncio but not with trio."""
    _waits: int = 0
    """Number of blocking verbs that are waiting. While there are any, the slot is free."""
    _over: bool = False

    # No lock is necessary between the two threads, because each sets its own flag before it reads the other's.

    def __call__(self) -> Any:
        self._called = True
        self.waited_for = not threading.current_thread().daemon
        _in_thread.set(self)  # in this thread's copy of the context
        holding.set(self._call)
        try:
            return None if self._given_up else self._function()
        except (KeyboardInterrupt, GeneratorExit, StopIteration) as error:
            # A KeyboardInterrupt raised here would end the event loop, although a real one is raised in the main thread. The
            # other exceptions would silently end the coroutines that they pass through.
            raise RuntimeError(f"{self.name} raised {type(error).__name__} in its thread") from error
        finally:
            self.returned = True
            if self._ended is not None:
                self.tell(self._ended.set)

    @property
    def name(self) -> str:
        return self._call.name

    def tell(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._threads.loop.call_from_thread(function)

    def give_up(self) -> bool:
        """Drop the result. Returns True if the function has returned or won't run."""
        self._given_up = True
        return self.returned or not self._called

    async def wait(self) -> None:
        self._ended = anyio.Event()
        if not self.returned:
            await self._ended.wait()

    def wait_begins(self) -> None:
        self._waits += 1
        if self._waits == 1 and not self._over:
            self._threads.give()

    def wait_ends(self) -> None:
        """Take the slot back after the last verb, without waiting, because the thread may hold a lock."""
        self._waits -= 1
        if self._waits == 0 and not self._over:
            self._threads.take_at_once()

    def leave(self) -> None:
        self._over = True
        if self._waits == 0:
            self._threads.give()
