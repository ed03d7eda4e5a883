"""CSB through the broker, a process of its own: our bus at both ends, or by hand to see what the broker alone costs."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from polybus import connect as connect_bus

from . import ours
from ._base import Client, Laps, json_text
from ._frames import FrameProtocol, framed, split_address
from ._helpers import start

__all__ = ["connect", "serve"]

_ECHO = 0x00010001


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "bench.systems.csb_broker", options["loop"]]
    with start(*command) as broker:
        assert broker.stdout is not None
        clients, servers = (await asyncio.to_thread(broker.stdout.readline)).decode().split()
        if options["endpoints"] == "raw":
            _, connection = await asyncio.get_running_loop().create_connection(RawServer, *split_address(servers))
            ready(clients)
            await connection.gone
        else:
            bus = ours.make_bus(options)
            adapter = ours.protocol_of(options, side="broker-server")
            async with connect_bus(servers.partition("?")[0], bus=bus, protocol=adapter):
                ready(clients)
                await bus.wait_closed()


class RawServer(FrameProtocol):
    """Answers every request with its own payload, one write for each."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set_result(None)

    def frame_received(self, frame: bytes) -> None:
        if frame[4] & 0xF0 == 0x10:
            self.transport.write(framed(frame[:4] + bytes((0x20 | frame[4] & 15,)) + frame[5:]))


class RawClientConnection(FrameProtocol):
    """The asking side: replies meet a queue of callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Callable[[bytes], object]] = deque()

    def frame_received(self, frame: bytes) -> None:
        if frame:
            self.waiting.popleft()(frame)


class RawClient(Client):
    def __init__(self, connection: RawClientConnection, size: int) -> None:
        super().__init__(size)
        self.connection = connection
        self.frame = framed(struct.pack(">BBHI", 0x12, 0, 1, _ECHO) + json_text(size))

    def ask(self, callback: Callable[[bytes], object]) -> None:
        self.connection.waiting.append(callback)
        self.connection.transport.write(self.frame)

    async def request(self) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.ask(answer.set_result)
        return await answer

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        if in_flight == 1:
            return await super().requests(in_flight, seconds)
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        count, end = 0, perf_counter() + seconds

        def next_request(_: bytes) -> None:
            nonlocal count
            count += 1
            if perf_counter() < end:
                self.ask(next_request)
            elif not self.connection.waiting:
                finished.set_result(None)

        for _ in range(in_flight):
            self.ask(next_request)
        await finished
        return Laps(count)


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    if options["endpoints"] == "raw":
        _, connection = await asyncio.get_running_loop().create_connection(RawClientConnection, *split_address(url))
        try:
            yield RawClient(connection, size)
        finally:
            connection.transport.close()
    else:
        async with ours.connect(options, url, size) as client:
            yield client


async def _broker() -> None:
    from polybus import Broker, Limits

    limits = Limits(message=4 * 1024 * 1024, outbox_bytes=64 * 1024 * 1024)
    async with Broker("csb+tcp://127.0.0.1:0", "csb+tcp://127.0.0.1:0", limits=limits) as broker:
        print(*broker.client_urls, *broker.server_urls, flush=True)
        await broker.wait_closed()


if __name__ == "__main__":
    import anyio

    anyio.run(_broker, backend_options={"use_uvloop": sys.argv[1] == "uvloop"})
