"""nats-py with Debian's nats-server between the two ends; opaque bytes, or JSON that both ends read and write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from .base import Client, Counter, json_text, started_nats

__all__ = ["connect", "serve"]


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    import nats

    as_json, counter = options["body"] == "json", Counter()
    with started_nats() as address:
        while True:
            try:
                connection = await nats.connect(f"nats://{address}", allow_reconnect=False)
                break
            except (OSError, nats.errors.Error):
                await anyio.sleep(0.02)

        async def echo(message: Any) -> None:
            data = message.data
            await message.respond(msgspec.json.encode(msgspec.json.decode(data)) if as_json else data)

        async def count(message: Any) -> None:
            if as_json:
                msgspec.json.decode(message.data)
            counter.add()

        async def counted(message: Any) -> None:
            await message.respond(b"%d" % await counter.wait(int(message.data)))

        for subject, callback in (("echo", echo), ("count", count), ("counted", counted)):
            await connection.subscribe(f"bench.{subject}", cb=callback)
        await connection.flush()
        ready(f"nats://{address}")
        await anyio.sleep_forever()


class NatsClient(Client):
    def __init__(self, connection: Any, size: int, *, as_json: bool) -> None:
        super().__init__(size)
        self.connection = connection
        self.body = json_text(size)
        self.value = msgspec.json.decode(self.body)
        self.as_json = as_json

    async def request(self) -> object:
        if not self.as_json:
            return await self.connection.request("bench.echo", self.body, timeout=30)
        answer = await self.connection.request("bench.echo", msgspec.json.encode(self.value), timeout=30)
        return msgspec.json.decode(answer.data)

    async def publish(self) -> None:
        await self.connection.publish("bench.count", msgspec.json.encode(self.value) if self.as_json else self.body)

    async def counted(self, total: int) -> int:
        await self.connection.flush()
        answer = await self.connection.request("bench.counted", b"%d" % total, timeout=30)
        return int(answer.data)


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    import nats

    connection = await nats.connect(url)
    try:
        yield NatsClient(connection, size, as_json=options["body"] == "json")
    finally:
        await connection.close()
