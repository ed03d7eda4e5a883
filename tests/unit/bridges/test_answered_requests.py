"""An answered request leaves nothing in the bridge that a drain would wait for: shown in virtual time."""

import anyio

from polybus import Bus, Route, bridge
from polybus.testing import pair
from tests.loops import virtual_time  # noqa: F401


async def test_leaving_a_bridge_does_not_wait_for_requests_that_have_been_answered() -> None:
    left, right, server = Bus(), Bus(), Bus()

    @server.handle("door.open")
    async def opened(number: int) -> int:
        return number

    async with pair(server, client=right):
        async with bridge(left, right, routes=[Route("door.*", "door.{1}")]), pair(left) as asker:
            assert await asker.request("door.open", 7) == 7
            before = anyio.current_time()
        assert anyio.current_time() - before < 1
