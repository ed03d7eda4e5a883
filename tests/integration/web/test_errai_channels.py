"""The three ways back from a server to a client over HTTP: long polls, events, and the WebSocket negotiated with tokens."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import Backoff, Bus, BusError, Limits, connect
from tests.support import BOUND, free_port

CHANNELS = ("poll", "events", "websocket")
MESSAGES = 3_000


class Server:
    """A bus alone behind HTTP that hears numbers and publishes each again; another one takes its place on the same port."""

    def __init__(self) -> None:
        self._url = f"jrep+http://127.0.0.1:{free_port()}"
        self.heard: list[int] = []
        self.bus = Bus()
        self._running = AsyncExitStack()

    async def start(self) -> None:
        self.bus = bus = Bus(limits=Limits(close_timeout=0.2))

        @bus.on("up")
        async def up(body: int) -> None:
            self.heard.append(body)
            await bus.publish("down", body)

        @bus.handle("barrier")
        async def barrier() -> int:
            return len(self.heard)

        @bus.handle("echo")
        async def echo(body: Any) -> Any:
            return body

        await self._running.enter_async_context(bus.serve(self._url))

    async def stop(self) -> None:
        await self._running.aclose()

    def url(self, channel: str) -> str:
        return f"{self._url}?channel={channel}"


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    with anyio.fail_after(BOUND):
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


async def until_up(bus: Bus) -> None:
    """A barrier that outlives lost links."""
    while True:
        try:
            await bus.request("barrier")
            return
        except BusError:
            await anyio.sleep(0.001)


@pytest.mark.parametrize("channel", CHANNELS)
async def test_an_expiry_and_a_restart_cost_a_gap_each_and_nothing_twice(channel: str) -> None:
    backoff = Backoff(initial=0.001, maximum=0.01)
    async with serving() as server, connect(server.url(channel), backoff=backoff) as bus:
        got: list[int] = []

        @bus.on("down")
        async def on_down(body: int) -> None:
            got.append(body)

        for number in range(MESSAGES):
            await bus.publish("up", number)
            if number % 100 == 0:
                await anyio.lowlevel.checkpoint()
            if number == 1_000:
                await server.bus.peers[0].aclose("expired")
            elif number == 2_000:
                await server.stop()
                await server.start()
            elif number in (800, 1_200, 1_800, 2_200):
                await until_up(bus)  # what was published before it has come
        await until_up(bus)
        await until_up(bus)  # what came before its answer came before it
    lost = gaps(server.heard)
    assert len(lost) <= 2, "each break costs what was under way, and nothing around it"
    assert all(800 < first <= last <= 1_200 or 1_800 < first <= last <= 2_200 for first, last in lost), lost
    assert server.heard[-1] == got[-1] == MESSAGES - 1
    assert set(got) <= set(server.heard)
    assert len(gaps(got)) <= 2


def gaps(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers that are missing."""
    assert numbers == sorted(set(numbers)), "in order, and none twice"
    edges = zip([-1, *numbers], [*numbers, MESSAGES], strict=True)
    return [(before + 1, after - 1) for before, after in edges if after - before > 1]
