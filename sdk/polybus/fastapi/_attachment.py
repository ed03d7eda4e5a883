"""One bus at one path of an application: when it starts, who keeps it running, and when it ends.

Processes that listen at the same address, each with a bus of its own, are told that one publication does not reach all. Workers
of uvicorn, gunicorn, hypercorn and others have nothing in common but that address, so the first process takes a name in the
kernel that is made of it, and the others find it taken. Such names exist only on Linux, go with their process, and are those of
one network namespace, as addresses are.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar
from starlette.requests import HTTPConnection  # FastAPI looks at the annotations of `bus_of` at run time

from ..errors import Unavailable
from ..integrations import failure_of, host_of, mesh_of, overriding
from ..nodes import VARIABLE
from ..plugins.tools import Loop, log_fields, running_loop, wrong_event_loop
from ..transports.sockets import address_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from .. import Bus, Listener
    from ..plugins import AsgiApp

logger: logging.Logger = logging.getLogger("polybus")

GRACE: Final = 3.0
"""Seconds in which a process that this one replaces gives its address up."""
_PAUSE: Final = 0.05
_WAITING: Final = 64
"""Processes that wait for that at once; others of them would say the same."""
_OPEN_FILES: Final = "/proc/self/fd"
_CREDENTIALS: Final = struct.Struct("3i")
_ADVICE: Final = (
    "a publication reaches the clients of one process, and users are found in one alone. Make them one bus: "
    "Bus(cluster='auto') with polybus.fastapi.run('module:app', workers=...), or with the URL of a NATS server in "
    f"{VARIABLE}; or serve with one process"
)


def watch_neighbours(bus: Bus) -> None:
    """Have a bus that is alone find out whether other processes serve at the address of this one; it says so once."""
    cluster = mesh_of(bus)
    if sys.platform == "linux" and (cluster is None or cluster.peer is None):
        addresses = _addresses()
        if addresses:
            host_of(bus).spawn(_watch, addresses)


async def _watch(addresses: dict[str, bytes]) -> None:
    """Hold the names of all addresses that nobody else holds, for as long as the bus runs."""
    with ExitStack() as held:
        for address, name in addresses.items():
            other = await _claim(name, held)
            if other is None:
                logger.debug("no other process serves at %s with a bus of its own", address, extra=log_fields(address=address))
            else:
                level = logging.WARNING if _take(name + b" told", held) else logging.DEBUG
                text = "this process is one of several at %s (process %d is another), and its bus is alone: %s"
                logger.log(level, text, address, other, _ADVICE, extra=log_fields(address=address))
        await anyio.sleep_forever()


async def _claim(name: bytes, held: ExitStack) -> int | None:
    """Take the name of an address. The process that keeps it; None where this one has it now, or the other is not known."""
    other: int | None = None
    with anyio.move_on_after(GRACE):
        while not _take(name, held):
            with socket.socket(socket.AF_UNIX) as at_holder:
                at_holder.setblocking(False)
                try:
                    at_holder.connect(name)
                except ConnectionRefusedError:  # it has just come, or gone
                    await anyio.sleep(_PAUSE)
                    continue
                except OSError:
                    return None
                other = _process_of(at_holder)
                if other is None or other == os.getpid():
                    return None
                await anyio.wait_readable(at_holder)  # to its end: nobody answers there
        return None
    return other


def _take(name: bytes, held: ExitStack) -> bool:
    """Take a name of the kernel. False where another process has it."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(name)
        sock.listen(_WAITING)
    except OSError:
        sock.close()
        return False
    held.enter_context(sock)
    return True


def _process_of(connection: socket.socket) -> int | None:
    """Find the process at the other end; None where it is no more, and only one that it started has its socket."""
    number, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    with suppress(PermissionError):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return None
    return int(number)


def _addresses() -> dict[str, bytes]:
    """Find the addresses of stream sockets of this process that are bound and not connected, and their names in the kernel."""
    found: dict[str, bytes] = {}
    with suppress(OSError):
        for file in os.listdir(_OPEN_FILES):
            with suppress(OSError):
                if stat.S_ISSOCK(os.stat(f"{_OPEN_FILES}/{file}").st_mode):
                    with socket.socket(fileno=os.dup(int(file))) as sock:
                        if sock.type == socket.SOCK_STREAM and not _is_connected(sock):
                            _add_address(found, sock)
    return found


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _add_address(found: dict[str, bytes], sock: socket.socket) -> None:
    address = sock.getsockname()
    if sock.family in (socket.AF_INET, socket.AF_INET6) and address[1]:
        shown = key = address_of(sock.family, address)
    elif sock.family == socket.AF_UNIX and address and isinstance(address, str):  # without a file: the names taken here
        shown, key = address, f"{os.path.abspath(address)} {os.fstat(sock.fileno()).st_ino}"  # another may have its path later
    else:
        return
    found[shown] = b"\0polybus " + sha256(key.encode()).hexdigest().encode()


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
        def find(original: Callable[..., Any]) -> Callable[..., Any] | None:
            found: Callable[..., Any] | None = (getattr(app, "dependency_overrides", None) or {}).get(original)
            return found

        async with self._serving() as listener:
            here = _running.get(None)
            if here is None:
                _running.set(here := {})
            self._listener = listener
            here[self] = None
            watch_neighbours(self.bus)
            try:
                with overriding(self.bus, find, "dependency_overrides"):
                    yield
            finally:
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


async def bus_of(connection: HTTPConnection) -> Bus:
    """The bus attached to the application that serves a request or WebSocket; it is started where that has not happened.

    Raises:
        RuntimeError: None is attached there, or several are.
        Unavailable: It has failed, and its application still runs.
    """
    attachment = _attachment(connection)
    await attachment.start(connection.scope.get("app"))
    if why := failure_of(attachment.bus):
        raise Unavailable(f"the bus of this application has ended: {why}")
    return attachment.bus


def _attachment(connection: HTTPConnection) -> Attachment:
    """The one bus of the application; RuntimeError where there are none, or several."""
    app = connection.scope.get("app")
    found = {attachment.bus: attachment for attachment in _attachments(getattr(app, "routes", ()))}
    if not found:
        raise RuntimeError(
            "no bus is attached to the application that serves this request: attach(app, bus); "
            "a mounted application needs its own"
        )
    if len(found) > 1:
        raise RuntimeError(
            f"{len(found)} buses are attached to the application that serves this request, so BusDep cannot choose: "
            "import the one you mean"
        )
    return next(iter(found.values()))


def _attachments(routes: Iterable[Any]) -> Iterator[Attachment]:
    for route in routes:
        endpoint = getattr(route, "endpoint", None)
        if isinstance(endpoint, AttachedRoute):
            yield endpoint.attachment
        elif (included := getattr(route, "original_router", None)) is not None:  # FastAPI keeps routers that are included
            yield from _attachments(included.routes)
        elif (mounted := getattr(route, "app", None)) is not None and hasattr(mounted, "routes"):
            if not hasattr(mounted, "state"):  # a router; an application serves its requests itself
                yield from _attachments(mounted.routes)
