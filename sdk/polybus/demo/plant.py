"""A plant with tanks, the server in `polybus demo`.

python -m polybus.demo.plant ubre+ws://127.0.0.1:8000/bus
"""

import sys
from collections.abc import AsyncIterator

import anyio
from attrs import frozen

from polybus import Bus, run

bus: Bus = Bus()


@frozen
class Tank:
    number: int
    litres: float


@bus.handle("tank.level")
async def level(number: int) -> Tank:
    return Tank(number, number * 10.5)


@bus.handle("tank.fill")
async def fill(tank: Tank) -> Tank:
    filled = Tank(tank.number, tank.number * 10.5 + tank.litres)
    await bus.publish("tank.filled", filled)
    return filled


@bus.handle("tank.log")
async def log(number: int) -> AsyncIterator[float]:
    made = 0
    try:
        while made < 1_000_000:
            yield number * 10.5 + made
            made += 1
    finally:
        print(f"tank.log stopped after {made} of 1,000,000 readings")


@bus.handle("tank.clean")
async def clean(seconds: float) -> str:
    print("cleaning started")
    await anyio.sleep(seconds)
    return "clean"


if __name__ == "__main__":
    run(bus, sys.argv[1], drain=10)
