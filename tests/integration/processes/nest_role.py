"""A server with buses in it, or a gateway, as a process. Its only argument is a JSON object:

* ``role``: ``server`` (with ``url`` and ``inside``, the protocol of the tunnels ``plant.{id}``; the tunnel ``deeper`` leads to
  the server itself) or ``gateway`` (with ``left`` and ``right``, URLs of servers: publications on ``ring.>`` cross both ways)
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import Any

import anyio

from polybus import Backoff, Bus, Limits, Route, bridge, connect

BACKOFF = Backoff(initial=0.02, maximum=0.2)


def state(bus: Bus) -> dict[str, int]:
    """What is left of whoever has gone."""
    return {
        "peers": len(bus.peers),
        "running": bus.stats().running,
        "channels": sum(len(peer.channels or ()) for peer in bus.peers),
        "calls": sum(len(peer.calls or ()) for peer in bus.peers),
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
    outer.relay("ring.>")
    outer.handle_tunnels("plant.{id}", inner, protocol=options["inside"])
    outer.handle_tunnels("deeper", outer, protocol=options["inside"])
    held, heard = anyio.Event(), [-1]

    @outer.handle("state")
    async def report() -> dict[str, Any]:
        return {"outer": state(outer), "inner": state(inner), "heard": heard[0], "received": inner.stats().received}

    @outer.handle("close inner")
    async def close(reason: str) -> None:
        for peer in inner.peers:
            peer.link.close(4000, reason)

    @outer.handle("let go")
    async def let_go() -> None:
        held.set()

    @inner.on("flood", queue=100, when_full="drop_oldest")
    async def flood(body: Any) -> None:
        await held.wait()
        heard[0] = body["n"]

    @inner.handle("held")
    async def wait() -> str:
        await held.wait()
        return "let go"

    @outer.on("drain")
    async def drain() -> None:
        await outer.drain()  # of which this is a part: it returns at once
        while inner.ready:  # noqa: ASYNC110  # nothing tells of it
            await anyio.sleep(0.001)
        held.set()

    async with outer.serve(options["url"]) as listener:
        print(json.dumps({"urls": [listener.url]}), flush=True)
        await outer.wait_closed()


async def gateway(options: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        left, right = [
            await stack.enter_async_context(connect(options[side], backoff=BACKOFF, wait=20)) for side in ("left", "right")
        ]
        routes = [Route("ring.>", "ring.{rest}", {"publish"}), Route("ring.>", "ring.{rest}", {"publish"}, reverse=True)]
        await stack.enter_async_context(bridge(left, right, routes=routes))
        print(json.dumps({"urls": []}), flush=True)
        await left.wait_closed()


def main() -> None:
    options = json.loads(sys.argv[1])
    anyio.run({"server": server, "gateway": gateway}[options["role"]], options)


if __name__ == "__main__":
    main()
