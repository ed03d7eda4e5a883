"""A van that fills tanks. It uses UMessage over Zenoh, where addresses are numbers.

python -m polybus.demo.van up+zenoh://127.0.0.1:7447
"""

import sys

import anyio

from polybus import connect
from polybus.demo.plant import Tank
from polybus.protocols import Up

ME = Up(entity="//van7/10AB/1", names={"tank.fill": "//plant/CD/1/B", "tank.filled": "//plant/CD/1/80CD"})


async def deliver(url: str) -> None:
    async with connect(url, protocol=ME) as bus, bus.subscribe("tank.*", returns=Tank) as tanks:
        print("connected")
        filled = await bus.request("tank.fill", Tank(7, 20), returns=Tank)
        print("filled", filled)
        message = await anext(tanks)
        print("heard", message.attributes["source"], message.body)


if __name__ == "__main__":
    anyio.run(deliver, sys.argv[1])
