"""The two event loops behind one interface: clocks, call-soon and one-shot wake-ups that cost less than an anyio Event."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Literal, TypeAlias

from attrs import define, field

from ..errors import LocalProtocolError


class AsyncioLoop:
    """asyncio and uvloop: a waiter, which one task awaits until it is handed to `wake`, is a future.

    Attributes:
        call_from_thread: `call_soon` for other threads; raises RuntimeError when the loop is over.
    """

    backend: Literal["asyncio", "trio"] = "asyncio"
    __slots__ = ("_loop", "call_from_thread", "call_soon", "time", "waiter")

    call_soon: Callable[..., Any]
    call_from_thread: Callable[..., Any]
    time: Callable[[], float]
    waiter: Callable[[], Awaitable[Any]]

    def __init__(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        if sys.platform == "emscripten":
            accept_past_times(loop)
        # asyncio's own is a function around that.
        self.time = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self.call_soon = loop.call_soon
        self.call_from_thread = loop.call_soon_threadsafe
        self.waiter = loop.create_future

    @staticmethod
    def wake(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def is_here(self) -> bool:
        """Check that the caller runs in this loop."""
        return asyncio._get_running_loop() is self._loop

    def is_over(self) -> bool:
        """Check that the loop will never run again."""
        return self._loop.is_closed()

    def interrupt(self, error: KeyboardInterrupt) -> bool:
        """Pass a request to end the program, which a task of ours got, on to the program. False where it takes none.

        Its tasks stay as they are, so that they may come to an orderly end, or go on where the loop is run again.
        """
        if not _as_a_signal():
            self.call_soon(_raise, error)
        return True


def accept_past_times(loop: asyncio.AbstractEventLoop) -> None:
    """Let `call_at` of a loop accept a time that has passed, as asyncio's own loops do.

    Pyodide's raises ValueError instead, and anyio asks for such a time when a deadline passes between its look at the clock and
    the call: that timeout would never come.
    """
    if isinstance(loop, asyncio.BaseEventLoop) or "call_at" in vars(loop):  # it has been done
        return
    call_later, time = loop.call_later, loop.time

    def call_at(
        when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return call_later(max(0.0, when - time()), callback, *args, context=context)

    vars(loop)["call_at"] = call_at


class TrioLoop:
    """trio, with the interface of `AsyncioLoop`: a waiter parks its task."""

    backend: Literal["asyncio", "trio"] = "trio"
    __slots__ = ("_token", "time", "waiter")

    time: Callable[[], float]
    waiter: Callable[[], Awaitable[Any]]

    def __init__(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        self.time = trio.lowlevel.current_clock().current_time  # `trio.current_time` finds the clock anew at every call
        self.waiter = partial(_TrioWaiter, trio.lowlevel)

    def call_soon(self, function: Callable[..., Any], /, *args: Any) -> None:
        self._token.run_sync_soon(function, *args)

    call_from_thread = call_soon

    @staticmethod
    def wake(waiter: _TrioWaiter) -> None:
        waiter.wake()

    def is_here(self) -> bool:
        import trio

        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def is_over(self) -> bool:
        try:
            self._token.run_sync_soon(_nothing)
        except RuntimeError:
            return True
        return False

    @staticmethod
    def interrupt(error: KeyboardInterrupt) -> bool:
        import trio

        # trio raises it in its main task then, and not here.
        return trio.lowlevel.enable_ki_protection(_as_a_signal)()


def _as_a_signal() -> bool:
    """Do what Ctrl-C does, where a loop or a program handles it in its own way. True if there is such a way."""
    import signal

    ways = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) in ways:
        return False
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        # Its way is to raise it where the program happens to be, which is here: as if there were none. (trio has no call
        # that takes it elsewhere, and ends as it does when another program's handler raises it in one of trio's own tasks.)
        return False
    return True


def _raise(error: BaseException) -> None:
    raise error


def _trio_runs() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def _nothing() -> None:
    """Do nothing: the call shows that calls are taken."""


@define(eq=False, weakref_slot=False)
class _TrioWaiter:
    _trio: Any
    """`trio.lowlevel`: an import here would be one for each message."""
    _task: Any = None
    _woken: bool = False

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            if self._task is not None:
                self._trio.reschedule(self._task)

    def __await__(self) -> Generator[Any, Any, None]:
        if self._woken:
            return
        self._task = self._trio.current_task()
        parked = self._trio.wait_task_rescheduled(self._abort)  # awaited in the next line, as a generator must
        yield from parked.__await__()

    def _abort(self, _: Any) -> Any:
        self._task = None
        return self._trio.Abort.SUCCEEDED


Loop: TypeAlias = AsyncioLoop | TrioLoop


@define(eq=False, weakref_slot=False)
class Notifier:
    """Wakes tasks that wait for a condition. Costs nothing while none waits."""

    _loop: Loop
    waiting: list[Any] = field(factory=list, init=False)
    """The waiters of the tasks that wait. Where there are none, a signal is for nobody."""

    def signal(self) -> None:
        """Let the tasks that wait look at their conditions."""
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for waiter in waiting:
                self._loop.wake(waiter)

    async def wait(self) -> None:
        """Wait for the next signal."""
        waiter = self._loop.waiter()
        self.waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self.waiting:
                self.waiting.remove(waiter)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that can only come true together with a signal."""
        while not condition():
            await self.wait()


def wrong_event_loop() -> LocalProtocolError:
    """Make the error of a call from another event loop or thread."""
    return LocalProtocolError(
        "this bus runs in another event loop, and its verbs may be called there only: in a thread use polybus.sync or "
        "anyio.from_thread.run, `bus: BusDep` in a def endpoint of FastAPI, and a bus of its own in another event loop"
    )


def running_loop() -> Loop:
    """Find the loop that the caller runs in.

    Raises:
        RuntimeError: Neither asyncio nor trio is running here.
    """
    try:
        return AsyncioLoop()
    except RuntimeError:
        try:
            return TrioLoop()
        except (ImportError, RuntimeError):
            raise RuntimeError("a bus needs a running asyncio or trio event loop") from None


def is_foreign_exception(error: BaseException) -> bool:
    """Check that an exception out of the application's code is its own: not a cancellation of the task it runs in, nor a
    request to end the program.

    A cancellation that this task was not asked for comes of awaiting what was cancelled elsewhere. Of coroutines that are
    closed because their event loop is over, `GeneratorExit` is Python's; in an event loop that runs the application raised it.
    """
    if isinstance(error, KeyboardInterrupt):
        return False
    if isinstance(error, GeneratorExit):
        return asyncio._get_running_loop() is not None or _trio_runs()
    trio = sys.modules.get("trio")
    if trio is not None and isinstance(error, trio.Cancelled):
        return False
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # on trio
            return True
        return task is None or not task.cancelling()
    return True
