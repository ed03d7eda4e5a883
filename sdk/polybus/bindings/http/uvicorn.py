"""Serves HTTP on asyncio for a bus without an application. uvicorn parses requests and handles WebSocket framing.

uvicorn's process features (signals, logging, lifespan) are disabled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from asyncio import TimerHandle
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import uvicorn
import uvicorn.lifespan.off  # otherwise `Config.load` imports it for the first listener
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from ...plugins import AsgiApp, ListenOptions
from ...plugins.tools import Warnings, sources
from ...transports.sockets import PingProgress, Signs, accept_from, signs_of
from ...transports.websocket import MAX_FRAGMENTS, core_logger

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent
    from websockets.frames import Frame

_PIECE: Final = 2048
"""Number of bytes to parse at a time. They contain at most 340 frames, which take a few milliseconds."""

_TURN: Final = 0.005
"""Seconds after which other connections are handled."""


class _Http(H11Protocol):
    def __init__(self, log: logging.Logger, **options: Any) -> None:
        super().__init__(**options)
        self.logger: logging.Logger = log


def _limited_log(options: ListenOptions) -> logging.Logger:
    """Return a child of uvicorn's logger with the same rate limit as in other transports."""
    usual, warnings = logging.getLogger("uvicorn.error"), Warnings(options.host.time)
    log = logging.Logger(usual.name)
    log.parent = usual
    log.addFilter(lambda record: warnings.allows(str(record.msg)))
    return log


class UvicornServer:
    def __init__(self, application: AsgiApp, options: ListenOptions) -> None:
        limits = options.host.limits
        config = uvicorn.Config(
            application,
            http=partial(_Http, _limited_log(options)),  # type: ignore[arg-type]  # uvicorn only calls it
            ws=PatientWebSockets,
            ws_per_message_deflate=False,
            ws_max_size=limits.message,
            ws_ping_interval=limits.ping_interval,
            ws_ping_timeout=limits.ping_timeout,
            lifespan="off",
            log_config=None,
            access_log=False,
            # A proxy's headers do not identify the client.
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        config.load()
        # At level TRACE, `load` wraps the application in a logger that would log tokens in queries.
        config.loaded_app = application
        self._options = options
        self._config, self._state = config, ServerState()
        self._scope, self._released = anyio.CancelScope(), anyio.Event()

    async def start(self, sockets: list[socket.socket], url: str) -> None:
        self._options.host.spawn(self._accept, sockets, url)
        self._options.host.spawn(_keep, self._state, self._options)

    async def aclose(self) -> None:
        self._scope.cancel()
        await self._released.wait()

    async def _accept(self, sockets: list[socket.socket], url: str) -> None:
        """Accept connections as in other transports. If no file descriptors are free, asyncio's server would flood the log."""
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for sock in sockets:
                        group.start_soon(accept_from, sock, url, partial(self._options.host.spawn, self._open))
        finally:
            for sock in sockets:
                sock.close()
            self._released.set()

    async def _open(self, accepted: socket.socket, name: Any) -> None:
        tls = self._options.tls
        with contextlib.suppress(OSError):  # the client is gone, or does not use TLS
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, accepted, ssl=tls)

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self._config.http_protocol_class
        protocol: asyncio.Protocol = make(config=self._config, server_state=self._state, app_state={})
        return protocol


async def _keep(state: Any, options: ListenOptions) -> None:
    """Abort connections without a request, and all connections when the bus ends."""
    limits = options.host.limits
    silent: dict[Any, float] = {}
    try:
        while True:
            await anyio.sleep(1)
            now = options.host.time()
            # WebSockets have no request cycle.
            waiting = [connection for connection in state.connections if getattr(connection, "cycle", connection) is None]
            silent = {connection: silent.get(connection, now) for connection in waiting}
            for connection, since in silent.items():
                if now - since > limits.handshake_timeout:
                    connection.transport.close()
    finally:
        for connection in list(state.connections):
            connection.shutdown()
        with anyio.CancelScope(shield=True), anyio.move_on_after(limits.close_timeout):
            while state.tasks:  # noqa: ASYNC110  # uvicorn has no event for this
                await anyio.sleep(0.002)
        for connection in list(state.connections):
            connection.transport.abort()


class PatientWebSockets(WebSocketsSansIOProtocol):
    """uvicorn's WebSockets, hardened against slow networks and floods.

    On a slow network, pings and their answers wait behind earlier data. The timeout therefore restarts while the peer sends
    data, or receives earlier data as far as the kernel reports this. If `websockets` rejects the headers of an upgrade, the
    client gets a response, which uvicorn would omit. Floods of frames of any size don't block other connections, and the size
    of a message and the number of unread pongs are limited.
    """

    adoptable = True
    """`UvicornWebSocket` may take over these connections because it has the same protections."""

    _ping = PingProgress(None, 0)
    _heard = False
    _read = b""
    _parsed = 0
    _began = 0.0
    _goes_on = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.logger, self.conn.debug = core_logger, False  # at DEBUG, uvicorn would log headers with tokens

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._read:
            self._read, self._parsed = self._read[self._parsed :] + data, 0
            self.transport.pause_reading()
            if not self.read_paused:
                self._ask_for_a_turn()
        else:
            self._read = data
            self._take_turn()

    def _take_turn(self) -> None:
        self._goes_on = False
        self._began = sources.get().monotonic()
        self._parse()

    def _parse(self) -> None:
        """Parse until a message is waiting for the application or the time slice is used up."""
        read, clock, paused = self._read, sources.get().monotonic, False
        while self._parsed < len(read) and not self.read_paused and not self.transport.is_closing():
            if paused and clock() - self._began > _TURN:
                self._ask_for_a_turn()
                return
            start, self._parsed = self._parsed, self._parsed + _PIECE
            super().data_received(read[start : self._parsed] if len(read) > _PIECE else read)
            if not paused and self._parsed < len(read):
                paused = True
                self.transport.pause_reading()
        if self._parsed >= len(read) or self.transport.is_closing():
            self._read, self._parsed = b"", 0
            if len(read) > _PIECE and not self.read_paused:
                self.transport.resume_reading()

    def _ask_for_a_turn(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self.loop.call_soon(self._take_turn)

    async def receive(self) -> ASGIReceiveEvent:
        event = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._read:
                self.transport.resume_reading()
            elif sources.get().monotonic() - self._began > _TURN:
                self._ask_for_a_turn()
            else:
                self._parse()
        return event

    def handle_events(self) -> None:
        super().handle_events()
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            self._refuse_upgrade()

    def _refuse_upgrade(self) -> None:
        """Send the response to an upgrade request that `websockets` rejects. uvicorn itself does not send one."""
        answer = b"".join(self.conn.data_to_send())
        if not answer:
            answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(1009, f"too many fragments: {len(self.frames)} and no end")
            self.frames: list[bytes] = []
            self.handle_parser_exception()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            _ = self.conn.data_to_send()

    def send_keepalive_ping(self) -> None:
        super().send_keepalive_ping()
        self._heard = False
        self._ping = PingProgress(self._signs(), self.transport.get_write_buffer_size())

    def keepalive_timeout(self) -> None:
        if self._lives() and self.ping_timeout is not None:
            self.pong_timer: TimerHandle | None = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    def _lives(self) -> bool:
        heard, self._heard = self._heard, False
        return self._ping.comes_near(self._signs) or heard

    def _signs(self) -> Signs | None:
        return signs_of(self.transport.get_extra_info("socket"))
