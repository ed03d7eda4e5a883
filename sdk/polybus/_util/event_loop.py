"""Both event loops behind one interface: clocks, call-soon and one-shot wake-ups that cost less than an anyio Event."""

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
    """asyncio and uvloop: a waiter, which one task awaits until `wake` completes it, is a future.

    Attributes:
        call_from_thread: `call_soon` for other threads; raises RuntimeError when the loop is closed.
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
        # asyncio's own is a wrapper around that.
        self.time = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        self.call_soon = loop.call_soon
        self.call_from_thread = loop.call_soon_threadsafe
        self.waiter = loop.create_future

    @staticmethod
    def wake(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def is_here(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def is_over(self) -> bool:
        """True if the loop will never run again."""
        return self._loop.is_closed()

    def interrupt(self, error: KeyboardInterrupt) -> bool:
        """Pass a KeyboardInterrupt raised in one of our tasks to the program. False if the loop accepts none.

        The tasks are unchanged, so that they can end in an orderly way, or continue if the loop is run again.
        """
        if not _as_a_signal():
            self.call_soon(_raise, error)
        return True


def accept_past_times(loop: asyncio.AbstractEventLoop) -> None:
    """Let `call_at` of a loop accept a time in the past, as asyncio's own loops do.

    Pyodide's raises ValueError instead. anyio passes such a time if a deadline expires between its look at the clock and the
    call: that timeout would never fire.
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
    """trio, with the interface of `AsyncioLoop`: a waiter parks its task."""

    backend: Literal["asyncio", "trio"] = "trio"
    __slots__ = ("_token", "time", "waiter")

    time: Callable[[], float]
    waiter: Callable[[], Awaitable[Any]]

    def __init__(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        self.time = trio.lowlevel.current_clock().current_time  # `trio.current_time` looks up the clock at every call
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

        # trio then raises it in its main task, not here.
        return trio.lowlevel.enable_ki_protection(_as_a_signal)()


def _as_a_signal() -> bool:
    """Do what Ctrl-C does if a loop or a program has its own handler. True if there is one."""
    import signal

    ways = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) in ways:
        return False
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        # The handler raised here, at the current position: treat it as missing. (trio cannot move it elsewhere, and ends the
        # same way when another program's handler raises in one of trio's own tasks.)
        return False
    return True


def _raise(error: BaseException) -> None:
    raise error


def _trio_runs() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def _nothing() -> None:
    """No-op: the call proves that calls are accepted."""


@define(eq=False, repr=False, weakref_slot=False)
class _TrioWaiter:
    _trio: Any
    """`trio.lowlevel`: an import here would run for each message."""
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


@define(eq=False, repr=False, weakref_slot=False)
class Notifier:
    """Wakes tasks that wait for a condition. Costs nothing if none waits."""

    _loop: Loop
    waiting: list[Any] = field(factory=list, init=False)
    """Waiters of the waiting tasks. Without any, a signal has no effect."""

    def signal(self) -> None:
        """Let the waiting tasks check their conditions."""
        if self.waiting:
            waiting, self.waiting = self.waiting, []
            for waiter in waiting:
                self._loop.wake(waiter)

    async def wait(self) -> None:
        waiter = self._loop.waiter()
        self.waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self.waiting:
                self.waiting.remove(waiter)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that can only become true together with a signal."""
        while not condition():
            await self.wait()


def wrong_event_loop() -> LocalProtocolError:
    """Error for a call from another event loop or thread."""
    return LocalProtocolError(
        "this bus runs in another event loop, and its verbs may be called there only: in a thread use polybus.sync or "
        "anyio.from_thread.run, `bus: BusDep` in a def endpoint of FastAPI, and a bus of its own in another event loop"
    )


def running_loop() -> Loop:
    """The loop of the caller.

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
    """True if an exception from the application's code is its own: not a cancellation of the current task, nor a request to
    end the program.

    A cancellation without a request to this task comes from awaiting something cancelled elsewhere. `GeneratorExit` is
    Python's in coroutines closed after the end of their event loop; in a running loop the application raised it.
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
