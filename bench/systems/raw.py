"""R and F: an asyncio ``Protocol`` with a length prefix, without any library or decoding.

R writes each message separately without futures, as a careful but simple program would: the reference of all ratios. F
(``futures``) has one future per request, and joins the writes of a loop iteration: the honest ceiling of a bus with awaitable
requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import Struct
from time import perf_counter
from typing import Any, ClassVar, cast

from .base import BACKLOG, YIELD_EVERY, Client, Laps, Wire, json_text, split_address

__all__ = ["connect", "light", "serve"]

_LENGTH = Struct(">I")
# The first frame of a connection is one byte for its purpose. Later frames of one byte request the count.
ECHO, COUNT, SUBSCRIBE, BURST = b"E", b"C", b"S", b"B"


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


class FrameProtocol(asyncio.Protocol):
    """Calls `frame_received` for each frame; chunks of a large one are joined once."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._missing = 0
        self._resumed: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        if self._chunks:
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._chunks)
            self._chunks = []
        unpack, received = _LENGTH.unpack_from, self.frame_received
        position, end = 0, len(data)
        while (start := position + 4) <= end:
            stop = start + unpack(data, position)[0]
            if stop > end:
                self._missing = stop - end
                break
            received(data[start:stop])
            position = stop
        else:
            self._missing = 4 - (end - position)
        if position < end:
            self._chunks = [data[position:]]

    def pause_writing(self) -> None:
        self._resumed = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None

    @property
    def paused(self) -> bool:
        return self._resumed is not None

    async def writable(self) -> None:
        if self._resumed is not None:
            await self._resumed


class Server(FrameProtocol):
    """Echoes, counts, or keeps the connection for the fan-out."""

    subscribed: ClassVar[list[asyncio.Transport]] = []

    def __init__(self) -> None:
        super().__init__()
        self.mode = b""
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.write: Callable[[bytes], object] = self.transport.write

    def frame_received(self, frame: bytes) -> None:
        if self.mode == ECHO:
            self.write(framed(frame))
        elif self.mode == COUNT:
            if len(frame) > 1:
                self.count += 1
            else:
                self.write(framed(b"%d" % self.count))
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


class JoiningServer(Server):
    """Joins the answers to one chunk in one write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.answers: list[bytes] = []
        self.write = self.answers.append

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.answers:
            self.transport.write(b"".join(self.answers))
            self.answers.clear()


class Connection(FrameProtocol):
    """The client: replies go to a queue of callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Callable[[bytes], object]] = deque()

    def send(self, body: bytes) -> None:
        self.transport.write(framed(body))

    def ask(self, body: bytes, callback: Callable[[bytes], object]) -> None:
        self.waiting.append(callback)
        self.transport.write(framed(body))

    def frame_received(self, frame: bytes) -> None:
        self.waiting.popleft()(frame)


class JoiningConnection(Connection):
    """Joins the frames of one loop iteration in one write."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.out: list[bytes] = []

    def send(self, body: bytes) -> None:
        if not self.out:
            self.loop.call_soon(self.flush)
        self.out.append(framed(body))

    def flush(self) -> None:
        self.transport.write(b"".join(self.out))
        self.out.clear()

    def ask(self, body: bytes, callback: Callable[[bytes], object]) -> None:
        self.waiting.append(callback)
        self.send(body)


class FutureClient(Client):
    """F."""

    def __init__(self, connection: Connection, size: int) -> None:
        super().__init__(size)
        self.connection = connection
        self.body = json_text(size)
        self.mode = b""
        self.sent = 0
        self.loop = asyncio.get_running_loop()

    def enter(self, mode: bytes) -> None:
        if self.mode != mode:
            self.connection.send(mode)
            self.mode = mode

    def ask(self, body: bytes) -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = self.loop.create_future()
        self.connection.ask(body, answer.set_result)
        return answer

    def request(self) -> asyncio.Future[bytes]:  # type: ignore[override]  # it is awaited all the same
        return self.ask(self.body)

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        self.enter(ECHO)
        return await super().requests(in_flight, seconds)

    async def publish(self) -> None:
        self.enter(COUNT)
        self.connection.send(self.body)
        self.sent += 1
        if self.sent % YIELD_EVERY == 0:
            await asyncio.sleep(0)
            await self.connection.writable()

    async def counted(self, total: int) -> int:
        return int(await self.ask(b"?"))


class RawClient(FutureClient):
    """R: callbacks send the next request, and writing stops while the other side is behind."""

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        self.enter(ECHO)
        connection, body, laps = self.connection, self.body, list[float]()
        finished: asyncio.Future[None] = self.loop.create_future()
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
        self.enter(COUNT)
        self.connection.transport.write(framed(self.body))
        if self.connection.paused:
            await self.connection.writable()


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    protocol = JoiningServer if options.get("futures") else Server
    server = await loop.create_server(protocol, "127.0.0.1", 0, backlog=BACKLOG)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        ready(f"tcp://{host}:{port}")
        await server.serve_forever()


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    joined = options.get("futures")
    made: type[Connection] = JoiningConnection if joined else Connection
    _, connection = await asyncio.get_running_loop().create_connection(made, *split_address(url))
    try:
        yield FutureClient(connection, size) if joined else RawClient(connection, size)
    finally:
        connection.transport.close()


def light(options: dict[str, Any]) -> Wire:
    return Wire(subscribe=SUBSCRIBE, burst=BURST + b"%d")
