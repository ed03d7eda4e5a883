"""A publisher in a loop, and a handler that keeps up: nothing is lost and no link ends, on any event loop."""

import anyio
import pytest

from polybus import Bus, Limits, connect
from tests.support import BOUND

COUNT = 5_000


@pytest.mark.parametrize("url", ["ubre+tcp://127.0.0.1:0", "ubre+ws://127.0.0.1:0/bus", "ubre+memory://burst"])
async def test_a_burst_of_publications_arrives_whole_and_in_order(url: str) -> None:
    bus, seen, done = Bus(), [0], anyio.Event()

    @bus.on("number")
    async def number(body: int) -> None:
        assert body == seen[0]
        seen[0] += 1
        if seen[0] == COUNT:
            done.set()

    with anyio.fail_after(BOUND):
        async with bus.serve(url) as listener, connect(listener.url) as client:
            for value in range(COUNT):
                await client.publish("number", value)
            await done.wait()
            assert client.stats().reconnects == 0
            assert bus.stats().dropped == 0


async def test_requests_that_nobody_awaits_yet_leave_while_the_peer_has_room() -> None:
    count = 8_000  # twice an outbox; the socket takes that much
    bus = Bus(limits=Limits(waiting=count))

    @bus.handle("twice")
    async def twice(body: int) -> int:
        return 2 * body

    with anyio.fail_after(BOUND):
        async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:
            assert await client.request("twice", 1) == 2
            replies = [client.request("twice", number) for number in range(count)]
            assert [await reply for reply in replies] == [2 * number for number in range(count)]
