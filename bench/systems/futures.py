"""F: like R, but with one future per request and with writes joined per turn of the loop.

Nothing is decoded, only framed and matched: the honest ceiling of a bus whose request can be awaited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ._base import Client, LightWire, Publisher, json_text
from ._frames import FrameProtocol, framed, open_server, split_address
from .raw import RawWire

__all__ = ["connect", "light", "serve"]

_YIELD_EVERY = 64


class Server(FrameProtocol):
    """Echoes what is longer than one byte until it is told to count; the answers to one chunk leave in one write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = -1
        self.answers: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.answers:
            self.transport.write(b"".join(self.answers))
            self.answers.clear()

    def frame_received(self, frame: bytes) -> None:
        if len(frame) > 1:
            if self.count < 0:
                self.answers.append(framed(frame))
            else:
                self.count += 1
        elif frame == b"?":
            self.answers.append(framed(b"%d" % self.count))
        else:
            self.count = 0


class Connection(FrameProtocol):
    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[asyncio.Future[bytes]] = deque()
        self.loop = asyncio.get_running_loop()
        self.out: list[bytes] = []

    def send(self, body: bytes) -> None:
        if not self.out:
            self.loop.call_soon(self.flush)
        self.out.append(framed(body))

    def flush(self) -> None:
        self.transport.write(b"".join(self.out))
        self.out.clear()

    def ask(self, body: bytes) -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = self.loop.create_future()
        self.waiting.append(answer)
        self.send(body)
        return answer

    def frame_received(self, frame: bytes) -> None:
        self.waiting.popleft().set_result(frame)


class FutureClient(Publisher):
    def __init__(self, connection: Connection, size: int) -> None:
        super().__init__(size)
        self.connection = connection
        self.body = json_text(size)
        self.counting = False
        self.since_yield = 0

    def request(self) -> asyncio.Future[bytes]:  # type: ignore[override]  # it is awaited all the same
        return self.connection.ask(self.body)

    async def publish(self) -> None:
        if not self.counting:
            self.counting = True
            self.connection.send(b"C")
        self.connection.send(self.body)
        self.since_yield += 1
        if self.since_yield == _YIELD_EVERY:
            self.since_yield = 0
            await asyncio.sleep(0)
            if self.connection.paused:
                await self.connection.writable()

    async def counted(self, total: int) -> None:
        count = int(await self.connection.ask(b"?"))
        if count != total:
            raise RuntimeError(f"{total - count} of {total} messages were lost")


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    server, url = await open_server(Server)
    async with server:
        ready(url)
        await server.serve_forever()


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, *split_address(url))
    try:
        yield FutureClient(connection, size)
    finally:
        connection.transport.close()


def light(options: dict[str, Any]) -> LightWire:
    return RawWire()
