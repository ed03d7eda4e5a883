"""The Python calls that a message costs: a measure of the hot path that no machine can shake.

Counted are the functions of polybus itself, over UBRE and TCP on asyncio, on connections that are warm; then over NATS, where
the engine is a few lines of this module. Where one side is meant, the other is a raw socket. A change that needs more calls
says here why it is worth them; one that needs fewer lowers the figure. `make test` counts twice: where C runs, and where its
twins in Python do, which the names of the tests say.
"""

import asyncio
import gc
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

import pytest
from fastapi import FastAPI
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

import polybus
import polybus.fastapi
from polybus import Bus, connect
from polybus._core.bus.bus import parts_of
from polybus.bindings.http.uvicorn import PatientWebSockets
from polybus.opentelemetry import instrument
from polybus.speedups import ACTIVE
from tests.integration.web.support import running
from tests.support import eventually

from .raw import raw_server

pytestmark = pytest.mark.native

PACKAGE = str(Path(polybus.__file__).parent)
BODY = {"id": 7}
WARM = 50
"""Messages before one is counted: caches are full then, and workers have been started."""
SEVERAL = 15
TURNS = 30
"""Of the event loop, in which all that one message causes in this process has happened."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Calls:
    """The calls into polybus while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        gc.disable()  # finalizers of earlier tests are no calls of this message
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.count += 1


async def calls_of(act: Callable[[Calls], Awaitable[object]], warm: int = WARM) -> int:
    """The calls that `act` counts, once all is warm: the fewest of several, for a timer or half a frame may come between."""
    counts = []
    for index in range(warm + SEVERAL):
        calls = Calls()
        await act(calls)
        if index >= warm:
            counts.append(calls.count)
    return min(counts)


async def settled() -> None:
    """Wait until all that is under way in this process has happened."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def frame(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text


@asynccontextmanager
async def raw_subscribers(bus: Bus, count: int) -> AsyncIterator[None]:
    """So many raw clients that have subscribed to ``news``."""
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(bus.serve("ubre+tcp://127.0.0.1:0"))
        port = int(listener.url.rpartition(":")[2])
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(frame(b'{"subscribe":"news"}'))
        await eventually(lambda: bus.stats().received == count)
        yield


class RawEngine:
    """As much of a NATS server as lets two buses talk: nothing of it is polybus."""

    def __init__(self) -> None:
        self.subscriptions: list[tuple[bytes, bytes, bytes, asyncio.StreamWriter]] = []
        """Pattern, queue, sid and connection of each."""
        self.heard = 0
        """Messages that have come in."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"S","headers":true,"max_payload":1048576}\r\n')
        while line := await reader.readline():
            verb, *parts = line.split()
            if verb == b"PING":
                writer.write(b"PONG\r\n")
            elif verb == b"SUB":
                self.subscriptions.append((parts[0], parts[1] if len(parts) == 3 else b"", parts[-1], writer))
            elif verb in (b"PUB", b"HPUB"):
                self.heard += 1
                self.route(verb, parts, await reader.readexactly(int(parts[-1]) + 2))
        writer.close()

    def route(self, verb: bytes, parts: list[bytes], payload: bytes) -> None:
        subject, *others = parts
        groups = set[bytes]()
        for pattern, queue, sid, writer in self.subscriptions:
            if (
                pattern == subject or (pattern[-1:] in (b">", b"*") and subject.startswith(pattern[:-1]))
            ) and queue not in groups:
                groups |= {queue} - {b""}
                writer.write(b" ".join([verb.replace(b"PUB", b"MSG"), subject, sid, *others]) + b"\r\n" + payload)

    def say(self, subject: bytes, frame: bytes) -> None:
        """Send to whoever has subscribed to exactly this; ``%b`` is the sid."""
        for pattern, _, sid, writer in self.subscriptions:
            if pattern == subject:
                writer.write(frame % sid)


