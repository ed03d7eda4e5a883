"""The three ways back from a server to a client over HTTP: long polls, events, and the WebSocket negotiated with tokens."""

from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import pytest

from polybus import Backoff, Bus, BusError, Limits, connect
from tests.support import BOUND, free_port

MESSAGES = 3_000


async def until_up(bus: Bus) -> None:
    """A barrier that outlives lost links."""
    while True:
        try:
            await bus.request("barrier")
            return
        except BusError:
            await anyio.sleep(0.001)


@pytest.mark.parametrize("channel", ["poll", "events", "websocket"])
async def test_an_expiry_and_a_restart_cost_a_gap_each_and_nothing_twice(channel: str) -> None:
    url, heard, got = f"jrep+http://127.0.0.1:{free_port()}", list[int](), list[int]()

    async def served() -> Bus:
        server = Bus(limits=Limits(close_timeout=0.2))
        server.handle("barrier")(lambda: None)

        @server.on("up")
        async def up(body: int) -> None:
            heard.append(body)
            await server.publish("down", body)

        await serving.enter_async_context(server.serve(url))
        return server

    with anyio.fail_after(BOUND):
        async with AsyncExitStack() as serving, AsyncExitStack() as clients:
            server = await served()
            backoff = Backoff(initial=0.001, maximum=0.01)
            bus = await clients.enter_async_context(connect(f"{url}?channel={channel}", backoff=backoff))

            @bus.on("down")
            async def on_down(body: int) -> None:
                got.append(body)

            for number in range(MESSAGES):
                await bus.publish("up", number)
                if number % 100 == 0:
                    await anyio.lowlevel.checkpoint()
                if number == 1_000:
                    await server.peers[0].aclose("expired")
                elif number == 2_000:
                    await serving.aclose()
                    server = await served()
                elif number in (800, 1_200, 1_800, 2_200):
                    await until_up(bus)  # what was published before it has come
            await until_up(bus)
            await until_up(bus)  # what came before its answer came before it
    lost = gaps(heard)
    assert len(lost) <= 2, "each break costs what was under way, and nothing around it"
    assert all(800 < first <= last <= 1_200 or 1_800 < first <= last <= 2_200 for first, last in lost), lost
    assert heard[-1] == got[-1] == MESSAGES - 1
    assert set(got) <= set(heard)
    assert len(gaps(got)) <= 2


def gaps(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of numbers that are missing."""
    assert numbers == sorted(set(numbers)), "in order, and none twice"
    edges = zip([-1, *numbers], [*numbers, MESSAGES], strict=True)
    return [(before + 1, after - 1) for before, after in edges if after - before > 1]
