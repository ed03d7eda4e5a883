"""A service with a graceful shutdown: ``python service.py [URL...]``. See README.md for systemd and Kubernetes."""

import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from polybus import Bus, Context, run


@asynccontextmanager
async def lifespan(bus: Bus) -> AsyncIterator[dict[str, str]]:
    print("opening the archive", flush=True)
    yield {"Monday": "all is well"}
    print("closing the archive: the last report has been given", flush=True)


bus = Bus(lifespan=lifespan)


@bus.handle("report")
async def report(day: str, ctx: Context) -> str:
    print("a report is asked for", flush=True)
    await anyio.sleep(float(os.environ.get("SECONDS_OF_WORK", "1")))
    return f"{day}: {ctx.state.get(day, 'nothing is known')}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    run(
        bus,
        *(sys.argv[1:] or ["ubre+ws://127.0.0.1:8000/bus"]),
        drain=float(os.environ.get("DRAIN", "20")),
        delay=float(os.environ.get("DELAY", "0")),
        health=os.environ.get("HEALTH"),
        insecure=os.environ.get("BEHIND_A_GATEWAY") == "yes",
    )
