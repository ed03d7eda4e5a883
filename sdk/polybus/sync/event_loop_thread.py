"""Runs blocking calls on an event loop: the bus's own loop in a thread, the loop of an outer bus, or the loop that called a
`def` handler."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio.from_thread
import anyio.lowlevel
from anyio.from_thread import BlockingPortal
from attrs import define

from ..errors import BusError, LocalProtocolError, RequestCancelled
from ..integrations import buses_here, current_call, parts_of, waiting_in_thread

if TYPE_CHECKING:
    from .. import Bus
    from ..integrations import CallThreads
    from .items import Run


_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_INNER: Final = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Names of code inside an expression. From Python 3.12 on, only generator expressions and lambdas have frames of their own."""

_INSTEAD: Final = (
    "which would stop while it waits: await polybus.connect and the verbs of a polybus.Bus there, or block in a thread "
    "(anyio.to_thread.run_sync)"
)


def check_not_on_loop(thread: int = 0) -> None:
    """Raise `LocalProtocolError` if the call would block the awaited work, an event loop with a bus, or an ``async def``.

    A plain function may block an event loop without a bus, because it may be a notebook cell.
    """
    if threading.get_ident() == thread:
        raise LocalProtocolError(
            "a blocking verb was called on the event loop that has to do the work: await the verb of the polybus.Bus there"
        )
    buses = buses_here()
    if buses:
        raise LocalProtocolError(f"a blocking verb was called on an event loop that runs a polybus.Bus, {_INSTEAD}")
    if buses is not None and (name := _calling_coroutine()):
        raise LocalProtocolError(f"the async function {name} called a blocking verb on its event loop, {_INSTEAD}")


def _calling_coroutine() -> str:
    """Return the name of the ``async def`` function that called polybus, if any. A notebook cell is a plain function.

    Comprehensions, generator expressions and lambdas count as part of the function that contains them.
    """
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("polybus."):
        frame = frame.f_back
    caller = "" if frame is None else frame.f_code.co_qualname
    while frame is not None and frame.f_code.co_name in _INNER:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name.startswith(("<module>", "<cell ")):  # the latter in some versions of IPython
        return ""
    name = frame.f_code.co_qualname
    return name if frame.f_code.co_flags & _ASYNC and f"{caller}.".startswith(f"{name}.") else ""


