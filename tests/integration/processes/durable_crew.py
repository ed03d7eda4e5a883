"""Workers of one machine with a store. The only argument is a JSON object of options:

* ``publish``: publication of each worker at its start; under one id, so that it is stored once
* ``ledger``: a file for the publications of the durable handler; without it there is no handler
"""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import polybus
from polybus import Bus, Cluster, Store


def crew(options: dict[str, Any]) -> Bus:
    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        for number in options.get("publish", ()):
            await bus.publish("work.begun", number, id=str(number))
        yield

    bus = Bus(cluster=Cluster(stores=[Store("work", "work.>")]), lifespan=lifespan)
    if "ledger" in options:
        ledger = os.open(options["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        @bus.on("work.*", durable="ledger")
        async def note(number: int) -> None:
            os.write(ledger, f"{number}\n".encode())

    return bus


if __name__ == "__main__":
    polybus.run(crew(json.loads(sys.argv[1])), "ubre+tcp://127.0.0.1:0", workers=2)
