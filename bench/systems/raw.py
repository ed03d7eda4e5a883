"""R: an asyncio ``Protocol`` with a length prefix and one write per message, and no future anywhere.

What a careful but simple program does without any library, and the reference of all ratios.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, ClassVar

from ._base import Client, Laps, LightWire, Publisher, json_text
from ._frames import FrameProtocol, framed, open_server, split_address

__all__ = ["connect", "light", "serve"]

# The first frame of a connection is one byte that says what it is for. Later frames of one byte ask for the count.
ECHO, COUNT, SUBSCRIBE, BURST = b"E", b"C", b"S", b"B"


class Server(FrameProtocol):
    """Echoes, counts, or keeps the connection for the fan-out."""

    subscribed: ClassVar[list[asyncio.Transport]] = []

    def __init__(self) -> None:
        super().__init__()
        self.mode = b""
        self.count = 0

    def frame_received(self, frame: bytes) -> None:
        if self.mode == ECHO:
            self.transport.write(framed(frame))
        elif self.mode == COUNT:
            if len(frame) > 1:
                self.count += 1
            else:
                self.transport.write(framed(b"%d" % self.count))
        elif frame == SUBSCRIBE:
            self.subscribed.append(self.transport)
        elif frame[:1] == BURST:
            self.burst(int(frame[1:]))
        else:
            self.mode = frame

    def burst(self, count: int) -> None:
        message = framed(json_text(64))
        for _ in range(count):
            for transport in self.subscribed:
                transport.write(message)


class Connection(FrameProtocol):
    """The asking side: replies meet a queue of callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Callable[[bytes], object]] = deque()

    def ask(self, body: bytes, callback: Callable[[bytes], object]) -> None:
        self.waiting.append(callback)
        self.transport.write(framed(body))

    def frame_received(self, frame: bytes) -> None:
        self.waiting.popleft()(frame)


class RawClient(Publisher):
    def __init__(self, connection: Connection, size: int) -> None:
        super().__init__(size)
        self.connection = connection
        self.body = json_text(size)
        self.mode = b""

    def _enter(self, mode: bytes) -> None:
        if self.mode != mode:
            self.connection.transport.write(framed(mode))
            self.mode = mode

    async def request(self) -> bytes:
        self._enter(ECHO)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.connection.ask(self.body, answer.set_result)
        return await answer

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        self._enter(ECHO)
        connection, body, laps = self.connection, self.body, list[float]()
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        count = 0
        started = perf_counter()
        end = started + seconds

        def next_request(_: bytes) -> None:
            nonlocal count
            count += 1
            if perf_counter() < end:
                connection.ask(body, next_request)
            elif not connection.waiting:
                finished.set_result(None)

        def next_serial(_: bytes) -> None:
            nonlocal count, started
            count += 1
            before, started = started, perf_counter()
            laps.append(started - before)
            if started < end:
                connection.ask(body, next_serial)
            else:
                finished.set_result(None)

        for _ in range(in_flight):
            connection.ask(body, next_serial if in_flight == 1 else next_request)
        await finished
        return Laps(count, laps)

    async def publish(self) -> None:
        self._enter(COUNT)
        self.connection.transport.write(framed(self.body))
        if self.connection.paused:
            await self.connection.writable()

    async def counted(self, total: int) -> None:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.connection.ask(b"?", answer.set_result)
        count = int(await answer)
        if count != total:
            raise RuntimeError(f"{total - count} of {total} messages were lost")


class RawWire:
    websocket = False

    def greeting(self, host: str) -> bytes:
        return b""

    def subscribe(self) -> bytes:
        return framed(SUBSCRIBE)

    def burst(self, count: int) -> bytes:
        return framed(BURST + b"%d" % count)


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    server, url = await open_server(Server)
    async with server:
        ready(url)
        await server.serve_forever()


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, *split_address(url))
    try:
        yield RawClient(connection, size)
    finally:
        connection.transport.close()


def light(options: dict[str, Any]) -> LightWire:
    return RawWire()
