"""Serves HTTP on trio for a bus without an application. On trio, hypercorn replaces uvicorn."""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import MutableMapping
from typing import Any, Final

import anyio
import trio
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.trio import run, serve, tcp_server
from hypercorn.typing import LifespanState

from ...plugins import AsgiApp, ListenOptions
from ...plugins.tools import Warnings
from ...transports.asgi import ENCRYPTED, Receive, Scope, Send

logger: logging.Logger = logging.getLogger("polybus.transports")

_accepting: Final = logging.getLogger("trio.serve_listeners")
_READ: Final = 8 * 1024
"""Bytes to read and parse in one event-loop iteration. A WebSocket frame may consist of only six bytes."""


_is_refusal: Final = re.compile(
    rb"HTTP/1\.1 [45]\d\d \r\n(?=.*^content-length: 0\r$)(?=.*^connection: close\r$)", re.IGNORECASE | re.DOTALL | re.MULTILINE
).match
"""Matches hypercorn's own rejections. They have no body, unlike rejections by an application."""


class _ServerConfig(Config):
    tls: ssl.SSLContext | None = None

    @property
    def ssl_enabled(self) -> bool:
        return self.tls is not None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        return self.tls


class _Connection(tcp_server.TCPServer):
    """A connection that isolates its failures.

    Otherwise a request that hypercorn can neither read nor reject would stop the server, and a rejected request would leave the
    connection open.
    """

    async def protocol_send(self, event: Event) -> None:
        await super().protocol_send(event)
        if isinstance(event, RawData) and _is_refusal(event.data):
            await self._close()

    async def run(self) -> None:
        if isinstance(self.stream, trio.SSLStream):  # the scope of each request has this state
            self.state = LifespanState({**self.state, ENCRYPTED: self.stream})
        try:
            await super().run()
        except* Exception:
            logger.debug("hypercorn has failed at a request, its connection is closed", exc_info=True)


class HypercornServer:
    def __init__(self, application: AsgiApp, options: ListenOptions) -> None:
        limits = options.host.limits
        self._application = application
        self._options = options
        self._stop = anyio.Event()
        self._unanswered = 0
        # Set, and replaced, when the last request is answered.
        self._answered = anyio.Event()
        self._warnings = Warnings(options.host.time)
        self._config = config = _ServerConfig()
        config.tls = options.tls
        config.errorlog = config.accesslog = None
        config.include_server_header = config.include_date_header = False
        config.alpn_protocols = ["http/1.1"]
        config.websocket_max_message_size = limits.message
        config.websocket_ping_interval = limits.ping_interval
        config.graceful_timeout = limits.close_timeout + 1

    async def start(self, sockets: list[socket.socket], url: str) -> None:
        # hypercorn has no options for these.
        tcp_server.MAX_RECV = min(tcp_server.MAX_RECV, _READ)
        run.TCPServer = _Connection  # type: ignore[attr-defined]
        self._config.bind = [f"fd://{sock.detach()}" for sock in sockets]
        self._options.host.spawn(self._run)
        _accepting.addFilter(self._is_written)

    async def _run(self) -> None:
        # hypercorn is cancelled when the bus ends, because it waits for its ping tasks, which outlive their WebSockets by up to
        # `ping_interval`.
        application: Any = self._serve
        async with anyio.create_task_group() as group:
            with anyio.CancelScope(shield=True) as serving:
                group.start_soon(self._end_with_bus, serving)
                await serve(application, self._config, shutdown_trigger=self._stop.wait, mode="asgi")
            group.cancel_scope.cancel()

    async def _end_with_bus(self, serving: anyio.CancelScope) -> None:
        """Cancel hypercorn when the bus ends, after hypercorn has answered its requests."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.move_on_after(self._options.host.limits.close_timeout, shield=True):
                while self._unanswered:
                    await self._answered.wait()
            serving.cancel()

    async def aclose(self) -> None:
        _accepting.removeFilter(self._is_written)
        self._stop.set()

    def _is_written(self, record: logging.LogRecord) -> bool:
        """Allow a few log lines per minute. If no file descriptors are free, trio logs ten lines per second."""
        record.exc_info = None
        return self._warnings.allows(str(record.msg))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and read the rest of a request before its answer ends. Otherwise hypercorn would keep both."""

        async def drop() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] != "http.response.body" or message.get("more_body"):
                await send(message)
                return
            async with anyio.create_task_group() as group:
                group.start_soon(drop)
                await send(message)
                group.cancel_scope.cancel()

        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        self._unanswered += 1
        try:
            await self._application(scope, receive, answer)
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._answered.set()
                self._answered = anyio.Event()
