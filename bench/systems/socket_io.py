"""python-socketio, its asyncio client and its server under uvicorn, over WebSocket alone; msgspec reads and writes its JSON."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import socketio
import uvicorn

from ._base import Client, Publisher, json_text
from ._frames import BACKLOG
from .ours import Counter

__all__ = ["connect", "serve"]

_YIELD_EVERY = 64


class Json:
    """What it asks of a module for JSON."""

    @staticmethod
    def dumps(value: object, **_: object) -> str:
        return msgspec.json.encode(value).decode()

    @staticmethod
    def loads(text: str, **_: object) -> Any:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    server, counter = socketio.AsyncServer(async_mode="asgi", json=Json), Counter()

    async def echo(sid: str, body: dict[str, Any]) -> dict[str, Any]:
        return body

    async def count(sid: str, body: dict[str, Any]) -> None:
        counter.add()

    async def counted(sid: str, total: int) -> int:
        return await counter.wait(total)

    for handler in (echo, count, counted):
        server.on(handler.__name__, handler)
    config = uvicorn.Config(
        socketio.ASGIApp(server), ws="websockets-sansio", ws_per_message_deflate=False, log_level="error", backlog=BACKLOG
    )
    under = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as sock:
        async with anyio.create_task_group() as group:
            group.start_soon(under.serve, [sock])
            while not under.started:  # noqa: ASYNC110  # uvicorn tells nobody
                await anyio.sleep(0.001)
            ready(f"http://127.0.0.1:{sock.getsockname()[1]}")


class SocketioClient(Publisher):
    def __init__(self, client: socketio.AsyncClient, size: int) -> None:
        super().__init__(size)
        self.client = client
        self.body = msgspec.json.decode(json_text(size))
        self.since_yield = 0

    async def request(self) -> object:
        return await self.client.call("echo", self.body)

    async def publish(self) -> None:
        await self.client.emit("count", self.body)
        self.since_yield += 1
        if self.since_yield == _YIELD_EVERY:
            # It queues without a bound and without a turn of the loop.
            self.since_yield = 0
            await asyncio.sleep(0)

    async def counted(self, total: int) -> None:
        count = await self.client.call("counted", total, timeout=30)
        if count != total:
            raise RuntimeError(f"{total - count} of {total} messages were lost")


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    client = socketio.AsyncClient(json=Json, reconnection=False, handle_sigint=False)
    await client.connect(url, transports=["websocket"])
    try:
        yield SocketioClient(client, size)
    finally:
        await client.disconnect()
