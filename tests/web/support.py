"""A real uvicorn for the tests, in their own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn

__all__ = ["Uvicorn", "running"]


@asynccontextmanager
async def running(app: Any, **options: Any) -> AsyncIterator[Uvicorn]:
    """Serve an ASGI application on a free port of the loopback address."""
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, **{"log_level": "critical", "timeout_graceful_shutdown": 1, **options})
    running = Uvicorn(config)
    running.port = sock.getsockname()[1]
    task = asyncio.get_running_loop().create_task(running.serve(sockets=[sock]))
    try:
        while not running.started:  # uvicorn tells nobody
            assert not task.done(), task
            await anyio.sleep(0.001)
        yield running
    finally:
        running.should_exit = True
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        task.result()


class Uvicorn(uvicorn.Server):
    """Looks every few milliseconds whether it has to go, goes without a pause, and leaves signals to the tests."""

    port = 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110  # what signals and tests set is a plain attribute
            await anyio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(2):
            while self.server_state.tasks:  # noqa: ASYNC110  # uvicorn tells nobody
                await anyio.sleep(0.002)
        await self.lifespan.shutdown()
