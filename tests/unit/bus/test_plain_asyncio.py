"""polybus under a plain `asyncio.run`, which tells anyio less about the loop than `anyio.run` does."""

import asyncio

from polybus import Bus, connect


def test_a_request_is_answered_under_plain_asyncio() -> None:
    bus = Bus()

    @bus.handle("double")
    async def double(number: int) -> int:
        return 2 * number

    async def main() -> int:
        async with asyncio.timeout(10), bus.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:
            return await client.request("double", 21, returns=int)

    assert asyncio.run(main()) == 42
