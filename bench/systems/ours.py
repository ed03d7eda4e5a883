"""polybus as a program uses it: ``async def`` handlers, awaited requests and publications, every feature at its default."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
from anyio.lowlevel import checkpoint
from attrs import frozen

from polybus import Bus, Cluster, Limits
from polybus import connect as connect_bus

from ._base import Client, LightWire, Publisher, json_text
from ._frames import framed
from ._websocket import WebSocketWire

__all__ = ["LIMITS", "BusClient", "Counter", "connect", "light", "make_bus", "serve"]

# A body of 1 MiB and its envelope.
LIMITS = Limits(message=4 * 1024 * 1024, outbox_bytes=16 * 1024 * 1024)
_BODY = {"id": 7, "name": "x" * (64 - len(json_text(0)))}


class Counter:
    """Counts publications and wakes whoever waits for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.wanted = -1
        self.reached = anyio.Event()

    def add(self) -> None:
        self.count += 1
        if self.count == self.wanted:
            self.reached.set()

    async def wait(self, wanted: int) -> int:
        if self.count < wanted:
            self.wanted, self.reached = wanted, anyio.Event()
            with anyio.move_on_after(10):
                await self.reached.wait()
        return self.count


def make_bus(options: dict[str, Any], cluster: Cluster | None = None) -> Bus:
    bus = Bus(limits=LIMITS, cluster=cluster)
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
            await bus.publish("bench.fan", _BODY)
            # A turn of the loop for each, so that none is joined with the next one in one write, as a raw peer would not.
            await checkpoint()

    return bus


_ACTIONS = {"bench.echo": 0x00010001, "bench.count": 0x00010002, "bench.counted": 0x00010003}


def protocol_of(options: dict[str, Any], **more: Any) -> Any:
    """CSB with numbers for the subjects, as its users have; None leaves it to the URL."""
    from polybus.protocols import Csb

    return Csb(actions=_ACTIONS, **more) if options["url"].startswith("csb+") else None


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    bus = make_bus(options)
    async with bus.serve(options["url"], protocol=protocol_of(options)) as listener:
        ready(listener.url)
        await bus.wait_closed()


class BusClient(Publisher):
    def __init__(self, bus: Bus, size: int, *, raw: bool) -> None:
        super().__init__(size)
        self.bus = bus
        self.raw = raw
        text = json_text(size)
        self.body: Any = text if raw else {"id": 7, "name": "x" * (size - len(json_text(0)))}

    async def request(self) -> object:
        return await self.bus.request("bench.echo", self.body)

    async def publish(self) -> None:
        await self.bus.publish("bench.count", self.body)

    async def counted(self, total: int) -> None:
        count = int(await self.bus.request("bench.counted", b"%d" % total if self.raw else total))
        if count != total:
            raise RuntimeError(f"{total - count} of {total} messages were lost")


@asynccontextmanager
async def connect(options: dict[str, Any], url: str, size: int) -> AsyncIterator[Client]:
    async with connect_bus(url, protocol=protocol_of(options), limits=LIMITS) as bus:
        yield BusClient(bus, size, raw=options["body"] == "bytes")


@frozen
class Words:
    """What a light client says in one protocol; ``%d`` is the number of publications that it asks for."""

    subscribe: bytes
    burst: bytes


_ASSOCIATE = b'{"ToSubject":"ServerBus","CommandType":"Associate","RemoteServices":"ClientBus%b"}'
_INTEGER = b'{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":%d}'
_WORDS = {
    "ubre": Words(b'{"subscribe":"bench.fan"}', b'{"request":"bench.burst","id":"1","body":%d}'),
    # Without a handshake a J.REP server takes no message; who associates once more changes nothing.
    "jrep": Words(
        b"[%b]" % (_ASSOCIATE % b",bench.fan"),
        b'[%b,{"ToSubject":"bench.burst","Value":%b}]' % (_ASSOCIATE % b"", _INTEGER),
    ),
}


class TcpWire:
    websocket = False

    def __init__(self, words: Words) -> None:
        self.words = words

    def greeting(self, host: str) -> bytes:
        return b""

    def subscribe(self) -> bytes:
        return framed(self.words.subscribe)

    def burst(self, count: int) -> bytes:
        return framed(self.words.burst % count)


class WsWire(WebSocketWire):
    def __init__(self, path: str, words: Words) -> None:
        self.path = path
        self.words = words

    def subscribe(self) -> bytes:
        return self.frame(self.words.subscribe)

    def burst(self, count: int) -> bytes:
        return self.frame(self.words.burst % count)


def light(options: dict[str, Any]) -> LightWire:
    parts = urlsplit(options["url"])
    protocol, _, transport = parts.scheme.partition("+")
    words = _WORDS[protocol]
    return WsWire(parts.path, words) if transport == "ws" else TcpWire(words)
