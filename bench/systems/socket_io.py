"""python-socketio, its asyncio client and its server under uvicorn, only over WebSocket; msgspec reads and writes its JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import socketio

from .base import YIELD_EVERY, Client, Counter, json_text, serve_uvicorn

__all__ = ["connect", "serve"]


class Json:
    """Interface of a JSON module for python-socketio."""

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

    async def burst(sid: str, count: int) -> None:
        for _ in range(count):
            await server.emit("fan", fan, to=sid)
            await asyncio.sleep(0)  # as ours does

    fan = msgspec.json.decode(json_text(64))
    for handler in (echo, count, counted, burst):
        server.on(handler.__name__, handler)
    await serve_uvicorn(socketio.ASGIApp(server), lambda port: ready(f"http://127.0.0.1:{port}"))


class SocketioClient(Client):
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
        if self.since_yield % YIELD_EVERY == 0:
            # It queues without a bound and without yielding to the loop.
            await asyncio.sleep(0)

    async def counted(self, total: int) -> int:
        return int(await self.client.call("counted", total, timeout=30))


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    client = socketio.AsyncClient(json=Json, reconnection=False, handle_sigint=False)
    await client.connect(url, transports=["websocket"])
    try:
        yield SocketioClient(client, size)
    finally:
        await client.disconnect()
