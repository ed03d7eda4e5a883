"""Provides values for `Depends` parameters. They are created before a call and cleaned up before its answer is sent."""

from __future__ import annotations

import contextvars
import inspect
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
from attrs import define, field
from msgspec import Struct

from ..._util.logs import log_fields
from .context import Context
from .threads import holding

if TYPE_CHECKING:
    from ...message import Message
    from .services import Services
    from .threads import CallThreads

logger: logging.Logger = logging.getLogger("polybus")

ProviderStyle: TypeAlias = Literal["async", "plain", "async generator", "generator"]
"""Kind of a dependency function. ``plain`` functions and generators run in threads."""
Maker: TypeAlias = "Callable[[Callable[[], Context], Message, None], Any]"
Bound: TypeAlias = "Callable[[CallThreads | None], Callable[..., Any]]"
"""Function that binds the other arguments of a handler, for a call with these threads."""

_CLEAN_UP: Final = 5.0
"""Maximum number of seconds for cleaning up a cancelled call or stream."""


class Provider(Struct, eq=False):
    """A dependency function with instructions for creating its arguments."""

    function: Callable[..., Any]
    name: str
    style: ProviderStyle
    in_thread: bool
    makers: list[tuple[str, Maker]] = []
    needs: list[tuple[str, Provider]] = []
    cached: bool = True
    """True if the value is created only once per call."""


class Injection(Struct, eq=False):
    handler: str
    needs: list[tuple[str, Provider]]

    @asynccontextmanager
    async def prepared(
        self, bound: Bound, services: Services, context: Context
    ) -> AsyncIterator[tuple[CallThreads | None, Callable[[], Any]]]:
        """Create the values for a call, and clean them up in reverse order on exit. Returns the function with all arguments.

        If `bound` raises `Misfit`, no values are created. An exception in the block is raised in each dependency, as in nested
        ``with`` statements. A dependency can replace the exception but cannot suppress it. After a cancellation, the clean-up
        may take `_CLEAN_UP` seconds.

        Raises:
            Exception: If a dependency or its clean-up raises it.
        """
        threads = services.executor.threads_of(self.handler, context.message)
        function = bound(threads)
        scope = anyio.CancelScope()  # outside of any scope that dependencies open
        call = _Call(self.handler, services, context, scope, threads)
        with scope:
            try:
                yield threads, partial(function, **{name: await call.value(provider) for name, provider in self.needs})
            except BaseException as error:
                await call.leave(error)
            else:
                await call.leave(None)
        if scope.cancelled_caught:  # the clean-up took too long, but the call is still cancelled
            if call.cancelled is not None:
                raise call.cancelled
            await anyio.lowlevel.checkpoint()

    async def call(self, bound: Bound, services: Services, context: Context, *, in_thread: bool) -> Any:
        async with self.prepared(bound, services, context) as (threads, function):
            result = await services.executor.in_a_thread(threads, function) if in_thread else function()
            return await result if inspect.isawaitable(result) else result

    @asynccontextmanager
    async def items(self, bound: Bound, services: Services, context: Context) -> AsyncIterator[Any]:
        """Call a generator function. The values exist until the block exits."""
        async with self.prepared(bound, services, context) as (_, function):
            items = function()
            yield await items if inspect.isawaitable(items) else items


class _Call(Struct, eq=False):
    _handler: str
    _services: Services
    _context: Context
    _scope: anyio.CancelScope
    _threads: CallThreads | None
    _held: contextvars.Token[CallThreads | None] | None = None
    _made: dict[Callable[..., Any], Any] = {}
    _entered: list[AbstractAsyncContextManager[Any]] = []
    cancelled: BaseException | None = None

    async def value(self, provider: Provider) -> Any:
        key = provider.function
        if provider.cached and key in self._made:
            return self._made[key]
        cached = provider.cached
        provider, message = self._services.override_of(key) or provider, self._context.message
        arguments = {name: make(partial(self._context_for, provider), message, None) for name, make in provider.makers}
        for name, needed in provider.needs:
            arguments[name] = await self.value(needed)
        value = await self._make(provider, arguments)
        self._holds()
        if cached:
            self._made[key] = value
        return value

    def _context_for(self, provider: Provider) -> Context:
        return self._services.executor.thread_context(self._context, self._threads) if provider.in_thread else self._context

    def _holds(self) -> None:
        """Mark this call as possibly holding a resource, so that it does not wait for threads."""
        if self._threads is not None and self._held is None:
            self._threads.holds, self._held = True, holding.set(self._threads)

    async def _make(self, provider: Provider, arguments: Mapping[str, Any]) -> Any:
        function = partial(provider.function, **arguments)
        if provider.style == "async":
            return await function()
        if provider.style == "plain":
            return await self._services.executor.in_a_thread(self._threads, function)
        held: AbstractAsyncContextManager[Any]
        if provider.style == "generator":
            held = _HeldInThread(self._services, self._threads, contextmanager(function)())
        else:
            held = asynccontextmanager(function)()
        try:
            value = await held.__aenter__()
        except BaseException:
            if isinstance(held, _HeldInThread) and held.context is not None:  # cancelled while the thread entered it
                self._entered.append(held)
                self._holds()
            raise
        self._entered.append(held)
        return value

    async def leave(self, error: BaseException | None) -> None:
        """Clean up in reverse order, then raise `error`, or an exception from a clean-up instead."""
        while self._entered:
            if not self._scope.shield and _is_cancelled(error):
                self.cancelled = error
                self._scope.shield, self._scope.deadline = True, anyio.current_time() + _CLEAN_UP
            try:
                await self._entered.pop().__aexit__(
                    type(error) if error else None, error, error.__traceback__ if error else None
                )
            except BaseException as another:
                error = another
                if self._scope.cancel_called:
                    text = "clean-up after a call of %s, which was cancelled, took more than %g s"
                    fields = log_fields(message=self._context.message, handler=self._handler)
                    logger.error(text, self._handler, _CLEAN_UP, extra=fields)
        if self._threads is not None:
            self._threads.over = True
        if self._held is not None:
            with suppress(ValueError):  # if another task closes the stream
                holding.reset(self._held)
        if error is not None:
            raise error


def _is_cancelled(error: BaseException | None) -> bool:
    """Return True if a call was cancelled, even if it suppressed the cancellation, or if its task is ending."""
    return isinstance(error, anyio.get_cancelled_exc_class()) or anyio.current_effective_deadline() == -math.inf


@define(eq=False, repr=False)
class _HeldInThread(AbstractAsyncContextManager[Any]):
    """Runs a plain generator's context manager in threads, but in a single context so that it can reset context variables."""

    _services: Services
    _threads: CallThreads | None
    _held: AbstractContextManager[Any]
    context: contextvars.Context | None = field(default=None, init=False)
    """Set once the context manager is entered."""

    async def __aenter__(self) -> Any:
        return await self._services.executor.in_a_thread(self._threads, self._enter)

    def _enter(self) -> Any:
        context = contextvars.copy_context()
        value = context.run(self._held.__enter__)
        self.context = context
        return value

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        context = self.context
        assert context is not None
        leave: Callable[[], Any] = lambda: context.run(self._held.__exit__, kind, error, trace)  # noqa: E731  # pyright: partial
        return bool(await self._services.executor.in_a_thread(self._threads, leave))


class InjectedStream(Struct, frozen=True):
    """The result of a stream handler with dependencies."""

    items: AbstractAsyncContextManager[Any]
