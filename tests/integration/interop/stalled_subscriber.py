"""A program of ours that subscribes, and that the tests stop so that it reads nothing; its only argument is a JSON object."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio

from polybus import Backoff, Bus, connect


async def main(options: dict[str, Any]) -> None:
    bus, heard = Bus(), list[int]()

    @bus.on("bulk.*")
    async def bulk(body: dict[str, Any]) -> None:
        heard.append(body["n"])

    @bus.handle("stalled.heard")
    async def tell(number: int) -> dict[str, int]:
        return {"pid": os.getpid(), "times": heard.count(number), "duplicates": len(heard) - len(set(heard))}

    async with connect(options["url"], bus=bus, backoff=Backoff(initial=0.02, maximum=0.2)):
        print(json.dumps({"urls": []}), flush=True)
        await bus.wait_closed()


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]))
