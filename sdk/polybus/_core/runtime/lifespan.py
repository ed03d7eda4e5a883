"""The lifespan of a bus: the application's own context manager, in a task of its own.

It is entered and left in that task, and no cancel scope of the bus is opened in between: so it may hold task groups, and the
bus may be entered in one task and left in another.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import anyio
from attrs import define, field

from ..._validation import check_callable, shown
from ...errors import LocalProtocolError

if TYPE_CHECKING:
    from .runtime import Runtime

logger: logging.Logger = logging.getLogger("polybus")

_within: contextvars.ContextVar[tuple[Runtime, ...]] = contextvars.ContextVar("polybus_within", default=())


def check_lifespan(function: Any) -> None:
    """Raise TypeError for what cannot be called as ``lifespan(bus)``, or gives no async context manager."""
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"lifespan={shown(function)}: write @asynccontextmanager (of contextlib) before it")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"lifespan={shown(function)}: it gives no async context manager; @asynccontextmanager makes one")
    check_callable(function, "lifespan", "lifespan(bus)", 1)


def within(runtime: Runtime | None) -> bool:
    """Check that the caller is the lifespan of a running bus, or a task that it started."""
    return runtime in _within.get()


def raised_by_lifespan(error: BaseException) -> bool:
    """Check that an error comes from a bus's lifespan, and not from the bus or its user."""
    own = LifespanTask._run.__code__
    return any(frame.f_code is own for frame, _ in traceback.walk_tb(error.__traceback__))


@define(eq=False)
class LifespanTask:
    """One run of a lifespan."""

    _bus: Any
    _runtime: Runtime
    _function: Callable[[Any], AbstractAsyncContextManager[Any]]
    _failed: Callable[[], Awaitable[None]]
    """Called when it ends with an exception before its end was asked for: a task group in it has failed."""
    _scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    """Set once it has yielded, or is over."""
    _stop: anyio.Event = field(factory=anyio.Event, init=False)
    _over: anyio.Event = field(factory=anyio.Event, init=False)
    _yielded: bool = field(default=False, init=False)
    _state: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    """The exception that it raised."""

    async def start(self) -> Any:
        """Run it to its yield, and give what it yields.

        Raises:
            LocalProtocolError: The bus was closed meanwhile.
            BaseException: Whatever it raises.
        """
        self._runtime.spawn(self._run)
        try:
            await self._changed.wait()
            if self._scope.cancel_called:  # it may have yielded all the same
                await self._over.wait()
        except BaseException:
            await self.abort()
            raise
        if self.error is not None:
            raise self.error
        if self._scope.cancel_called or not self._yielded:
            raise LocalProtocolError("the bus was closed while its lifespan began")
        return self._state

    async def stop(self, patience: float) -> None:
        """Let it come to its end; after `patience` seconds it is cancelled.

        Raises:
            BaseException: Whatever it raises.
        """
        self._stop.set()
        with anyio.move_on_after(patience):
            await self._over.wait()
        if not self._over.is_set():
            logger.error("the lifespan of a bus has not come to its end in %g s and is cancelled", patience)
            await self.abort()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Let it end as soon as it waits."""
        self._scope.cancel()

    async def abort(self) -> None:
        """Cancel it, and wait for its end."""
        self.cancel()
        with anyio.CancelScope(shield=True):
            await self._over.wait()

    async def _run(self) -> None:
        _within.set((*_within.get(), self._runtime))
        try:
            with self._scope:
                async with self._function(self._bus) as self._state:
                    self._yielded = True
                    self._changed.set()
                    await self._stop.wait()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            self.error = error
            if self._yielded and not self._stop.is_set():
                logger.error("the lifespan of a bus has failed, which closes the bus", exc_info=error)
                await self._failed()
        finally:
            self._over.set()
            self._changed.set()
