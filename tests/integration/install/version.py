"""One of two programs that talk, each with its own version of polybus. It uses only what 0.1.0 has.

`version.py serve URL` and `version.py node NATS` answer until stdin ends; `version.py ask URL [CAPTURE]` and
`version.py ask-node NATS` ask them for everything and exit with status 0 if the answers are right. The first line on stdout is
the place of polybus, the second the address.
"""

import sys
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread

import polybus
from polybus import Bus, Channel, Cluster, Context, NotFound, Retry, Store, connect

WITHIN = 60.0


def answering(bus: Bus) -> Bus:
    """A bus with one handler for each thing that two versions agree on."""

    @bus.handle("double")
    async def double(number: int) -> int:
        return 2 * number

    @bus.handle("find")
    async def find(context: Context) -> None:
        raise NotFound("no such tank", detail=context.message.headers)

    @bus.handle("count")
    async def count(most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number

    @bus.handle("echo")
    async def echo(channel: Channel[int, int]) -> None:
        async for number in channel:
            await channel.send(number)

    @bus.handle("wait")
    async def wait() -> None:
        await bus.publish("news.waiting")
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await bus.publish("news.cancelled")

    @bus.on("seen.*")
    async def seen(body: object) -> None:
        await bus.publish("news.seen", body)

    return bus


async def ask(bus: Bus) -> None:
    """Ask for everything that `answering` has."""
    assert await bus.request("double", 21, timeout=WITHIN) == 42
    try:
        await bus.request("find", headers={"tenant": "Ann"}, timeout=WITHIN)
    except NotFound as error:
        assert (error.text, error.detail) == ("no such tank", {"tenant": "Ann"}), error
    else:
        raise AssertionError("the error did not arrive")
    async with bus.stream("count", 3) as numbers:
        assert [number async for number in numbers] == [0, 1, 2]
    async with bus.channel("echo") as channel:
        await channel.send(7)
        assert await channel.receive() == 7
    async with bus.subscribe("news.*") as news:
        await bus.publish("seen.today", {"number": 1})
        assert (await news.receive()).body == {"number": 1}
        reply = bus.request("wait", timeout=WITHIN)
        assert (await news.receive()).subject == "news.waiting"
        reply.cancel()
        assert (await news.receive()).subject == "news.cancelled"


def stored(nats: str) -> Cluster:
    return Cluster(nats, stores=[Store("orders", "orders.>")])


async def main(role: str, url: str, capture: str | None = None) -> None:
    print(polybus.__file__)
    if role == "ask":
        with anyio.fail_after(WITHIN):
            async with connect(url, record=capture) as bus:
                await ask(bus)
    elif role == "ask-node":
        with anyio.fail_after(WITHIN):
            async with Bus(cluster=stored(url)) as bus, bus.subscribe("news.billed") as billed:
                await ask(bus)
                await bus.publish("orders.placed", {"id": 1})
                assert (await billed.receive()).body == {"id": 1}
    elif role == "node":
        node = answering(Bus(cluster=stored(url)))

        @node.on("orders.placed", durable="billing", retry=Retry(attempts=2))
        async def bill(order: dict[str, int]) -> None:
            await node.publish("news.billed", order)

        async with node:
            await until_stdin_ends(url)
    else:
        async with answering(Bus()).serve(url) as listener:
            await until_stdin_ends(listener.url)


async def until_stdin_ends(url: str) -> None:
    print(url, flush=True)
    await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(lambda: main(*sys.argv[1:]))
