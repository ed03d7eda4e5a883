"""A service that its clients can give cause for every alert. Its arguments are the port of the bus and that of its metrics."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from polybus import Bus, Cluster, Limits, Retry, Store, run


@asynccontextmanager
async def lifespan(bus: Bus) -> AsyncIterator[None]:
    async with bus.subscribe("news", queue=1):  # never read
        yield


bus = Bus(cluster=Cluster(stores=[Store("orders", "order.>")]), lifespan=lifespan, limits=Limits(running=1))


@bus.handle("fail")
async def fail() -> None:
    raise ValueError("as it does")


@bus.handle("hang")
async def hang() -> None:
    await anyio.sleep_forever()


@bus.handle("publish")
async def publish(number: int) -> None:
    await bus.publish("news", number)
    await bus.publish("order.slow", number)


@bus.handle("poison")
async def poison() -> None:
    await bus.publish("order.bad", 1)


@bus.on("order.bad", durable="bad", retry=Retry(attempts=1))
async def bad(number: int) -> None:
    raise ValueError("as it does")


@bus.on("order.slow", durable="slow")
async def slow(number: int) -> None:
    await anyio.sleep_forever()


if __name__ == "__main__":
    run(bus, f"ubre+tcp://127.0.0.1:{sys.argv[1]}", health=f"http://127.0.0.1:{sys.argv[2]}", metrics=True, drain=1)
