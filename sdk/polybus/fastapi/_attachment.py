"""One bus at one path of an application: when it starts, who keeps it running, and when it ends."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar

from .._core.bus.bus import parts_of
from .._core.handlers.providers import overrides_of
from .._util.event_loop import Loop, running_loop, wrong_event_loop
from ._several import watch_neighbours

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from .._core.bus.acceptor import Listener
    from .._core.bus.bus import Bus
    from ..plugins import AsgiApp

_running: RunVar[dict[Attachment, None]] = RunVar("polybus attachments")


def attached_here() -> list[Attachment]:
    """The attachments that run in this event loop, of all applications."""
    return list(_running.get({}))


class Attachment:
    """A bus that an application serves.

    It runs within the application's lifespan. Where nobody runs that (an application mounted into another one, a router that
    was included before), the first connection starts it; it ends with the event loop, or when `polybus.fastapi.run` drains.
    """

    def __init__(self, bus: Bus, serving: Callable[[], AbstractAsyncContextManager[Listener]]) -> None:
        self.bus: Bus = bus
        self._serving = serving
        self._listener: Listener | None = None
        # While a lifespan runs, it alone starts and ends the bus: also when it is about to end.
        self._managed = False
        # While the first connection starts the bus: set when that is over, one way or the other.
        self._starting: anyio.Event | None = None
        self._failure: BaseException | None = None
        self._owner: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._loop: Loop | None = None  # in which it runs, or is being started

    def _take_loop(self) -> None:
        """Note the event loop in which the bus runs.

        Raises:
            LocalProtocolError: It runs in another one. Nothing that is kept here may be awaited in this one then.
        """
        with self._lock:
            loop = self._loop
            if loop is None or loop.is_over():
                self._loop = running_loop()
                self._listener = self._starting = None
                self._managed = False
            elif not loop.is_here():
                raise wrong_event_loop()

    @asynccontextmanager
    async def running(self, app: Any) -> AsyncIterator[None]:
        """The bus, for as long as a lifespan lasts. May raise `LocalProtocolError`: it runs in another event loop."""
        self._take_loop()
        if self._listener is not None:  # a connection was faster, or the lifespan is that of a router included twice
            yield
            return
        self._managed = True
        try:
            async with self._listening(app):
                yield
        finally:
            self._managed = False
            self._loop = None

    async def start(self, app: Any) -> None:
        """Make sure that the bus runs, for somebody who has come in to an application, or raise what its lifespan raised.

        Raises:
            LocalProtocolError: It runs in another event loop.
        """
        self._take_loop()
        if self._listener is not None or self._managed:
            return
        starting = self._starting
        if starting is None:
            starting = self._starting = anyio.Event()
            self._spawn(functools.partial(self._own, app))
        await starting.wait()
        if self._failure is not None:
            raise self._failure

    @asynccontextmanager
    async def _listening(self, app: Any) -> AsyncIterator[None]:
        async with self._serving() as listener:
            overriding = parts_of(self.bus).services.running.overriding
            overriding.append(find := overrides_of(app))
            here = _running.get(None)
            if here is None:
                _running.set(here := {})
            self._listener = listener
            here[self] = None
            watch_neighbours(self.bus)
            try:
                yield
            finally:
                overriding.remove(find)
                here.pop(self, None)
                self._listener = None

    async def _own(self, app: Any) -> None:
        """Keep the bus running until it is closed, or the event loop cancels what is left in it."""
        starting = self._starting
        assert starting is not None
        self._failure = None
        try:
            async with self._listening(app):
                starting.set()
                await self.bus.wait_closed()
        except Exception as error:
            self._failure = error.with_traceback(None)
        finally:
            self._starting = self._loop = None
            starting.set()

    def _spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """In a task that belongs to the event loop: no connection outlives the others, and no lifespan is run."""
        if running_loop().backend == "asyncio":
            # Not in the context of whoever happens to come first: what middleware has put there is nobody else's business.
            nobodys = contextvars.Context()
            loop = asyncio.get_running_loop()
            _TaskEnder.of_process().loops[loop] = self.bus.limits.close_timeout
            self._owner = loop.create_task(function(), name="polybus attached", context=nobodys)
        else:
            import trio

            trio.lowlevel.spawn_system_task(function, name="polybus attached")


class _TaskEnder(threading.Thread):
    """Ends the tasks that are left in event loops, with the main thread, and with them the idle threads of anyio.

    `asyncio.run` does so. A server that runs its event loop by ``run_forever`` and runs no lifespan does not: the threads would
    wait for these tasks, and the interpreter for the threads, for ever.
    """

    def __init__(self) -> None:
        super().__init__(name="polybus end of tasks", daemon=True)
        self.loops: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
        """Event loops, each with the seconds that its tasks may take."""

    @classmethod
    def of_process(cls) -> _TaskEnder:
        """The one of this process: tests and servers may have an event loop for each request."""
        found = next((one for one in threading.enumerate() if isinstance(one, cls)), None)
        if found is None:
            found = cls()
            found.start()
        return found

    def run(self) -> None:
        threading.main_thread().join()
        for loop, patience in list(self.loops.items()):
            _end_tasks(loop, patience)


def _end_tasks(loop: asyncio.AbstractEventLoop, patience: float) -> None:
    if loop.is_running() or loop.is_closed():
        return
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks, timeout=patience) if tasks else asyncio.sleep(0))


class AttachedRoute:
    """Endpoint of a route of the application. An object, not a function, so that routers take it for an ASGI application."""

    def __init__(self, attachment: Attachment, app: AsgiApp) -> None:
        self.attachment: Attachment = attachment
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """One connection or request."""
        await self.attachment.start(scope.get("app"))
        await self._app(scope, receive, send)
