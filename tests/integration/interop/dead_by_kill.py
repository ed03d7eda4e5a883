"""A worker with a handler that ends its process each time: ``dead_by_kill.py URL NAME``."""

import os
import sys

import anyio

from polybus import Bus, Cluster, Retry, Store

bus = Bus(cluster=Cluster(sys.argv[1], name=sys.argv[2], stores=[Store("work", "work.>")]))


@bus.on("work.deadly", durable="deadly", ack_wait=3, retry=Retry(attempts=2))
async def die(number: int) -> None:
    os.kill(os.getpid(), 9)


async def main() -> None:
    async with bus:
        await anyio.sleep_forever()


anyio.run(main)
