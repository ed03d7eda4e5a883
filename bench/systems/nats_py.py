"""nats-py with Debian's nats-server between the two ends; opaque bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from ._base import Client, json_text
from ._helpers import free_port, nats_server, start

__all__ = ["connect", "serve"]


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    import nats

    path, port = nats_server(), free_port()
    assert path is not None
    url = f"nats://127.0.0.1:{port}"
    with start(path, "-a", "127.0.0.1", "-p", str(port)):
        while True:
            try:
                connection = await nats.connect(url, allow_reconnect=False)
                break
            except (OSError, nats.errors.Error):
                await anyio.sleep(0.02)

        async def echo(message: Any) -> None:
            await message.respond(message.data)

        await connection.subscribe("bench.echo", cb=echo)
        await connection.flush()
        ready(url)
        await anyio.sleep_forever()


class NatsClient(Client):
    def __init__(self, connection: Any, size: int) -> None:
        super().__init__(size)
        self.connection = connection
        self.body = json_text(size)

    async def request(self) -> object:
        return await self.connection.request("bench.echo", self.body, timeout=30)


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    import nats

    connection = await nats.connect(url)
    try:
        yield NatsClient(connection, size)
    finally:
        await connection.close()
