"""A server with a bus in it, as a process. Its only argument is a JSON object:

* ``url``: address to serve at
* ``inside``: the protocol of its tunnels ``plant.{id}``
"""

import json
import sys
from typing import Any

import anyio

from polybus import Bus, Limits
from polybus.plugins.extensions import core_of


def state(bus: Bus) -> dict[str, int]:
    """What is left of whoever has gone."""
    return {
        "peers": len(bus.peers),
        "running": bus.stats().running,
        "channels": sum(len(core_of(peer).channels or ()) for peer in bus.peers),
        "calls": sum(len(core_of(peer).calls or ()) for peer in bus.peers),
    }


def echoing() -> Bus:
    bus = Bus(limits=Limits(message=2**21))

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    @bus.handle("endless")
    async def endless() -> None:
        await anyio.sleep_forever()

    return bus


async def server(options: dict[str, Any]) -> None:
    outer, inner = echoing(), echoing()
    outer.handle_tunnels("plant.{id}", inner, protocol=options["inside"])
    held, heard = anyio.Event(), [-1]

    @outer.handle("state")
    async def report() -> dict[str, Any]:
        return {"outer": state(outer), "inner": state(inner), "heard": heard[0], "received": inner.stats().received}

    @outer.handle("let go")
    async def let_go() -> None:
        held.set()

    @inner.on("flood", queue=100, when_full="drop_oldest")
    async def flood(body: Any) -> None:
        await held.wait()
        heard[0] = body["n"]

    async with outer.serve(options["url"]) as listener:
        print(json.dumps({"urls": [listener.url]}), flush=True)
        await outer.wait_closed()


if __name__ == "__main__":
    anyio.run(server, json.loads(sys.argv[1]))
