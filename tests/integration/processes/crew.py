"""`polybus.run` with several workers. Its only argument is a JSON object of options:

* ``urls``: addresses to serve at
* ``durations``: its handlers are timed
* ``run``: arguments of `polybus.run`
"""

import json
import logging
import os
import sys
import time

import anyio

import polybus
from polybus import Bus, Cluster, Handshake, Identity
from polybus.prometheus import Durations
from polybus.testing._waiting import eventually


def by_header(handshake: Handshake) -> Identity:
    return Identity("somebody", key=handshake.headers.get("x-user"))


def make_bus(*, durations: bool = False) -> Bus:
    """A bus that tells of the process that it is in."""
    bus = Bus(cluster=Cluster(name="shop"), authenticate=by_header)

    if durations:
        bus.use(Durations())

    @bus.handle("pid")
    async def pid() -> int:
        return os.getpid()

    @bus.handle("cluster")
    async def cluster() -> str:
        return os.environ["POLYBUS_CLUSTER"]

    @bus.handle("until.drain")
    async def until_drain(url: str) -> bool:
        await eventually(lambda: not bus.ready)
        async with polybus.connect(url, wait=60):
            return True

    @bus.handle("ask.user")
    async def ask_user(key: str) -> object:
        return await bus.user(key).request("confirm", timeout=20)

    @bus.handle("online")
    async def online(key: str) -> bool:
        return await bus.user(key).online()

    @bus.handle("never")
    async def never() -> None:
        await anyio.sleep_forever()

    @bus.handle("stuck")
    async def stuck() -> None:
        time.sleep(600)  # noqa: ASYNC251  # what a handler must not do

    return bus


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    options = json.loads(sys.argv[1])
    polybus.run(make_bus(durations=options.get("durations", False)), *options["urls"], **options["run"])
