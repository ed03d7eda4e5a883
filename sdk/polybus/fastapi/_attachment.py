"""Starts, owns and stops a bus that is attached to a path of an application.

A warning is logged if several processes serve the same address, each with its own bus, because one publication then does not
reach all clients. Workers of uvicorn, gunicorn, hypercorn and others share only that address. The first process therefore
claims a kernel name derived from the address, and the others find the name taken. Such names exist only on Linux. They
disappear with their process and, like addresses, belong to a network namespace.
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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar
from starlette.requests import HTTPConnection  # at run time FastAPI reads the annotations of `bus_of`
from starlette.routing import BaseRoute

from ..errors import Unavailable
from ..integrations import failure_of, host_of, mesh_of, overriding
from ..nodes import VARIABLE
from ..outcomes import described
from ..plugins.tools import Loop, in_one_line, log_fields, running_loop, wrong_event_loop
from ..transports.sockets import address_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from .. import Bus, Listener
    from ..plugins import AsgiApp

logger: logging.Logger = logging.getLogger("polybus")

GRACE: Final = 3.0
"""Seconds for a replaced process to give up its address."""
_PAUSE: Final = 0.05
_WAITING: Final = 64
"""Number of processes in the queue for a name. Additional processes would only repeat the same log line."""
_DEPTH: Final = 20
"""Maximum depth of the search in nested applications, because an application may contain itself."""
_OPEN_FILES: Final = "/proc/self/fd"
_CREDENTIALS: Final = struct.Struct("3i")
_ADVICE: Final = (
    "a publication reaches only the clients of one process, and a user is found in only one. Make them one bus: "
    "Bus(cluster='auto') with polybus.fastapi.run('module:app', workers=...), or with the URL of a NATS server in "
    f"{VARIABLE}; or serve with one process"
)


def watch_neighbours(bus: Bus) -> None:
    """Check for other processes at the address of a bus without a cluster, and log a warning once if there are any."""
    cluster = mesh_of(bus)
    if sys.platform == "linux" and (cluster is None or cluster.peer is None):
        addresses = _addresses()
        if addresses:
            host_of(bus).spawn(_watch, addresses)


async def _watch(addresses: dict[str, bytes]) -> None:
    with ExitStack() as held:
        for address, name in addresses.items():
            other = await _claim(name, held)
            if other is None:
                logger.debug("no other process serves at %s with a bus of its own", address, extra=log_fields(address=address))
            else:
                level = logging.WARNING if _take(name + b" told", held) else logging.DEBUG
                text = "this process is one of several at %s (process %d is another), each with its own bus: %s"
                logger.log(level, text, address, other, _ADVICE, extra=log_fields(address=address))
        await anyio.sleep_forever()


async def _claim(name: bytes, held: ExitStack) -> int | None:
    """Claim an address. Returns its holder's process ID, or `None` if that is this process or unknown."""
    other: int | None = None
    with anyio.move_on_after(GRACE):
        while not _take(name, held):
            with socket.socket(socket.AF_UNIX) as at_holder:
                at_holder.setblocking(False)
                try:
                    at_holder.connect(name)
                except ConnectionRefusedError:  # the holder has just started, or ended
                    await anyio.sleep(_PAUSE)
                    continue
                except OSError:
                    return None
                other = _process_of(at_holder)
                if other is None or other == os.getpid():
                    return None
                await anyio.wait_readable(at_holder)  # returns when the holder exits, because it never answers
        return None
    return other


def _take(name: bytes, held: ExitStack) -> bool:
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
    """Return the ID of the remote process, or None if it has exited and a child process still holds its socket."""
    number, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    with suppress(PermissionError):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return None
    return int(number)


def _addresses() -> dict[str, bytes]:
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
    elif sock.family == socket.AF_UNIX and address and isinstance(address, str):  # bytes: a name claimed above, without a file
        shown, key = address, f"{os.path.abspath(address)} {os.fstat(sock.fileno()).st_ino}"  # a later socket may get this path
    else:
        return
    found[shown] = b"\0polybus " + sha256(key.encode()).hexdigest().encode()


_running: RunVar[dict[Attachment, None]] = RunVar("polybus attachments")


def attached_here() -> list[Attachment]:
    return list(_running.get({}))


