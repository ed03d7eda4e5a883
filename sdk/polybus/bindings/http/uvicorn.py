"""A bus alone behind HTTP on asyncio: uvicorn parses requests and frames WebSockets.

What it would do for a process of its own (signals, logging, lifespan) is off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import anyio

from ...errors import Unsupported

if TYPE_CHECKING:
    import socket

    from ...plugins import AsgiApp, ListenOptions


class UvicornServer:
    """Serves an application at sockets that are bound.

    Raises:
        Unsupported: uvicorn is missing.
    """

    def __init__(self, application: AsgiApp, options: ListenOptions) -> None:
        try:
            import uvicorn
            from uvicorn.lifespan.off import LifespanOff

            from .uvicorn_pings import PatientWebSockets
        except ImportError as error:
            raise Unsupported(f"to serve HTTP alone needs uvicorn ({error}): pip install 'polybus[fastapi]'") from None

        class Embedded(uvicorn.Server):
            """Leaves signals to the program."""

            @contextlib.contextmanager
            def capture_signals(self) -> Generator[None, None, None]:
                yield

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
        self._server = server = Embedded(config)
        server.lifespan = LifespanOff(config)

    async def start(self, sockets: list[socket.socket]) -> None:
        """Begin to accept."""
        await self._server.startup(sockets=sockets)
        self._options.host.spawn(_keep, self._server, self._options)

    def close(self) -> None:
        """Stop accepting and release the address; connections stay."""
        for listening in self._server.servers:
            listening.close()


def _asks_nothing(connection: Any) -> bool:
    """True if no request has come in yet; a WebSocket has no cycle of requests."""
    return getattr(connection, "cycle", connection) is None


async def _keep(server: Any, options: ListenOptions) -> None:
    """Cut connections without a request; at the end of the bus, all."""
    state, limits = server.server_state, options.host.limits
    silent: dict[Any, float] = {}
    try:
        while True:
            await anyio.sleep(1)
            now = options.host.time()
            silent = {connection: silent.get(connection, now) for connection in state.connections if _asks_nothing(connection)}
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