async def _contained(function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
    """Run a coroutine function. Convert `SystemExit` and `GeneratorExit` of hooks, so that the event loop keeps running."""
    try:
        return await function(*args)
    except (SystemExit, GeneratorExit) as error:
        raise RuntimeError(f"a hook of the bus raised {type(error).__name__}") from error


class HandlerLoop:
    """Runs functions on the loop that called a `def` handler, even from threads that the handler starts.

    An endpoint has no `threads`, because the web server provides its thread.
    """

    def __init__(self, threads: CallThreads | None = None) -> None:
        self._threads = threads
        self._token = anyio.lowlevel.current_token()
        self._thread = threading.get_ident()

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Any:
        check_not_on_loop(self._thread)
        try:
            return self._call(self._run, (function, *args))
        except BusError as error:
            raise error.with_traceback(None)  # noqa: B904  # the same error, without the frames of two event loops
        except anyio.RunFinishedError:
            raise LocalProtocolError("the bus of this handler has been closed, and its blocking twin with it") from None

    async def _run(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        with nullcontext() if self._threads is None else self._threads.waiting():
            return await _contained(function, args)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return anyio.from_thread.run(function, *args)  # ends when the handler is cancelled
        except anyio.NoEventLoopError:
            return anyio.from_thread.run(function, *args, token=self._token)


class EventLoopThread:
    """Runs coroutine functions for other threads until it is stopped.

    This doesn't use `anyio.from_thread.start_blocking_portal`, because a forked child would garbage-collect its generator and
    then wait for a thread that exists only in the parent.
    """

    def __init__(self, backend: str) -> None:
        self._process = os.getpid()
        self._stopped = False
        self.exits: bool = False
        """True when the interpreter is about to exit."""
        self._starting: set[threading.Lock] = set()
        started: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._serve, args=(backend, started), name="polybus", daemon=True)
        self._thread.start()
        self._portal = started.result()

    @staticmethod
    def _serve(backend: str, started: Future[BlockingPortal]) -> None:
        async def main() -> None:
            async with BlockingPortal() as portal:
                started.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            anyio.run(main, backend=backend)
        except BaseException as error:
            if not started.done():  # unknown backend
                started.set_exception(error)

    @property
    def forked(self) -> bool:
        return os.getpid() != self._process

    def check_process(self) -> None:
        if self.forked:
            raise LocalProtocolError(
                f"this bus was opened in process {self._process}, whose threads a fork does not copy: open another one here"
            )

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Run a coroutine function and return its result. Ctrl-C cancels it."""
        work = _InterruptibleWork(function)
        try:
            with waiting_in_thread():
                return self.start(work, *args).result()
        except BusError as error:
            self._sleep_at_exit()
            raise error.with_traceback(None)  # noqa: B904  # the same error, without the frames of the event loop
        except CancelledError:
            self._sleep_at_exit()
            raise RequestCancelled("the bus was closed during the call") from None
        except BaseException:
            self._sleep_at_exit()
            if (scope := work.unwanted()) is not None:
                with suppress(RuntimeError):  # the loop has stopped, and so has the work
                    self._portal.start_task_soon(scope.cancel)
            raise

    def _sleep_at_exit(self) -> None:
        """Put a daemon thread that the exiting interpreter has woken up back to sleep until the process ends.

        A traceback printed during the exit may abort CPython. The caller's locks stay locked. A handler's thread continues,
        because the bus waits for it.
        """
        if self.exits and threading.current_thread().daemon and current_call.get(None) is None:
            threading.Event().wait()

    def start(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        self.check_process()
        check_not_on_loop(self._thread.ident or 0)
        # A function that starts while the thread stops would wait for an ended loop. A thread may be interrupted at each of
        # these lines, so there is nothing to count or wake up: the lock that it holds comes with its message.
        turn = threading.Lock()
        with turn:
            self._starting.add(turn)
            try:
                if self._stopped:
                    raise LocalProtocolError("this bus is closed: open another one, or enter it again")
                return self._portal.start_task_soon(function, *args)
            finally:
                self._starting.discard(turn)

    def stop(self, *, cancel: bool = False) -> None:
        """Let running functions finish, or cancel them, and then stop the loop and its thread."""
        if self._stopped:
            return
        self._stopped = True
        for turn in [*self._starting]:
            with turn:  # the holder has started while the loop still runs; later callers see `_stopped`
                pass
        self._portal.call(self._portal.stop, cancel)
        self._thread.join()

    def hold(self, manager: AbstractAsyncContextManager[Any]) -> AbstractContextManager[Any]:
        """Enter and leave a context manager in one task of the loop, so that it may contain a task group."""
        return self._portal.wrap_async_context_manager(manager)


@define(eq=False)
class _InterruptibleWork:
    """A call that can be cancelled even before the loop has created its future, because Ctrl-C may arrive at any time."""

    _function: Callable[..., Any]
    _scope: anyio.CancelScope | None = None
    _unwanted: bool = False

    # Two threads meet here without a lock: each writes its own value before it reads the other's.

    async def __call__(self, *args: Any) -> Any:
        with anyio.CancelScope() as self._scope:
            if self._unwanted:
                return None
            try:
                return await _contained(self._function, args)
            finally:
                self._scope = None

    def unwanted(self) -> anyio.CancelScope | None:
        """Mark the call as abandoned. Returns the scope to cancel if the call is already running."""
        self._unwanted = True
        return self._scope


class OwnedBus:
    """An open bus with its own loop and thread, closed at exit if not earlier. It does not refer to the blocking `Bus`."""

    def __init__(self, bus: Bus, backend: str, manager: AbstractAsyncContextManager[Any]) -> None:
        self._bus = bus
        self._ending = threading.Lock()
        self.over: bool = False
        self.loop: EventLoopThread = EventLoopThread(backend)
        self._held = self.loop.hold(manager)
        try:
            with waiting_in_thread():
                self._held.__enter__()
        except BaseException as error:
            self.loop.stop(cancel=True)
            if isinstance(error, BusError):
                raise error.with_traceback(None)  # noqa: B904  # the same error, without the frames of the event loop
            raise
        atexit.register(self._end_at_exit)

    def _end_at_exit(self) -> None:
        self.loop.exits = True
        self.end()

    def end(self, *error: Any) -> None:
        """Close the bus, then stop its loop and thread. A forked process has neither, and only marks the object as closed."""
        with self._ending:
            if self.over:
                return
            self.over = True
            atexit.unregister(self._end_at_exit)
            if self.loop.forked:
                return
            try:
                with waiting_in_thread():
                    self._held.__exit__(*(error or (None, None, None)))
                if parts_of(self._bus).services.runtime is not None:  # a block is still open, but the loop stops now
                    self.loop(self._leave)
            except KeyboardInterrupt:  # Ctrl-C during the exit
                self.loop.start(self._bus.aclose)
                raise
            finally:
                self.loop.stop()

    async def _leave(self) -> None:
        await self._bus.drain()
        await self._bus.aclose()


class BorrowedLoop:
    """An open bus on the event loop of an outer bus, for a bus inside a tunnel."""

    forked: bool = False

    def __init__(self, run: Run, manager: AbstractAsyncContextManager[Any]) -> None:
        self.loop: BorrowedLoop = self
        self.over: bool = False
        self._run = run
        self._manager = manager
        run(manager.__aenter__)

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Any:
        return self._run(function, *args)

    def check_process(self) -> None:
        """Do nothing. The outer bus checks the process on each call."""

    def end(self, *error: Any) -> None:
        """Close the bus but not the loop. If the loop has already stopped, the bus is already closed."""
        if not self.over:
            self.over = True
            with suppress(LocalProtocolError):
                self._run(self._manager.__aexit__, *(error or (None, None, None)))