class Attachment:
    """A bus served by an application.

    It runs within the application's lifespan. If no lifespan runs, for example in a mounted application or a router that was
    included earlier, the first connection starts the bus. It then stops with the event loop, or when `polybus.fastapi.run`
    drains.
    """

    def __init__(self, bus: Bus, serving: Callable[[], AbstractAsyncContextManager[Listener]], insecure: bool) -> None:
        self.bus: Bus = bus
        self._serving = serving
        self._insecure = insecure
        self._listener: Listener | None = None
        # True while a lifespan runs. Only the lifespan may then start and stop the bus, even shortly before it ends.
        self._managed = False
        # Exists while the first connection starts the bus; set when that succeeds or fails.
        self._starting: anyio.Event | None = None
        self._failure: BaseException | None = None
        self._owner: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._loop: Loop | None = None  # the loop in which the bus runs or starts

    def check_host(self, host: str, port: int) -> None:
        """Raise `LocalProtocolError` if other machines can reach the host, and the bus would reject their clients."""
        shown = f"[{host}]" if ":" in host else host
        self.bus.serve(f"ubre+ws://{shown}:{port}", insecure=self._insecure)  # never entered

    def _take_loop(self) -> None:
        """Bind this attachment to the current event loop. Raises `LocalProtocolError` if the bus runs in another one."""
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
        """Run the bus during a lifespan. Raises `LocalProtocolError` if the bus runs in another event loop."""
        self._take_loop()
        if self._listener is not None:  # a connection came first, or a router is included twice
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
        """Start the bus for a connection unless it is already running. If the bus's lifespan fails, raise its error.

        Raises:
            LocalProtocolError: If the bus runs in another event loop.
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

        async with AsyncExitStack() as stack:
            try:
                listener = await stack.enter_async_context(self._serving())
            except Exception as error:  # before the traceback of the web server
                logger.error("the bus of the application does not start: %s", in_one_line(described(error)))
                raise
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
        """Keep the bus running until it is closed, or the event loop cancels its remaining tasks."""
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
        """Start a task that the event loop owns, because every connection may end first and there is no lifespan."""
        if running_loop().backend == "asyncio":
            # Empty context: values that middleware set for the first visitor must not leak.
            nobodys = contextvars.Context()
            loop = asyncio.get_running_loop()
            _TaskEnder.of_process().loops[loop] = self.bus.limits.close_timeout
            self._owner = loop.create_task(function(), name="polybus attached", context=nobodys)
        else:
            import trio

            trio.lowlevel.spawn_system_task(function, name="polybus attached")


class _TaskEnder(threading.Thread):
    """Cancels the remaining tasks of event loops when the main thread ends, which also stops anyio's idle threads.

    `asyncio.run` does this itself. With a server that uses ``run_forever`` and no lifespan, the threads would wait for these
    tasks forever, and the interpreter for the threads.
    """

    def __init__(self) -> None:
        super().__init__(name="polybus end of tasks", daemon=True)
        self.loops: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
        """Event loops, with the number of seconds that their tasks may take to stop."""

    @classmethod
    def of_process(cls) -> _TaskEnder:
        """Return the only instance in this process, because tests and servers may use an event loop per request."""
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
    """Endpoint of a route. It is an object rather than a function, so that routers treat it as an ASGI application."""

    def __init__(self, attachment: Attachment, app: AsgiApp) -> None:
        self.attachment: Attachment = attachment
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await self.attachment.start(scope.get("app"))
        await self._app(scope, receive, send)


async def bus_of(connection: HTTPConnection) -> Bus:
    """Return the bus attached to the application of a request or WebSocket, and start it if necessary.

    Raises:
        RuntimeError: If no bus, or more than one, is attached.
        Unavailable: If the bus has failed while its application is still running.
    """
    app = connection.scope.get("app")
    found = {attachment.bus: attachment for attachment in attachments_of(app, own=True)}
    if not found:
        raise RuntimeError(
            "no bus is attached to the application that serves this request: call attach(app, bus); "
            "a mounted application needs its own"
        )
    if len(found) > 1:
        raise RuntimeError(
            f"{len(found)} buses are attached to the application that serves this request, so BusDep cannot choose: "
            "import the one you mean"
        )
    [(bus, attachment)] = found.items()
    await attachment.start(app)
    if why := failure_of(bus):
        raise Unavailable(f"the bus of this application has ended: {why}")
    return bus


def attachments_of(app: Any, *, own: bool = False, depth: int = 0) -> Iterator[Attachment]:
    """Yield the attachments in an application. If `own` is set, mounted applications are skipped, as they serve themselves."""
    endpoint, routes = getattr(app, "endpoint", None), getattr(app, "routes", None)
    # Middleware has `app`. A router that a recent FastAPI has included has `original_router`.
    inner = getattr(app, "original_router", None) or getattr(app, "app", None)
    if isinstance(endpoint, AttachedRoute):
        yield endpoint.attachment
    elif depth > _DEPTH:
        return
    elif own and isinstance(app, BaseRoute) and (not hasattr(inner, "routes") or hasattr(inner, "state")):
        return  # it does not lead to a router
    elif isinstance(routes, Sequence) and routes:
        for route in routes:
            yield from attachments_of(route, own=own, depth=depth + 1)
    elif inner is not None:
        yield from attachments_of(inner, own=own, depth=depth + 1)
