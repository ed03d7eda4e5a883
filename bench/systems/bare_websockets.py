"""The asyncio API of ``websockets`` alone: an echo, a counter, and its own broadcast.

Or with what a program adds to it: JSON at both ends, and a future for each request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_connection
from websockets.asyncio.server import ServerConnection, broadcast
from websockets.asyncio.server import serve as open_server
from websockets.exceptions import ConnectionClosed

from .base import BACKLOG, Client, Laps, Wire, json_text

__all__ = ["connect", "light", "serve"]

_SHORT = 32
_subscribed: set[ServerConnection] = set()


def _counts(connection: ServerConnection) -> bool:
    return connection.request is not None and connection.request.path == "/count"


async def _handle(connection: ServerConnection) -> None:
    count, counts = 0, _counts(connection)
    with suppress(ConnectionClosed):
        async for message in connection:
            if len(message) > _SHORT:
                if counts:
                    count += 1
                else:
                    await connection.send(message)
            elif message == "?":
                await connection.send(str(count))
            elif message == "subscribe":
                _subscribed.add(connection)
            elif message.startswith("burst "):  # type: ignore[arg-type]  # only text is sent here
                text = json_text(64).decode()
                for _ in range(int(message[6:])):
                    broadcast(_subscribed, text)


async def _handle_json(connection: ServerConnection) -> None:
    count, counts = 0, _counts(connection)
    with suppress(ConnectionClosed):
        while True:
            data = await connection.recv(decode=False)
            if len(data) < _SHORT:
                await connection.send(b"%d" % count, text=True)
                continue
            value = msgspec.json.decode(data)
            if counts:
                count += 1
            else:
                await connection.send(msgspec.json.encode(value), text=True)


class WebSocketClient(Client):
    def __init__(self, connection: ClientConnection, counter: ClientConnection, size: int) -> None:
        super().__init__(size)
        self.connection = connection
        self.counter = counter
        self.body = json_text(size).decode()

    async def request(self) -> object:
        await self.connection.send(self.body)
        return await self.connection.recv()

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        if in_flight == 1:
            return await super().requests(in_flight, seconds)
        # Replies come in order, so one task may send and receive all requests in flight.
        send, receive, body, count = self.connection.send, self.connection.recv, self.body, 0
        for _ in range(in_flight):
            await send(body)
        end = perf_counter() + seconds
        while perf_counter() < end:
            await receive()
            await send(body)
            count += 1
        for _ in range(in_flight):
            await receive()
        return Laps(count + in_flight)

    async def publish(self) -> None:
        await self.counter.send(self.body)

    async def counted(self, total: int) -> int:
        await self.counter.send("?")
        return int(await self.counter.recv())


class JsonClient(WebSocketClient):
    """One task reads; answers come in the order of the requests."""

    def __init__(self, connection: ClientConnection, counter: ClientConnection, size: int) -> None:
        super().__init__(connection, counter, size)
        self.value = msgspec.json.decode(self.body)
        self.waiting: deque[asyncio.Future[Any]] = deque()
        self.new_answer = asyncio.get_running_loop().create_future

    async def read(self) -> None:
        receive = self.connection.recv
        with suppress(ConnectionClosed):
            while True:
                value = msgspec.json.decode(await receive(decode=False))
                self.waiting.popleft().set_result(value)

    async def request(self) -> object:
        answer: asyncio.Future[Any] = self.new_answer()
        self.waiting.append(answer)
        await self.connection.send(msgspec.json.encode(self.value), text=True)
        return await answer

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        return await Client.requests(self, in_flight, seconds)

    async def publish(self) -> None:
        await self.counter.send(msgspec.json.encode(self.value), text=True)


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    handle = _handle_json if options["body"] == "json" else _handle
    async with open_server(
        handle, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None, backlog=BACKLOG
    ) as server:
        host, port = server.sockets[0].getsockname()[:2]
        ready(f"ws://{host}:{port}")
        await server.serve_forever()


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    async with (
        open_connection(url + "/echo", compression=None, max_size=None, ping_interval=None) as connection,
        open_connection(url + "/count", compression=None, max_size=None, ping_interval=None) as counter,
    ):
        if options["body"] != "json":
            yield WebSocketClient(connection, counter, size)
            return
        client = JsonClient(connection, counter, size)
        reading = asyncio.create_task(client.read())
        try:
            yield client
        finally:
            reading.cancel()
            await asyncio.wait([reading])


def light(options: dict[str, Any]) -> Wire:
    return Wire(subscribe=b"subscribe", burst=b"burst %d", path="/")
