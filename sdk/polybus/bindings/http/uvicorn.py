"""A bus alone behind HTTP on asyncio: uvicorn parses requests and frames WebSockets.

What it would do for a process of its own (signals, logging, lifespan) is off.
"""

from __future__ import annotations

import contextlib
import socket
from asyncio import TimerHandle
from collections.abc import Generator
from typing import Any

import anyio
import uvicorn
from uvicorn.lifespan.off import LifespanOff
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ...plugins import AsgiApp, ListenOptions
from ...transports._stream.sockets import PingProgress, Signs, signs_of


class _Embedded(uvicorn.Server):
    """Leaves signals to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class UvicornServer:
    """Serves an application at sockets that are bound."""

    def __init__(self, application: AsgiApp, options: ListenOptions) -> None:
        limits, tls = options.host.limits, options.tls
        more: dict[str, Any] = {} if tls is None else {"ssl_context_factory": lambda config, default: tls}
        config = uvicorn.Config(
            application,
            http="h11",
            ws=PatientWebSockets,
            ws_per_message_deflate=False,
            ws_max_size=limits.message,
            ws_ping_interval=limits.ping_interval,
            ws_ping_timeout=limits.ping_timeout,
            lifespan="off",
            log_config=None,
            access_log=False,
            # The word of a proxy is not taken for who its client is.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            **more,
        )
        config.load()
        self._options = options
        self._server = server = _Embedded(config)
        server.lifespan = LifespanOff(config)

    async def start(self, sockets: list[socket.socket]) -> None:
        await self._server.startup(sockets=sockets)
        self._options.host.spawn(_keep, self._server, self._options)

    def close(self) -> None:
        """Stop accepting and release the address; connections stay."""
        for listening in self._server.servers:
            listening.close()


async def _keep(server: Any, options: ListenOptions) -> None:
    """Cut connections without a request; at the end of the bus, all."""
    state, limits = server.server_state, options.host.limits
    silent: dict[Any, float] = {}
    try:
        while True:
            await anyio.sleep(1)
            now = options.host.time()
            # A WebSocket has no cycle of requests.
            waiting = [connection for connection in state.connections if getattr(connection, "cycle", connection) is None]
            silent = {connection: silent.get(connection, now) for connection in waiting}
            for connection, since in silent.items():
                if now - since > limits.handshake_timeout:
                    connection.transport.close()
    finally:
        for listening in server.servers:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        with anyio.CancelScope(shield=True), anyio.move_on_after(limits.close_timeout):
            while state.tasks:  # noqa: ASYNC110  # uvicorn has no event for it
                await anyio.sleep(0.002)
        for connection in list(state.connections):
            connection.transport.abort()


class PatientWebSockets(WebSocketsSansIOProtocol):
    """uvicorn's own over slow lines, where a ping waits behind what was written before it, and its answer with it: the time for
    an answer begins anew while the peer shows that it is there. It has said anything, or more of what was written before the
    ping has arrived, where the kernel tells that.
    """

    _ping = PingProgress(None, 0)
    _heard = False

    def data_received(self, data: bytes) -> None:
        self._heard = True
        super().data_received(data)

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
        """True if the peer has shown, since this was asked last, that it is there."""
        heard, self._heard = self._heard, False
        return self._ping.comes_near(self._signs) or heard

    def _signs(self) -> Signs | None:
        return signs_of(self.transport.get_extra_info("socket"))
