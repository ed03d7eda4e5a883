"""A worker process with a durable handler. Its only argument is a JSON object of options:

* ``cluster``: the URL of the engine
* ``ledger``: a file: a line when the handler gets a publication, and one when it has finished
* ``run``: arguments of `polybus.run`
"""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.lowlevel

import polybus
from polybus import Bus, Cluster, Context, Limits, Retry

RETRY = Retry(attempts=8, backoff=(0.01, 0.05))


def worker(options: dict[str, Any]) -> Bus:
    ledger = os.open(options["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(word: str, number: int, attempt: int) -> None:
        os.write(ledger, f"{word} {number} {attempt}\n".encode())

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        yield
        os.close(ledger)

    limits = Limits(**options.get("limits", {}))
    bus = Bus(cluster=Cluster(options["cluster"], wait=60.0), limits=limits, lifespan=lifespan)

    @bus.on("work.{kind}", durable="ledger", concurrency=8, retry=RETRY, ack_wait=2.0)
    async def work(kind: str, number: int, ctx: Context) -> None:
        note("taken", number, ctx.attempt)
        await anyio.lowlevel.checkpoint()
        if kind == "poison":
            raise ValueError(f"{number} is poison")
        note("done", number, ctx.attempt)

    return bus


if __name__ == "__main__":
    _options = json.loads(sys.argv[1])
    polybus.run(worker(_options), "ubre+tcp://127.0.0.1:0", **_options.get("run", {}))
