"""An event loop in a thread of its own, and the way into it for other threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal

from .blocking import check_not_on_loop
from .errors import BusError, LocalProtocolError, RequestCancelled

__all__ = ["Portal"]


class Portal:
    """Runs coroutine functions for other threads, until it is stopped.

    Not `anyio.from_thread.start_blocking_portal`: the garbage collector of a forked child would close its generator, and wait
    for a thread that the child does not have.
    """

    def __init__(self, backend: str) -> None:
        self._process = os.getpid()
        self._lock = threading.Condition()
        self._stopped = False
        self._starting = 0
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
            if not started.done():  # there is no such backend
                started.set_exception(error)

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that the thread lives in."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """
        Raises:
            LocalProtocolError: This is a fork.
        """
        if self.forked:
            raise LocalProtocolError(
                f"this bus was opened in process {self._process}, whose threads a fork does not copy: open another one here"
            )

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Run a coroutine function and wait for its outcome. An interruption (Ctrl-C) cancels it.

        Raises:
            LocalProtocolError: The portal was stopped, belongs to another process, or would have to wait for itself.
            Exception: Whatever the function raises.
        """
        work = _Work(function)
        try:
            return self.start(work, *args).result()
        except BusError as error:
            raise error.with_traceback(None)  # noqa: B904  # the same error, without the frames of the event loop
        except CancelledError:
            raise RequestCancelled("the bus was closed meanwhile") from None
        except BaseException:
            if (scope := work.unwanted()) is not None:
                with suppress(RuntimeError):  # the loop has ended, and the work with it
                    self._portal.start_task_soon(scope.cancel)
            raise

    def start(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Run a coroutine function.

        Raises:
            LocalProtocolError: As calling the portal.
        """
        self.check_process()
        check_not_on_loop(self._thread.ident or 0)
        with self._lock:
            if self._stopped:
                raise LocalProtocolError("this bus is closed: open another one, or enter it again")
            self._starting += 1
        try:
            return self._portal.start_task_soon(function, *args)
        finally:
            with self._lock:
                self._starting -= 1
                self._lock.notify_all()

    def stop(self, *, cancel: bool = False) -> None:
        """Let what runs come to its end, or cancel it; then end the loop and its thread."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._lock.wait_for(lambda: self._starting == 0)  # who is about to start would wait for a loop that has ended
        self._portal.call(self._portal.stop, cancel)
        self._thread.join()

    def hold(self, manager: AbstractAsyncContextManager[Any]) -> AbstractContextManager[Any]:
        """The block, entered and left in one task of the loop: so it may hold a task group."""
        return self._portal.wrap_async_context_manager(manager)


class _Work:
    """A function for the loop that can be cancelled from the first moment on: Ctrl-C may come while the loop takes it over,
    when there is no future of it yet."""

    __slots__ = ("_function", "_scope", "_unwanted")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._scope: anyio.CancelScope | None = None
        self._unwanted = False

    # Two threads meet here without a lock: each says its own before it looks at the other's.

    async def __call__(self, *args: Any) -> Any:
        with anyio.CancelScope() as self._scope:
            if self._unwanted:
                return None
            try:
                return await self._function(*args)
            finally:
                self._scope = None

    def unwanted(self) -> anyio.CancelScope | None:
        """Nobody waits for it any more: what is to be cancelled if it runs."""
        self._unwanted = True
        return self._scope
