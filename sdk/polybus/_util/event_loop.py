"""Gives asyncio and trio a common interface, with clocks, call-soon, and one-shot wake-ups cheaper than an `anyio.Event`."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal, TypeAlias

from attrs import define, field

from ..errors import LocalProtocolError


class AsyncioLoop:
    """asyncio or uvloop. `waiter` creates an awaitable for a single task, which `wake` completes.

    Attributes:
        call_from_thread: Thread-safe `call_soon`. Raises `RuntimeError` if the loop is closed.
    """

    backend: Literal["asyncio", "trio"] = "asyncio"
    __slots__ = ("_loop", "call_from_thread", "call_soon", "time", "waiter")

    call_soon: Callable[..., Any]
    call_from_thread: Callable[..., Any]
    time: Callable[[], float]
    waiter: Callable[[], asyncio.Future[Any]]

    def __init__(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        if sys.platform == "emscripten":
            accept_past_times(loop)
        # asyncio's own clock is a wrapper around time.monotonic, and `create_future` is one around the class.
        self.time = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self.call_soon = loop.call_soon
        self.call_from_thread = loop.call_soon_threadsafe
        self.waiter = loop.create_future
        if type(loop).create_future is asyncio.BaseEventLoop.create_future:
            self.waiter = partial(asyncio.Future, loop=loop)

    def wake(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def is_here(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def is_over(self) -> bool:
        """True if the loop will never run again."""
        return self._loop.is_closed()

    def interrupt(self, error: KeyboardInterrupt) -> bool:
        """Pass a KeyboardInterrupt from one of our tasks to the program. Returns False if the loop cannot do that.

        Tasks continue, so that they can shut down, or go on if the program runs the loop again.
        """
        if not _as_a_signal():
            self.call_soon(_raise, error)
        return True


def accept_past_times(loop: asyncio.AbstractEventLoop) -> None:
    """Make a loop's `call_at` accept times in the past, as asyncio's own loops do.

    Pyodide's loop raises `ValueError`. anyio passes such a time if a deadline expires just before the call, and the timeout
    would then never fire.
    """
    if isinstance(loop, asyncio.BaseEventLoop) or "call_at" in vars(loop):  # already patched
        return
    call_later, time = loop.call_later, loop.time

    def call_at(
        when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return call_later(max(0.0, when - time()), callback, *args, context=context)

    vars(loop)["call_at"] = call_at


class TrioLoop:
    """trio, with the same interface as `AsyncioLoop`."""

    backend: Literal["asyncio", "trio"] = "trio"
    __slots__ = ("_token", "time", "waiter")

    time: Callable[[], float]
    waiter: Callable[[], _TrioWaiter]

    def __init__(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        self.time = trio.lowlevel.current_clock().current_time  # `trio.current_time` looks up the clock at every call
        self.waiter = partial(_TrioWaiter, trio.lowlevel)

    def call_soon(self, function: Callable[..., Any], /, *args: Any) -> None:
        self._token.run_sync_soon(function, *args)

    call_from_thread = call_soon

    def wake(self, waiter: _TrioWaiter) -> None:
        waiter.wake()

    def is_here(self) -> bool:
        import trio

        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def is_over(self) -> bool:
        try:
            self._token.run_sync_soon(lambda: None)
        except RuntimeError:
            return True
        return False

    @staticmethod
    def interrupt(error: KeyboardInterrupt) -> bool:
        import trio

        # With protection, trio raises the exception in its main task and not here.
        return trio.lowlevel.enable_ki_protection(_as_a_signal)()


def _as_a_signal() -> bool:
    """Raise SIGINT if the loop or the program has its own handler. Returns True if it does."""
    import signal

    ways = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) in ways:
        return False
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        # Treat a handler that raises here as missing. trio behaves in the same way if a handler raises in one of its own tasks.
        return False
    return True


def _raise(error: BaseException) -> None:
    raise error


@define(eq=False, repr=False, weakref_slot=False)
class _TrioWaiter:
    _trio: Any
    """Module `trio.lowlevel`. Importing it in each function would cost time for every message."""
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

    __iter__ = __await__  # for `yield from waiter` in `Reply.__await__`, like a future's

    def _abort(self, _: Any) -> Any:
        self._task = None
        return self._trio.Abort.SUCCEEDED


Loop: TypeAlias = AsyncioLoop | TrioLoop


@define(eq=False, repr=False, weakref_slot=False)
class Notifier:
    """Wakes tasks that are waiting for a condition."""

    _waiter: Callable[[], Any]
    """Function that returns an awaitable, such as `AsyncioLoop.waiter`. `_wake` completes the awaitable."""
    _wake: Callable[[Any], None]
    waiting: list[Any] = field(factory=list, init=False)

    def signal(self) -> None:
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for waiter in waiting:
                self._wake(waiter)

    async def wait(self) -> None:
        waiter = self._waiter()
        self.waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self.waiting:
                self.waiting.remove(waiter)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, checking it after each `signal`."""
        while not condition():
            await self.wait()


def wrong_event_loop() -> LocalProtocolError:
    """Return the error for a call from another event loop or thread."""
    return LocalProtocolError(
        "this bus runs in another event loop, and its methods can only be called there: in a thread, use polybus.sync or "
        "anyio.from_thread.run, in a FastAPI def endpoint `bus: BusDep`, and in another event loop a separate bus"
    )


def running_loop() -> Loop:
    """Return the caller's event loop. Raises `RuntimeError` if neither asyncio nor trio is running here."""
    try:
        return AsyncioLoop()
    except RuntimeError:
        try:
            return TrioLoop()
        except (ImportError, RuntimeError):
            raise RuntimeError("a bus needs a running asyncio or trio event loop") from None


def is_foreign_exception(error: BaseException) -> bool:
    """Return True if application code raised the exception itself, so that it is not a cancellation or the end of the program.

    `CancelledError` counts if the current task wasn't cancelled, because the application then awaited something that was.
    `GeneratorExit` counts only while the event loop is running. Later, Python raises it when it closes coroutines.
    """
    if isinstance(error, KeyboardInterrupt):
        return False
    trio = sys.modules.get("trio")
    if isinstance(error, GeneratorExit):
        return asyncio._get_running_loop() is not None or (trio is not None and trio.lowlevel.in_trio_run())
    if trio is not None and isinstance(error, trio.Cancelled):
        return False
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # on trio
            return True
        return task is None or not task.cancelling()
    return True
