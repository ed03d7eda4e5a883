"""Runs uvicorn with graceful shutdown, in one or more processes. Only `run` imports this module, so that applications that use
another server do not need uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

import anyio
import uvicorn

from .. import Bus
from ..cluster.worker import Worker
from ..errors import LocalProtocolError
from ..integrations import failure_of
from ..plugins.tools import shown_target
from ..transports.sockets import address_of, bind_tcp, bind_unix
from ._attachment import attached_here, attachments_of
from ._run import ADDRESS, FAILED

logger: logging.Logger = logging.getLogger("polybus")

_FRAME: Final = 1024 * 1024
"""Maximum size in bytes of a WebSocket message, the default of `Limits.message`."""

_LOGS: Final = ("uvicorn.access", "uvicorn.error")

_OPEN: Final = 0o666
"""File mode that uvicorn gives new Unix sockets."""
_ACCEPTING: Final = 4
"""Number of event loop iterations until asyncio has created the protocol of an accepted connection. Closing earlier would lose
the connection."""
_LAST_CONNECTIONS: Final = 0.5
"""Seconds to wait for the first request on connections accepted during shutdown."""


def _masked(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(shown_target(one) if isinstance(one, str) else one for one in record.args)
    return True


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains the buses before it closes connections."""

    def __init__(self, drain: float, options: Mapping[str, Any], worker: Worker | None = None) -> None:
        super().__init__(uvicorn.Config(**{"ws_max_size": _FRAME, **options}))
        self._worker = worker
        self._tasks: list[asyncio.Task[None]] = []
        self._drain_seconds = drain
        self._chosen = frozenset(options)
        self._farewell: anyio.CancelScope | None = None
        self.buses: list[Bus] = []
        """Buses that were still attached when the server shut down."""
        self.failed: bool = False
        """True if the server stops because a bus has failed."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, with the limits of the buses that the application has started. Raises as `Attachment.check_host`."""
        self._loop = asyncio.get_running_loop()
        if self._worker is not None:
            self._worker.follow(patience(self.config, self._drain_seconds))
        for name in _LOGS:
            logging.getLogger(name).addFilter(_masked)
        await super().startup(sockets)
        if not self.config.uds and self.config.fd is None:
            try:
                for attachment in attached_here():
                    attachment.check_host(self.config.host, self.config.port)
            except LocalProtocolError:
                await self.shutdown(sockets)
                raise
        self._tell()
        self._tasks += map(asyncio.get_running_loop().create_task, map(self._watch, buses_here()))
        limits = [attachment.bus.limits for attachment in attached_here()]
        if not limits:
            return
        wanted = {
            "ws_max_size": max(limit.message for limit in limits),
            "ws_ping_interval": min(limit.ping_interval for limit in limits),
            "ws_ping_timeout": min(limit.ping_timeout for limit in limits),
        }
        for name, value in wanted.items():
            if name not in self._chosen:
                setattr(self.config, name, value)

    def _tell(self) -> None:
        """Print the address, so that a parent process learns the actual port if the configured port is 0."""
        scheme = "https" if self.config.ssl is not None else "http"
        urls = [
            f"{scheme}://{address_of(listening.family, listening.getsockname())}"
            for server in self.servers
            for listening in server.sockets
            if listening.family in (socket.AF_INET, socket.AF_INET6)
        ]
        if self._worker is not None:
            self._tasks.append(asyncio.get_running_loop().create_task(self._worker.answer(self._why_not_ready)))
            self._worker.tell_served(urls)
            return
        for url in urls:
            print(f"serving {url}", flush=True)

    def _why_not_ready(self) -> str:
        if self.should_exit:
            return "it does not take requests"
        return next((why for attachment in attached_here() if (why := attachment.bus.why_not_ready)), "")

    async def _watch(self, bus: Bus) -> None:
        """Stop the server if a bus fails, so that a supervisor restarts the process."""
        with contextlib.suppress(LocalProtocolError):  # already closed
            await bus.wait_closed()
        why = failure_of(bus)
        if why and not self.should_exit:
            logger.error("the server stops because a bus of the application ended: %s", why)
            self.failed = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        buses = self.buses = buses_here()
        if buses and not self.force_exit:
            logger.info("draining")
            await self._stop_listening()
            with anyio.CancelScope() as self._farewell:
                await _drain(buses, self._drain_seconds)
        await super().shutdown(sockets)
        for name in _LOGS:
            logging.getLogger(name).removeFilter(_masked)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _stop_listening(self) -> None:
        """Close the listening sockets, but serve the connections that clients have already opened.

        Otherwise the kernel would reset connections that have not been accepted (uvloop accepts one per iteration), and uvicorn
        would close connections without a request.
        """
        loop = asyncio.get_running_loop()
        listening = [sock.fileno() for server in self.servers for sock in server.sockets] if os.name == "posix" else []
        for descriptor in listening:
            loop.remove_reader(descriptor)
        for _ in range(_ACCEPTING if listening else 0):
            await asyncio.sleep(0)
        last = [connection for descriptor in listening for connection in _accepted(descriptor)]
        for server in self.servers:
            server.close()
        with anyio.move_on_after(_LAST_CONNECTIONS):
            served = (loop.connect_accepted_socket(self._protocol, sock, ssl=self.config.ssl) for sock in last)
            await asyncio.gather(*served, return_exceptions=True)
            while any(getattr(each, "cycle", each) is None for each in self.server_state.connections):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.005)

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=self._loop
        )
        return protocol

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self.should_exit = True
            return
        if self._worker is not None and sig == signal.SIGTERM:
            return  # may arrive from both supervisor and service manager, so only SIGINT is a second signal
        logger.warning("second signal, ending at once")
        self.force_exit = True
        if self._loop is not None and self._farewell is not None:
            self._loop.call_soon_threadsafe(self._farewell.cancel)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but don't re-raise them, so that a graceful shutdown has exit status 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _accepted(descriptor: int) -> Iterator[socket.socket]:
    with socket.socket(fileno=os.dup(descriptor)) as listening:
        listening.setblocking(False)
        with contextlib.suppress(OSError):  # there are no more
            while True:
                yield listening.accept()[0]


