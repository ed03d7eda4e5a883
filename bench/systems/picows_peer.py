"""picows: WebSocket in Cython, with callbacks. Opaque bytes from callback to callback, or JSON and a future per request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_connect, ws_create_server

from ._answers import Answers
from ._base import Client, Laps, Publisher, json_text
from ._frames import BACKLOG

__all__ = ["connect", "serve"]

_TEXT = WSMsgType.TEXT
_SHORT = 32


class Server(WSListener):  # type: ignore[misc]  # it is untyped
    """Echoes, or counts and says the count when it is asked."""

    def __init__(self, *, counts: bool, as_json: bool) -> None:
        super().__init__()
        self.counts = counts
        self.as_json = as_json
        self.count = 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()
        elif frame.payload_size < _SHORT:
            transport.send(_TEXT, b"%d" % self.count)
        elif self.counts:
            self.count += 1
            if self.as_json:
                msgspec.json.decode(frame.get_payload_as_memoryview())
        elif self.as_json:
            transport.send(_TEXT, msgspec.json.encode(msgspec.json.decode(frame.get_payload_as_memoryview())))
        else:
            transport.send(_TEXT, frame.get_payload_as_bytes())


class Connection(WSListener):  # type: ignore[misc]  # it is untyped
    """The asking side: what comes is handed to `received`."""

    def __init__(self, received: Callable[[WSFrame], object]) -> None:
        super().__init__()
        self.received = received
        self.resumed: asyncio.Event | None = None

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()
        else:
            self.received(frame)

    def pause_writing(self) -> None:
        self.resumed = asyncio.Event()

    def resume_writing(self) -> None:
        if self.resumed is not None:
            self.resumed.set()
            self.resumed = None


class PicowsClient(Publisher):
    """Opaque bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.body = json_text(size)
        self.answers = Answers()
        self.listener, self.counter_listener = Connection(self._answered), Connection(self._counted)
        self.counts = Answers()
        self.transport: WSTransport
        self.counter: WSTransport

    async def open(self, url: str) -> None:
        self.transport, _ = await ws_connect(lambda: self.listener, f"{url}/echo")
        self.counter, _ = await ws_connect(lambda: self.counter_listener, f"{url}/count")

    def close(self) -> None:
        self.transport.disconnect()
        self.counter.disconnect()

    def _answered(self, frame: WSFrame) -> None:
        self.answers.arrived(frame.get_payload_as_bytes())

    def _counted(self, frame: WSFrame) -> None:
        self.counts.arrived(int(frame.get_payload_as_bytes()))

    async def request(self) -> object:
        self.transport.send(_TEXT, self.body)
        return await self.answers.next()

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        """As R does it: what comes sends the next one."""
        if in_flight == 1:
            return await self._serial(seconds)
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        send, body, count, left = self.transport.send, self.body, 0, in_flight
        end = perf_counter() + seconds

        def next_request(frame: WSFrame) -> None:
            nonlocal count, left
            frame.get_payload_as_bytes()
            count += 1
            if perf_counter() < end:
                send(_TEXT, body)
            else:
                left -= 1
                if not left:
                    finished.set_result(None)

        self.listener.received = next_request
        for _ in range(in_flight):
            send(_TEXT, body)
        await finished
        self.listener.received = self._answered
        return Laps(count)

    async def publish(self) -> None:
        self.counter.send(_TEXT, self.body)
        if self.counter_listener.resumed is not None:
            await self.counter_listener.resumed.wait()

    async def counted(self, total: int) -> None:
        self.counter.send(_TEXT, b"?")
        count = await self.counts.next()
        if count != total:
            raise RuntimeError(f"{total - count} of {total} messages were lost")


class JsonClient(PicowsClient):
    """JSON, and a future that each request waits for."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.value = msgspec.json.decode(self.body)

    def _answered(self, frame: WSFrame) -> None:
        self.answers.arrived(msgspec.json.decode(frame.get_payload_as_memoryview()))

    async def request(self) -> object:
        self.transport.send(_TEXT, msgspec.json.encode(self.value))
        return await self.answers.next()

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        return await Client.requests(self, in_flight, seconds)

    async def publish(self) -> None:
        self.counter.send(_TEXT, msgspec.json.encode(self.value))
        if self.counter_listener.resumed is not None:
            await self.counter_listener.resumed.wait()


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    def listener(request: WSUpgradeRequest) -> Server:
        return Server(counts=request.path == b"/count", as_json=options["body"] == "json")

    async with await ws_create_server(listener, "127.0.0.1", 0, backlog=BACKLOG) as server:
        host, port = server.sockets[0].getsockname()[:2]
        ready(f"ws://{host}:{port}")
        await server.serve_forever()


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    client = JsonClient(size) if options["body"] == "json" else PicowsClient(size)
    await client.open(url)
    try:
        yield client
    finally:
        client.close()
