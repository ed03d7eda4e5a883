"""The plant's gate, which runs until stdin ends: a Zenoh fabric for vehicles, and a bridge from their numbers to the plant's
names.

python -m polybus.demo.gate ubre+ws://127.0.0.1:8000/bus up+zenoh://127.0.0.1:7447
"""

import signal
import sys
from contextlib import AsyncExitStack

import anyio

from polybus import Bus, Route, bridge, connect
from polybus.protocols import Up

PLANT = Up(entity="//plant/CD/1", names={"tank.fill": 0xB, "tank.filled": 0x80CD})
ROUTES = (
    Route("tank.fill", "tank.fill", {"request"}),
    Route("tank.filled", "tank.filled", {"publish"}, reverse=True),
)


async def main(plant: str, fabric: str, record: str | None) -> None:
    vehicles, inside = Bus(), Bus()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(connect(plant, bus=inside))
        if record is not None:
            await stack.enter_async_context(vehicles.record(record))
        listener = await stack.enter_async_context(vehicles.serve(fabric, protocol=PLANT))
        await stack.enter_async_context(bridge(vehicles, inside, routes=ROUTES))
        print("serving", listener.url)
        async for _ in anyio.wrap_file(sys.stdin):
            pass


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit on Ctrl-C even while a thread reads stdin
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
