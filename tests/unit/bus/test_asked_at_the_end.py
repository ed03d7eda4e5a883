"""What is asked of a bus while it drains and ends: it is answered, refused, or was not read; the asker knows which."""

import anyio
import anyio.lowlevel
import pytest

from polybus import Backoff, Bus, Disconnected, Unavailable, connect
from tests.support import BOUND, eventually


@pytest.mark.parametrize("url", ["ubre+tcp://127.0.0.1:0", "ubre+ws://127.0.0.1:0/bus"])
async def test_a_request_that_a_drained_bus_has_not_read_was_not_handled_and_says_so(url: str) -> None:
    handled, answered, unread, number = set[int](), set[int](), 0, 0

    async def ask(bus: Bus) -> None:
        nonlocal number, unread
        while True:
            number = mine = number + 1
            try:
                await bus.request("work", mine, timeout=BOUND)
            except Unavailable:
                await anyio.lowlevel.checkpoint()
            except Disconnected as error:
                assert not error.sent
                unread += 1
                return
            else:
                answered.add(mine)

    for _ in range(6):
        server, connected = Bus(), set[Bus]()

        @server.handle("work")
        async def work(n: int) -> None:
            handled.add(n)

        async with server.serve(url) as listener, anyio.create_task_group() as group:
            buses = [Bus() for _ in range(4)]
            for bus in buses:
                group.start_soon(live, bus, listener.url, ask, connected)
            good = len(answered)
            await eventually(lambda: len(connected) == len(buses) and len(answered) > good + 40)  # noqa: B023
            await server.drain(timeout=20)
            group.cancel_scope.cancel()
    assert handled == answered


async def live(bus: Bus, url: str, ask: object, connected: set[Bus]) -> None:
    async with connect(url, bus=bus, backoff=Backoff(attempts=0)), anyio.create_task_group() as group:
        connected.add(bus)
        for _ in range(4):
            group.start_soon(ask, bus)  # type: ignore[arg-type]