@asynccontextmanager
async def raw_engine() -> AsyncIterator[tuple[str, RawEngine]]:
    """Such an engine, and its URL."""
    engine = RawEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    async with server:
        yield f"nats+tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", engine


def echoing(cluster: str | None = None) -> Bus:
    bus = Bus(cluster=cluster)

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    return bus


async def calls_until_settled(act: Callable[[], Awaitable[object]]) -> int:
    async def acted(calls: Calls) -> None:
        with calls:
            await act()
            await settled()

    return await calls_of(acted)


async def calls_of_a_request(client: Bus) -> int:
    return await calls_until_settled(lambda: client.request("echo", BODY, timeout=30))


async def test_a_request_costs_57_calls_at_both_ends_together() -> None:
    async with echoing().serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:
        assert await calls_of_a_request(client) <= (49 if ACTIVE else 57)


class Echo(Protocol):
    async def echo(self, body: Any) -> Any: ...


class EchoAlone:
    async def echo(self, body: Any) -> Any:
        return body


async def test_a_request_by_the_client_of_a_contract_costs_2_calls_more_at_both_ends_together() -> None:
    server = Bus()
    server.implement(Echo, EchoAlone())
    async with server.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:
        asking = client.client(Echo)
        assert await calls_until_settled(lambda: asking.echo(BODY)) - await calls_of_a_request(client) <= 2


# The client makes a `Message` for the hooks, of which one that nobody observes makes none.
@pytest.mark.parametrize(("side", "most"), [("client", 15 if ACTIVE else 14), ("server", 7)])
async def test_a_request_of_an_instrumented_bus_costs_few_calls_more_where_nobody_keeps_the_spans(side: str, most: int) -> None:
    async def asked(instrumented: bool) -> int:
        server, client = echoing(), Bus()
        if instrumented:
            nobody = NoOpTracerProvider(), NoOpMeterProvider()
            instrument({"server": server, "client": client}[side], tracer_provider=nobody[0], meter_provider=nobody[1])
        async with server.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url, bus=client) as connected:
            return await calls_of_a_request(connected)

    assert await asked(True) - await asked(False) <= most


async def calls_of_64_in_flight(server: Bus, client: Bus) -> float:
    """The calls that each of them costs, when each answer is followed by the next request."""
    for bus in (server, client):  # looks at who has run for long are no calls of a message
        parts_of(bus).services.running.workers.clock = lambda: 0.0

    async def ask() -> None:
        for _ in range(4):
            await client.request("echo", BODY, timeout=30)

    async def burst(calls: Calls) -> None:
        with calls:
            await asyncio.gather(*(ask() for _ in range(64)))

    return await calls_of(burst, 3) / 256


async def test_each_of_64_requests_in_flight_costs_36_calls_at_both_ends_together() -> None:
    server = echoing()
    async with server.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:
        assert await calls_of_64_in_flight(server, client) <= (28 if ACTIVE else 36)


async def test_each_of_64_requests_in_flight_costs_38_calls_over_websocket_under_uvicorn_as_at_a_server_of_ours() -> None:
    server, app = echoing(), FastAPI()
    polybus.fastapi.attach(app, server, path="/bus")
    async with running(app, ws=PatientWebSockets) as uvicorn, connect(f"ubre+ws://127.0.0.1:{uvicorn.port}/bus") as client:
        assert await calls_of_64_in_flight(server, client) <= (30 if ACTIVE else 38)
        assert await calls_of_a_request(client) <= (54 if ACTIVE else 62)
    ours = echoing()
    async with ours.serve("ubre+ws://127.0.0.1:0/bus") as listener, connect(listener.url) as client:
        assert await calls_of_64_in_flight(ours, client) <= (30 if ACTIVE else 38)
        assert await calls_of_a_request(client) <= (53 if ACTIVE else 61)


