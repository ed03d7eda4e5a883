"""A part of a CSB installation as a process. Its only argument is a JSON object:

* ``role``: ``broker`` (with ``clients`` and ``servers``, URLs, and ``metrics``), ``server`` (with ``url`` and ``name``) or
  ``client`` (with ``url``: it sends requests as fast as it can until it is killed)
"""

import json
import sys
from typing import Any

import anyio
import anyio.lowlevel

from polybus import Backoff, Broker, Bus, BusError, connect

BACKOFF = Backoff(initial=0.02, maximum=0.2)


async def broker(options: dict[str, Any]) -> None:
    async with Broker(options["clients"], options["servers"], metrics=options["metrics"]) as made:
        print(json.dumps({"urls": [*made.client_urls, *made.server_urls, made.metrics_url]}), flush=True)
        await made.wait_closed()


async def server(options: dict[str, Any]) -> None:
    bus = Bus()

    @bus.handle(7)
    async def echo(body: bytes) -> bytes:
        await anyio.lowlevel.checkpoint()
        return body

    @bus.handle("who")
    async def who() -> str:
        return str(options["name"])

    @bus.handle("sleep")
    async def sleep() -> None:
        await anyio.sleep_forever()

    @bus.handle("state")
    async def state() -> dict[str, int]:
        stats = bus.stats()
        sessions: list[Any] = [link.session for link in bus._services.running.links]
        parties = sum(len(session._parties) for session in sessions if session is not None)
        return {"parties": parties, **{name: getattr(stats, name) for name in ("peers", "pending", "waiting", "malformed")}}

    query = f"?side=broker-server&server={options['name']}&pool=2"
    async with connect(options["url"].partition("?")[0] + query, bus=bus, backoff=BACKOFF, wait=20):
        print(json.dumps({"urls": []}), flush=True)
        await bus.wait_closed()


async def client(options: dict[str, Any]) -> None:
    async with connect(options["url"], backoff=BACKOFF, wait=20) as bus:
        print(json.dumps({"urls": []}), flush=True)
        _asleep = [bus.request("sleep", timeout=1000) for _ in range(10)]
        while True:
            try:
                for reply in [bus.request(7, b"%d" % number) for number in range(50)]:
                    await reply
            except BusError:
                await anyio.lowlevel.checkpoint()  # the next ones wait for the link


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    anyio.run({"broker": broker, "server": server, "client": client}[given["role"]], given)
