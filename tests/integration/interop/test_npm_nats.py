"""npm @nats-io/transport-node at the other end of a real NATS server: in both roles, in groups, and when one side drains."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from polybus import Bus, Context, connect
from tests.support import eventually

from .nats_servers import NatsServer
from .node_peer import BODIES, NodePeer, node_nats


@pytest.fixture
async def node(server: NatsServer, anyio_backend: Any) -> AsyncIterator[NodePeer]:
    async with node_nats(f"127.0.0.1:{server.port}") as peer:
        yield peer


async def test_our_request_reaches_their_subscriber_with_its_headers(server: NatsServer, node: NodePeer) -> None:
    await node.tell("subscribe", subject="echo", queue="q", answer="echo")
    async with connect(server.url) as bus:
        for body in BODIES:
            assert await bus.request("echo", body) == body
        assert await bus.request("echo", b"\x00\xff") == b"\x00\xff"
        assert await bus.request("echo") is None
        await bus.request("echo", 1, headers={"x-kind": "äöü: flash"}, timeout=30)
        seen = (await node.tell("heard", key="echo q"))[-1]
        assert seen["headers"]["x-kind"] == ["äöü: flash"]
        assert 0 < int(seen["headers"]["Polybus-Ttl"][0]) <= 30_000


async def test_their_request_reaches_our_handler_with_its_headers(server: NatsServer, node: NodePeer) -> None:
    bus, headers = Bus(), list[Any]()

    @bus.handle("echo")
    async def echo(body: Any, ctx: Context) -> Any:
        headers.append(ctx.message.headers)
        return body

    async with connect(server.url, bus=bus):
        for body in BODIES:
            answer = await node.tell("request", subject="echo", body=body)
            hex = (await node.tell("request", subject="echo", hex=answer["hex"]))["hex"]
            assert hex == answer["hex"]
        answer = await node.tell("request", subject="echo", hex="00ff")
        assert answer["hex"] == "00ff"
        await node.tell("request", subject="echo", headers={"X-Kind": "flash", "x-two": ["a", "b"]})
        assert (headers[-1]["X-Kind"], headers[-1]["x-two"]) == ("flash", "a, b")


async def test_a_bus_of_ours_that_drains_loses_no_request_of_theirs(server: NatsServer, node: NodePeer) -> None:
    handled: list[int] = []

    def worker() -> Bus:
        bus = Bus()

        @bus.handle("work")
        async def work(body: int) -> int:
            handled.append(body)
            await anyio.lowlevel.checkpoint()
            return body

        return bus

    leaving = worker()
    async with connect(server.url, bus=worker()), anyio.create_task_group() as group:
        async with connect(server.url, bus=leaving):
            answers: list[Any] = []

            async def flood() -> None:
                answers.extend(await node.tell("flood", subject="work", count=1000))

            group.start_soon(flood)
            await eventually(lambda: len(handled) > 20)
            await leaving.drain()
    assert answers == list(range(1000))
    assert sorted(handled) == list(range(1000))