def patience(config: uvicorn.Config, drain: float) -> float:
    """Return the seconds for a graceful shutdown: the drain, uvicorn's own timeout, and another drain for the lifespan."""
    return 2 * drain + max(drain, config.timeout_graceful_shutdown or 0)


def buses_here() -> list[Bus]:
    return list(dict.fromkeys(attachment.bus for attachment in attached_here()))


async def _drain(buses: list[Bus], seconds: float) -> None:
    async with anyio.create_task_group() as group:
        for bus in buses:
            group.start_soon(bus.drain, seconds)


def run_workers(options: Mapping[str, Any], drain: float, workers: int) -> int:
    """Run worker processes until they are stopped, and return the exit status."""
    from ..cluster.workers import supervise  # large, and not needed for a single process

    config = uvicorn.Config(**options)
    config.load()

    async def bind() -> dict[str, Sequence[socket.socket]]:
        try:
            return {ADDRESS: await _bound(config)}
        except OSError as error:
            logger.error("the workers cannot serve: %s", error)
            raise SystemExit(FAILED) from None

    return supervise(
        count=workers,
        buses=buses_of(config.loaded_app),
        bind=bind,
        patience=patience(config, drain),
        unlink=config.fd is None,
    )


async def _bound(config: uvicorn.Config) -> list[socket.socket]:
    if config.fd is not None:
        return [socket.socket(fileno=os.dup(config.fd))]
    return [_bind_unix(config.uds)] if config.uds is not None else await bind_tcp(config.host, config.port)


def _bind_unix(path: str) -> socket.socket:
    """Bind with uvicorn's permissions: an existing socket keeps its own, and a new socket is open to all users."""
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else _OPEN
    sock = bind_unix(path)
    os.chmod(path, mode)
    return sock


def buses_of(app: Any) -> list[Bus]:
    return list(dict.fromkeys(attachment.bus for attachment in attachments_of(app)))
