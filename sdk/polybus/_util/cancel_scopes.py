"""Deadlines of the cancel scopes around a caller, needed for each request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

import anyio
import anyio.lowlevel

from .._validation import seconds
from .event_loop import running_loop

if TYPE_CHECKING:
    from .event_loop import Loop

T = TypeVar("T")

EARLY: Final = 0.05
"""A peer may see a deadline pass this many seconds before we do."""


def effective_deadline(loop: Loop) -> Callable[[], float]:
    """`anyio.current_effective_deadline` for callers in the thread of `loop`, which saves a tenth of a request.

    The returned function raises `RuntimeError` if the loop is not running.
    """
    if loop.backend == "asyncio":
        return _asyncio_walk(asyncio.get_running_loop())
    import trio

    walk = _walk_over_statuses(trio.lowlevel.current_task)
    return walk if _trio_agrees(trio.lowlevel.current_task) else trio.current_effective_deadline


def _asyncio_walk(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Walk over the scopes as anyio does, without its search for the task; falls back to anyio's for other versions of it."""
    try:
        from anyio._backends._asyncio import _task_states
    except ImportError:
        return anyio.current_effective_deadline
    state_of = getattr(_task_states, "data", {}).get  # without the Python wrapper around the dictionary's own method
    return _walk_over_tasks(state_of, loop) if _asyncio_agrees(state_of) else anyio.current_effective_deadline


def _walk_over_tasks(state_of: Callable[[ref[asyncio.Task[Any]]], Any], loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    running = asyncio.get_running_loop
    # With the loop as its argument, it need not ask the system for the process. Use the C function without its Python
    # wrapper.
    current_task: Callable[[asyncio.AbstractEventLoop], Any] = asyncio.current_task
    table = getattr(asyncio.tasks, "_current_tasks", None)
    if isinstance(table, dict) and table.get(loop) is current_task(loop) is not None:
        current_task = table.get

    def deadline() -> float:
        task = current_task(loop)
        if task is None:
            if running() is not loop:  # raises if none runs
                raise RuntimeError("the event loop does not run here")
            return math.inf
        state = state_of(ref(task))
        scope: Any = None if state is None else state.cancel_scope
        nearest = math.inf
        while scope is not None:
            if scope._cancel_called:
                return -math.inf
            if (end := scope._deadline) < nearest:
                nearest = end
            if scope._shield:
                break
            scope = scope._parent_scope
        return nearest

    return deadline


@lru_cache(maxsize=1)  # as long as anyio is the same
def _asyncio_agrees(state_of: Callable[[ref[asyncio.Task[Any]]], Any]) -> bool:
    return _agree(_walk_over_tasks(state_of, asyncio.get_running_loop()))


def _walk_over_statuses(current_task: Callable[[], Any]) -> Callable[[], float]:
    """Walk over the scopes as trio does, without two calls for each."""

    def deadline() -> float:
        status = current_task()._cancel_status
        if status.effectively_cancelled:
            return -math.inf
        nearest = math.inf
        while status is not None:
            scope = status._scope
            if (end := scope._deadline) < nearest:
                nearest = end
            if scope._shield:
                break
            status = status._parent
        return nearest

    return deadline


@lru_cache(maxsize=1)
def _trio_agrees(current_task: Callable[[], Any]) -> bool:
    return _agree(_walk_over_statuses(current_task))


def _agree(deadline: Callable[[], float]) -> bool:
    """Compare our walk with the library's; if its internals have changed, its own function is used."""
    official = anyio.current_effective_deadline
    soon = anyio.current_time() + 5000
    try:
        same = deadline() == official()
        with anyio.CancelScope(deadline=soon), anyio.CancelScope(shield=True) as inner:  # noqa: ASYNC100
            same = same and deadline() == official()
            inner.shield = False
            same = same and deadline() == official()
            inner.cancel()
            same = same and deadline() == official()
    except (AttributeError, TypeError):
        return False
    return same


async def to_the_end(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call a function that must not be interrupted, such as the end of a bus, and raise the caller's cancellation afterwards.

    A shielded scope keeps anyio's cancellations away. Those of asyncio itself (`asyncio.timeout`, a `TaskGroup`,
    `Task.cancel`) pass through it, so there the function runs in its own task. Such a cancellation comes only once: a caller
    that caught an error of the function instead, and tried again, would never end. So the cancellation is raised, and the
    error goes to the event loop's handler.

    Raises:
        BaseException: Errors of the function.
    """
    call = _called(function, args)
    if running_loop().backend != "asyncio":
        results: list[T] = []
        with anyio.CancelScope(shield=True):
            results.append(await call)
        return results[0]
    loop = asyncio.get_running_loop()
    task = loop.create_task(call)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is None:
        return task.result()
    try:
        task.result()
    except Exception as error:
        loop.call_exception_handler({"message": "cleaning up failed while the task was cancelled", "exception": error})
        raise cancelled from error
    raise cancelled


async def _called(function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    return await function(*args)


async def let_scope_fire(told: float = math.inf) -> None:
    """Let the enclosing scope, or the one that lasts until `told`, cancel the caller if its deadline has come, or nearly.

    The peer knows that deadline, and its time-out error may arrive first: its clock is a little faster, or this event loop
    was busy. The application that wrote the scope expects the scope to fire, not an exception.
    """
    deadline, now = min(anyio.current_effective_deadline(), told), anyio.current_time()
    if deadline <= now + EARLY:
        await anyio.sleep(max(deadline - now, 0.0) + EARLY)
        # uvloop, with a clock in milliseconds, checks the scope repeatedly. If it was busy, it ends this sleep first.
        await anyio.lowlevel.checkpoint()


async def receive(items: AsyncIterator[Any], timeout: float | None) -> Any:
    """Wait for the next item.

    Raises:
        TimeoutError, EOFError, BusError, TypeError, ValueError: As `Subscription.receive`.
    """
    most = math.inf if timeout is None else seconds(timeout, endless=True)
    try:
        with anyio.fail_after(most):
            return await anext(items)
    except StopAsyncIteration:
        raise EOFError("it has ended: there will be no more") from None
    except TimeoutError as error:
        if type(error) is TimeoutError:  # DeadlineExceeded says more
            raise TimeoutError(f"nothing came within {most:g} s") from None
        raise
