"""The Python calls that a message costs: a measure of the hot path that no machine can shake.

Counted are the functions of polybus itself, over UBRE and TCP on asyncio, on connections that are warm. Where one side is
meant, the other is a raw socket. A change that needs more calls says here why it is worth them; one that needs fewer lowers
the figure.
"""

import asyncio
import gc
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import polybus
from polybus import Bus, connect
from tests.support import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.native]

PACKAGE = str(Path(polybus.__file__).parent)
BODY = {"id": 7}
WARM = 50
"""Messages before one is counted: caches are full then, and workers have been started."""
SEVERAL = 15
TURNS = 30
"""Of the event loop, in which all that one message causes in this process has happened."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Calls:
    """The calls into polybus while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        gc.disable()  # finalizers of earlier tests are no calls of this message
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.count += 1


async def calls_of(act: Callable[[Calls], Awaitable[object]], warm: int = WARM) -> int:
    """The calls that `act` counts, once all is warm: the fewest of several, for a timer or half a frame may come between."""
    counts = []
    for index in range(warm + SEVERAL):
        calls = Calls()
        await act(calls)
        if index >= warm:
            counts.append(calls.count)
    return min(counts)


async def settled() -> None:
    """Wait until all that is under way in this process has happened."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def frame(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


@asynccontextmanager
async def raw_server() -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A server that reads and says nothing by itself: its URL, and who has connected."""
    writers: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        yield f"ubre+tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", writers


@asynccontextmanager
async def raw_subscribers(bus: Bus, count: int) -> AsyncIterator[None]:
    """So many raw clients that have subscribed to ``news``."""
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(bus.serve("ubre+tcp://127.0.0.1:0"))
        port = int(listener.url.rpartition(":")[2])
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(frame(b'{"subscribe":"news"}'))
        await eventually(lambda: bus.stats().received == count)
        yield


async def test_a_request_costs_95_calls_at_both_ends_together() -> None:
    server = Bus()

    @server.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    async with server.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:

        async def ask(calls: Calls) -> None:
            with calls:
                await client.request("echo", BODY, timeout=30)
                await settled()

        assert await calls_of(ask) <= 95


async def test_a_publication_costs_its_publisher_11_calls_until_the_wire_has_it() -> None:
    async with raw_server() as (url, _), connect(url) as client:

        async def publish(calls: Calls) -> None:
            with calls:
                await client.publish("news", BODY)
            await settled()

        assert await calls_of(publish) <= 11


async def test_a_publication_to_many_costs_2_calls_for_each_and_23_once() -> None:
    async def publish(bus: Bus, calls: Calls) -> None:
        with calls:
            await bus.publish("news", BODY)
        await settled()

    few, many = Bus(), Bus()
    async with raw_subscribers(few, 50), raw_subscribers(many, 100):
        for_few = await calls_of(partial(publish, few))
        for_many = await calls_of(partial(publish, many))
    assert for_many - for_few <= 2 * 50
    assert for_many <= 2 * 100 + 23


async def test_a_publication_costs_its_subscriber_17_calls_until_it_can_be_read() -> None:
    async with raw_server() as (url, writers), connect(url) as client, client.subscribe("news"):
        (writer,) = writers

        async def hear(calls: Calls) -> None:
            received = client.stats().received
            with calls:
                writer.write(frame(b'{"publish":"news","body":{"id":7}}'))
                await settled()
            assert client.stats().received == received + 1

        assert await calls_of(hear) <= 17


async def test_a_connect_costs_310_calls_at_both_ends_together() -> None:
    async with Bus().serve("ubre+tcp://127.0.0.1:0") as listener:

        async def enter(calls: Calls) -> None:
            connecting = connect(listener.url)
            with calls:
                await connecting.__aenter__()
                await settled()
            await connecting.__aexit__(None, None, None)

        assert await calls_of(enter, 5) <= 310
