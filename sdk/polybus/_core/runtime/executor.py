"""Runs handlers with their middleware, in threads if necessary, and reports failures."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from ..._util.broadcast import KEPT
from ..._util.logs import log_fields
from ..._util.sources import sources
from ..._validation import in_one_line, name_of, shown
from ...events import HandlerFailed
from ...message import Kind, Message
from ...outcomes import described
from ...plugins.extensions import core_of
from .context import Context
from .threads import CallThreads, Threads, holds

if TYPE_CHECKING:
    from .ports import RequestHandler
    from .runtime import Runtime
    from .services import Services

CallNext: TypeAlias = Callable[[Message], Awaitable[Any]]
"""Function that a middleware calls to run the next middleware or the handler."""
Middleware: TypeAlias = Callable[[Message, Context, CallNext], Awaitable[Any]]
"""``async def middleware(message, ctx, call_next)``, which returns the result of ``await call_next(message)``."""

logger: logging.Logger = logging.getLogger("polybus")

_LONGEST: Final = 4000
"""Maximum length of an error message in the log, because it may come from a peer."""
_NO_THREADS = sys.platform == "emscripten"


_OF_HTTP: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    503: "Unavailable",
}


def _advice(error: BaseException) -> str:
    """Return advice to raise a polybus error instead of an ``HTTPException``, or an empty string."""
    status = getattr(error, "status_code", None)
    if type(error).__name__ != "HTTPException" or type(status) is not int:
        return ""
    return f": on the bus raise polybus.{_OF_HTTP.get(status, 'RequestError')} in its place"


async def _beyond_middleware(call: Callable[[Message], Awaitable[Any]], original: Message, message: Message) -> Any:
    """Call the handler. In tracebacks, this frame separates errors of the handler from errors of middleware."""
    if message is not original:  # if a middleware replaced the message, answer headers are still shared
        message.answer_headers = Context(None, original).answer_headers
    return await call(message)


def _code_of(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def _owner_of(peer: Any) -> tuple[object, object]:
    """Return a message's address (or link) and peer, or (None, None) if this bus sent it."""
    link = None if peer is None else core_of(peer).link
    return (link if link is None or link.share is None else link.share.address), peer


