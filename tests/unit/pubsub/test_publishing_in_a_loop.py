"""A publisher in a loop, and a handler that keeps up: nothing is lost and no link ends, on any event loop."""

import anyio

from polybus import Bus, Limits, connect
from tests.support import BOUND


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
