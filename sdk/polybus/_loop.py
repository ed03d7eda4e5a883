"""The two event loops behind one small face: clocks, call-soon and one-shot wake-ups that cost less than an anyio Event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Literal, Protocol

import anyio

__all__ = ["Loop", "Waiter", "effective_deadline", "running_loop"]


class Waiter(Protocol):
    """Something one task waits for once: `await waiter`; woken by `Loop.wake`."""

    def __await__(self) -> Generator[Any, Any, Any]: ...


class Loop(Protocol):
    """What the core needs from an event loop."""

    backend: Literal["asyncio", "trio"]
    time: Callable[[], float]
    waiter: Callable[[], Awaitable[Any]]

    def call_soon(self, function: Callable[[], None], /) -> Any: ...

    def wake(self, waiter: Any) -> None: ...


class AsyncioLoop:
    """asyncio and uvloop: a waiter is a future."""

    backend: Literal["asyncio", "trio"] = "asyncio"
    __slots__ = ("call_soon", "time", "waiter")

    call_soon: Callable[..., Any]
    time: Callable[[], float]
    waiter: Callable[[], Awaitable[Any]]

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.time = loop.time
        self.call_soon = loop.call_soon
        self.waiter = loop.create_future

    @staticmethod
    def wake(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)


class TrioLoop:
    """trio: a waiter parks its task."""

    backend: Literal["asyncio", "trio"] = "trio"
    __slots__ = ("_token", "time", "waiter")

    time: Callable[[], float]
    waiter: Callable[[], Awaitable[Any]]

    def __init__(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        self.time = trio.current_time
        self.waiter = _TrioWaiter

    def call_soon(self, function: Callable[[], None], /) -> None:
        self._token.run_sync_soon(function)

    @staticmethod
    def wake(waiter: _TrioWaiter) -> None:
        waiter.wake()


class _TrioWaiter:
    __slots__ = ("_task", "_woken")

    def __init__(self) -> None:
        self._task: Any = None
        self._woken = False

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            if self._task is not None:
                import trio

                trio.lowlevel.reschedule(self._task)

    def __await__(self) -> Generator[Any, Any, None]:
        import trio

        if self._woken:
            return
        self._task = trio.lowlevel.current_task()

        def abort(_: Any) -> Any:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        parked = trio.lowlevel.wait_task_rescheduled(abort)  # noqa: ASYNC105  # awaited in the next line, as a generator must
        yield from parked.__await__()


def effective_deadline(backend: str) -> Callable[[], float]:
    """`anyio.current_effective_deadline`, without its look for the backend, which costs as much again on every request."""
    if backend == "asyncio":
        try:
            from anyio._backends._asyncio import AsyncIOBackend
        except ImportError:
            pass
        else:
            return AsyncIOBackend.current_effective_deadline
    return anyio.current_effective_deadline


def running_loop() -> Loop:
    """The loop that the caller runs in.

    Raises:
        RuntimeError: Neither asyncio nor trio is running here.
    """
    loop: Any
    try:
        loop = AsyncioLoop()
    except RuntimeError:
        try:
            loop = TrioLoop()
        except (ImportError, RuntimeError):
            raise RuntimeError("a bus needs a running asyncio or trio event loop") from None
    found: Loop = loop
    return found
