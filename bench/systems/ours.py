"""polybus as a program uses it: ``async def`` handlers, awaited requests and publications, every feature at its default.

The ``way`` is the connection between the two ends: direct, in a FastAPI application under uvicorn, through a CSB broker as a
separate process, over Debian's nats-server as programs on a NATS network use it, or as two nodes of a cluster there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from polybus import Broker, Bus, Cluster, Limits
from polybus import connect as connect_bus

from .base import Client, Counter, Wire, json_text, serve_uvicorn, start, started_nats

__all__ = ["connect", "light", "serve"]

# A body of 1 MiB and its envelope.
_LIMITS = Limits(message=4 * 1024 * 1024, outbox_bytes=16 * 1024 * 1024)


def _value(size: int) -> dict[str, Any]:
    return {"id": 7, "name": "x" * (size - len(json_text(0)))}


def _make_bus(options: dict[str, Any], cluster: Cluster | None = None) -> Bus:
    bus = Bus(limits=_LIMITS, cluster=cluster)
    counter = Counter()

    if options["body"] == "bytes":

        @bus.handle("bench.echo")
        async def echo_bytes(body: bytes) -> bytes:
            return body

        @bus.on("bench.count")
        async def count_bytes(body: bytes) -> None:
            counter.add()

    else:

        @bus.handle("bench.echo")
        async def echo(body: dict[str, Any]) -> dict[str, Any]:
            return body

        @bus.on("bench.count")
        async def count(body: dict[str, Any]) -> None:
            counter.add()

    @bus.handle("bench.counted")
    async def counted(body: Any) -> Any:
        total = await counter.wait(int(body))
        return b"%d" % total if options["body"] == "bytes" else total

    @bus.handle("bench.burst")
    async def burst(body: int) -> None:
        for _ in range(body):
            await bus.publish("bench.fan", _value(64))
            # One loop iteration for each, so that writes are not joined, as with a raw peer.
            await checkpoint()

    return bus


_ACTIONS = {"bench.echo": 0x00010001, "bench.count": 0x00010002, "bench.counted": 0x00010003}


def _protocol_of(options: dict[str, Any], **more: Any) -> Any:
    """CSB with numbers for the subjects, as its users have; None for the URL's protocol."""
    from polybus.protocols import Csb

    return Csb(actions=_ACTIONS, **more) if options["url"].startswith("csb+") else None


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    await _WAYS[options["way"]](options, ready)


async def _direct(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    bus = _make_bus(options)
    async with bus.serve(options["url"], protocol=_protocol_of(options)) as listener:
        ready(listener.url)
        await bus.wait_closed()


async def _under_uvicorn(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    from fastapi import FastAPI

    from polybus.fastapi import attach

    app = FastAPI()
    attach(app, _make_bus(options))
    await serve_uvicorn(app, lambda port: ready(options["url"].replace(":0/", f":{port}/")))


async def _behind_broker(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    bus = _make_bus(options)
    with start(sys.executable, "-m", "bench.systems.ours", options["loop"]) as broker:
        assert broker.stdout is not None
        clients, servers = (await asyncio.to_thread(broker.stdout.readline)).decode().split()
        protocol = _protocol_of(options, side="broker-server")
        async with connect_bus(servers.partition("?")[0], bus=bus, protocol=protocol):
            ready(clients)
            await bus.wait_closed()


async def _on_nats(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    bus = _make_bus(options)
    with started_nats() as address:
        url = f"nats+tcp://{address}"
        async with connect_bus(url, bus=bus, wait=20):
            ready(url)
            await bus.wait_closed()


async def _in_cluster(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    with started_nats() as address:
        url = f"nats+tcp://{address}/bench"
        async with _make_bus(options, Cluster(url, wait=20)) as bus:
            ready(url)
            await bus.wait_closed()


_WAYS = {"direct": _direct, "uvicorn": _under_uvicorn, "broker": _behind_broker, "nats": _on_nats, "cluster": _in_cluster}


class BusClient(Client):
    def __init__(self, bus: Bus, size: int, *, raw: bool) -> None:
        super().__init__(size)
        self.bus = bus
        self.raw = raw
        self.body: Any = json_text(size) if raw else _value(size)

    async def request(self) -> object:
        return await self.bus.request("bench.echo", self.body)

    async def publish(self) -> None:
        await self.bus.publish("bench.count", self.body)

    async def counted(self, total: int) -> int:
        return int(await self.bus.request("bench.counted", b"%d" % total if self.raw else total))


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    node = options["way"] == "cluster"
    opened = Bus(cluster=url, limits=_LIMITS) if node else connect_bus(url, protocol=_protocol_of(options), limits=_LIMITS)
    async with opened as bus:
        yield BusClient(bus, size, raw=options["body"] == "bytes")


def light(options: dict[str, Any]) -> Wire:
    return Wire(
        subscribe=b'{"subscribe":"bench.fan"}',
        burst=b'{"request":"bench.burst","id":"1","body":%d}',
        path="/bus" if "+ws:" in options["url"] else "",
    )


async def _broker() -> None:
    limits = Limits(message=4 * 1024 * 1024, outbox_bytes=64 * 1024 * 1024)
    async with Broker("csb+tcp://127.0.0.1:0", "csb+tcp://127.0.0.1:0", limits=limits) as broker:
        print(*broker.client_urls, *broker.server_urls, flush=True)
        await broker.wait_closed()


if __name__ == "__main__":
    anyio.run(_broker, backend_options={"use_uvloop": sys.argv[1] == "uvloop"})