async def test_each_of_64_publications_at_once_costs_12_calls_at_both_ends_together() -> None:
    server = Bus()
    async with (
        server.serve("ubre+tcp://127.0.0.1:0") as listener,
        connect(listener.url) as client,
        server.subscribe("news", queue=100) as news,
    ):

        async def publish(calls: Calls) -> None:
            with calls:
                for _ in range(64):
                    await client.publish("news", BODY)
                await settled()
            for _ in range(64):
                await news.receive(30)

        assert await calls_of(publish, 5) <= (8.3 if ACTIVE else 12.3) * 64


async def test_a_publication_costs_its_publisher_6_calls_until_the_wire_has_it() -> None:
    async with raw_server() as (url, _), connect(url) as client:

        async def publish(calls: Calls) -> None:
            with calls:
                await client.publish("news", BODY)
            await settled()

        assert await calls_of(publish) <= (4 if ACTIVE else 6)


async def test_a_publication_to_many_costs_2_calls_for_each_and_18_once() -> None:
    async def publish(bus: Bus, calls: Calls) -> None:
        with calls:
            await bus.publish("news", BODY)
        await settled()

    few, many = Bus(), Bus()
    async with raw_subscribers(few, 50), raw_subscribers(many, 100):
        for_few = await calls_of(partial(publish, few))
        for_many = await calls_of(partial(publish, many))
    assert for_many - for_few <= 2 * 50
    assert for_many <= 2 * 100 + (16 if ACTIVE else 18)


async def test_a_publication_costs_its_subscriber_12_calls_until_it_can_be_read() -> None:
    async with raw_server() as (url, writers), connect(url) as client, client.subscribe("news"):
        (writer,) = writers

        async def hear(calls: Calls) -> None:
            received = client.stats().received
            with calls:
                writer.write(frame(b'{"publish":"news","body":{"id":7}}'))
                await settled()
            assert client.stats().received == received + 1

        assert await calls_of(hear) <= (10 if ACTIVE else 12)


async def test_a_connect_costs_310_calls_at_both_ends_together() -> None:
    async with Bus().serve("ubre+tcp://127.0.0.1:0") as listener:

        async def enter(calls: Calls) -> None:
            connecting = connect(listener.url)
            with calls:
                await connecting.__aenter__()
                await settled()
            await connecting.__aexit__(None, None, None)

        # The last one has the allocator keep freed blocks, which halves the time of large messages.
        assert await calls_of(enter, 5) <= 310


async def test_a_request_over_nats_costs_88_calls_at_both_ends_together() -> None:
    async with raw_engine() as (url, _), connect(url, bus=echoing()), connect(url) as client:
        assert await calls_of_a_request(client) <= (86 if ACTIVE else 88)


async def test_a_request_in_a_cluster_costs_101_calls_at_both_ends_together() -> None:
    async with raw_engine() as (url, _), echoing(f"{url}/shop"), Bus(cluster=f"{url}/shop") as client:
        assert await calls_of_a_request(client) <= (99 if ACTIVE else 101)


@pytest.mark.parametrize("clusters", [False, True])
async def test_a_publication_over_nats_costs_its_publisher_9_calls_until_the_wire_has_it(clusters: bool) -> None:
    async with raw_engine() as (url, engine), Bus(cluster=f"{url}/shop") if clusters else connect(url) as bus:

        async def publish(calls: Calls) -> None:
            heard = engine.heard
            with calls:
                await bus.publish("news", BODY)
            await eventually(lambda: engine.heard == heard + 1)

        assert await calls_of(publish) <= (8 if ACTIVE else 9)


async def test_a_publication_in_a_cluster_costs_its_subscriber_23_calls_until_it_can_be_read() -> None:
    async with raw_engine() as (url, engine), Bus(cluster=f"{url}/shop") as bus, bus.subscribe("news"):

        async def hear(calls: Calls) -> None:
            received = bus.stats().received
            with calls:
                engine.say(b"shop.p.news", b'MSG shop.p.news %b shop.n.other1.p 8\r\n{"id":7}\r\n')
                await settled()
            assert bus.stats().received == received + 1

        assert await calls_of(hear) <= 23
