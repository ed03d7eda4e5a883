"""A stream: many answers to one request. A channel: both sides send at any time. A slow reader slows both down."""

from collections.abc import AsyncIterator

import anyio

from polybus import Bus, Channel, connect

bus = Bus()


@bus.handle("count")
async def count(upto: int) -> AsyncIterator[int]:
    try:
        for number in range(upto):
            yield number
    finally:
        print("server: the stream has ended")


@bus.handle("add")
async def add(numbers: Channel[float, float]) -> None:
    total = 0.0
    async for number in numbers:
        total += number
        await numbers.send(total)


async def main() -> None:
    async with bus.serve("ubre+tcp://127.0.0.1:0?format=binary") as server, connect(server.url) as client:
        async with client.stream("count", 1_000_000, returns=int) as numbers:
            async for number in numbers:
                if number == 1000:
                    break  # leaving the block stops the handler
        print("client: left at", number)

        async with client.channel("add", sends=float, receives=float) as adding:
            for summand in (1.5, 2.5):
                await adding.send(summand)
                print("client:", await anext(adding))
            await adding.send_eof()


anyio.run(main)