class HandlerExecutor:
    context_in_a_thread: Callable[[Any, Message, float | None, str | int, CallThreads | None], Context]
    """Creates the `Context` for a `def` handler. Set by a higher layer."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.middleware: list[Middleware] = []
        self._proven: set[int] = set()
        """Ids of middleware functions that have returned an answer."""
        self._threads: Threads | None = None

    def start(self, runtime: Runtime) -> None:
        abandoned = [] if self._threads is None else self._threads.abandoned
        self._threads = Threads(runtime, self._services.limits.threads, abandoned)

    def leave(self, deadline: float) -> None:
        """Abandon threads that do not return before the deadline."""
        if self._threads is not None:
            self._threads.leave(deadline)

    @property
    def threads_left(self) -> list[tuple[str, bool]]:
        """Names of handlers with threads that outlived the bus, and True if the interpreter waits for the thread."""
        abandoned = [] if self._threads is None else self._threads.abandoned
        return [(work.name, work.waited_for) for work in abandoned if not work.returned]

    def run(self, handler: RequestHandler, message: Message, deadline: float | None) -> Awaitable[Any]:
        """Run a handler with all middleware, and check its answer if checks are on. Errors may be raised before awaiting."""
        call: Callable[[Message], Awaitable[Any]] = partial(self._call, handler, deadline=deadline)
        if self._services.check_answers and message.kind is Kind.REQUEST:
            call = partial(self._checked, handler, deadline=deadline)
        elif handler.style == "async":
            call = partial(handler.invoke, self._services, deadline=deadline)
        return self.around(handler, message, deadline, call)

    def around(
        self, handler: RequestHandler, message: Message, deadline: float | None, call: Callable[[Message], Awaitable[Any]]
    ) -> Awaitable[Any]:
        """Run a call with all middleware. For streams and channels, this includes sending the items."""
        middleware, bus, pattern = self.middleware, self._services.bus, handler.subject
        if not middleware:
            return call(message)

        def step(index: int, current: Message) -> Awaitable[Any]:
            if current is not message:
                current.answer_headers = Context(None, message).answer_headers
            function = middleware[index]
            innermost = index + 1 == len(middleware)
            call_next = partial(_beyond_middleware, call, message) if innermost else partial(step, index + 1)
            context = Context(bus, current, deadline, pattern)
            if message.kind is Kind.REQUEST and id(function) not in self._proven:
                return self._watched(function, current, context, call_next)
            return function(current, context, call_next)

        return step(0, message)

    async def _watched(self, middleware: Middleware, message: Message, context: Context, call_next: CallNext) -> Any:
        """Run a middleware that has not returned an answer before, and warn if it forgets to return the handler's answer."""
        below: Any = None

        async def watched_next(message: Message) -> Any:
            nonlocal below
            below = await call_next(message)
            return below

        running = middleware(message, context, watched_next)
        if not inspect.isawaitable(running):
            raise TypeError(
                f"the middleware {name_of(middleware)} returned {shown(running)}, which cannot be awaited: make it async def"
            )
        given = await running
        if given is not None or below is not None:
            self._proven.add(id(middleware))
        if given is None and below is not None:
            text = (
                "the middleware %s returns None instead of the handler's answer: a missing `return await call_next(message)`?"
            )
            logger.warning(text, name_of(middleware), extra=log_fields(message=message))
        return given

    def _blamed(self, error: BaseException) -> Middleware | None:
        """Return the middleware that raised an error, or None if the handler did."""
        codes = {_code_of(one): one for one in self.middleware}
        blamed = None
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code in codes:
                blamed = codes[frame.f_code]
            elif frame.f_code is _beyond_middleware.__code__:
                blamed = None
        return blamed

    async def _checked(self, handler: RequestHandler, message: Message, deadline: float | None) -> Any:
        """Check the handler's own answer, which middleware may replace afterwards."""
        return self._services.sent(await self._call(handler, message, deadline), handler.checked)

    async def _call(self, handler: RequestHandler, message: Message, deadline: float | None) -> Any:
        if handler.style == "async":
            return await handler.invoke(self._services, message, deadline)
        if handler.style == "inline" or _NO_THREADS:
            result = handler.invoke(self._services, message, deadline)
        else:
            result = await self._call_in_thread(handler, message, deadline)
        if inspect.isawaitable(result):  # a plain function around a coroutine function
            result = await result
        return result

    async def _call_in_thread(self, handler: Any, message: Message, deadline: float | None) -> Any:
        if handler.injection is not None:
            return await handler.invoke(self._services, message, deadline)
        threads = self.threads_of(handler.name, message)
        context = Context(self._services.bus, message, deadline, handler.subject)
        arguments = handler.arguments(partial(self.thread_context, context, threads), message)
        try:
            return await self.in_a_thread(threads, partial(handler.function, **arguments))
        finally:
            if threads is not None:
                threads.over = True

    def thread_context(self, context: Context, threads: CallThreads | None) -> Context:
        return self.context_in_a_thread(context.bus, context.message, context.deadline, context.pattern, threads)

    def threads_of(self, handler: str, message: Message) -> CallThreads | None:
        """Return the threads for a call of a handler, or None if the platform doesn't support threads."""
        if _NO_THREADS:
            return None
        assert self._threads is not None
        return CallThreads(self._threads, handler, _owner_of(message.peer), holds())

    async def in_a_thread(self, threads: CallThreads | None, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, or directly if `threads` is None."""
        if threads is None:
            return function()
        (result,) = await threads.run(lambda: (function(),))  # trio does not accept a coroutine from a thread
        return result

    def is_own_cancellation(self, error: BaseException, scope: anyio.CancelScope | None) -> bool:
        """Return True if this bus stopped the handler, so that the client must not receive an error."""
        runtime = self._services.runtime
        stopped = runtime is None or runtime.closing or (scope is not None and scope.cancel_called)
        if isinstance(error, (anyio.get_cancelled_exc_class(), BaseExceptionGroup)):
            # trio cancels tasks only through scopes: one around the handler, or one that a dependency left open.
            around = runtime.backend == "trio" and anyio.current_effective_deadline() == -math.inf  # type: ignore[union-attr]
            return stopped or (around and not isinstance(error, BaseExceptionGroup))
        # Python closes coroutines after the end of the event loop. Earlier, the application raised GeneratorExit.
        return isinstance(error, GeneratorExit) and (runtime is None or not runtime.loop.is_here())

    def must_propagate(self, error: BaseException, scope: anyio.CancelScope | None) -> bool:
        """Return True if an exception that is not an `Exception` must end the worker."""
        if isinstance(error, KeyboardInterrupt) or self.is_own_cancellation(error, scope):
            return True
        runtime = self._services.runtime
        if not isinstance(error, anyio.get_cancelled_exc_class()) or runtime is None or runtime.backend == "trio":
            return False
        task = asyncio.current_task()  # the application cancelled the worker's own task
        return task is not None and task.cancelling() > 0

    def failed(self, message: Message, error: BaseException) -> str:
        """Log and count the failure of a handler. Returns the error id."""
        services, subject, error_id = self._services, message.subject, sources.get().urandom(4).hex()
        services.counters.failed += 1
        text = in_one_line(described(error)[:_LONGEST]) + _advice(error)
        fields = log_fields(message=message, error_id=error_id)
        if (middleware := self._blamed(error)) is not None:
            failed = "the middleware %s failed at %.200r [%s]: %s"
            logger.error(failed, name_of(middleware), subject, error_id, text, exc_info=error, extra=fields)
        else:
            logger.error("handler of %.200r failed [%s]: %s", subject, error_id, text, exc_info=error, extra=fields)
        too_large = services.events.late and len(message.raw or b"") > KEPT  # the traceback refers to the body
        event = HandlerFailed(peer=message.peer, subject=subject, error_id=error_id, error=None if too_large else error)
        services.emit(event)
        return error_id
