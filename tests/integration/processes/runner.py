"""A program that is `polybus.run`. Its only argument is a JSON object of options:

* ``lifespan``: ``"slow"`` never begins (it says so in a line of JSON), ``"stuck"`` never ends
* ``run``: arguments of `polybus.run`
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

import polybus
from polybus import Bus, Limits
from tests.integration.processes.serving_lines import print_urls


def make_bus(kind: str | None) -> Bus:
    """A bus whose lifespan and threads do what the test asks for."""

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        if kind == "slow":
            print(json.dumps({"urls": []}), flush=True)
            await anyio.sleep_forever()
        yield
        if kind == "stuck":
            await anyio.sleep_forever()

    bus = Bus(lifespan=lifespan if kind else None, limits=Limits(close_timeout=0.2))

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    @bus.handle("stuck")
    def stuck() -> None:
        threading.Event().wait(600)

    return bus


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    print_urls()
    options = json.loads(sys.argv[1])
    backend = {"backend": options["backend"], "uvloop": options["uvloop"]}
    polybus.run(make_bus(options.get("lifespan")), "ubre+tcp://127.0.0.1:0", **backend, **options.get("run", {}))
