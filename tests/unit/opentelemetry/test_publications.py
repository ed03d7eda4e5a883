"""Spans of publications, and who is sent the context."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from polybus import Bus, Channel, Context, NotFound, Route, bridge, connect
from polybus.plugins.extensions import core_of
from polybus.protocols import Up
from polybus.testing import pair
from tests.raw import raw_peer
from tests.support import BOUND, eventually
from tests.unit.answering import noting, publish_each
from tests.unit.opentelemetry.spans import Traces


@pytest.mark.parametrize(
    "protocol", ["ubre", "csb", "jrep", Up(names={"news.today": 0x8001, "news.later": 0x8002}), "uprotocol"]
)
async def test_a_publication_is_a_producer_and_a_consumer_for_each_handler(protocol: Any, traces: Traces) -> None:
    server, client = traces.bus(), traces.bus()
    there, days = noting(server, "news.*"), list[str]()

    @client.on("news.{day}")
    async def here(day: str) -> None:
        days.append(day)

    async with pair(server, protocol=protocol, client=client):
        await client.publish("news.today", 1)
        client.publish_nowait("news.later", 2)
        await eventually(lambda: (there, days) == ([1, 2], ["today", "later"]))
        await eventually(lambda: len(traces.spans) == 6)
    sent = traces.span("send news.today", "PRODUCER")
    handled = [span for span in traces.spans if span.parent is not None and span.parent.span_id == sent.context.span_id]
    assert {span.name for span in handled if span.kind.name == "CONSUMER"} == {"process news.*", "process news.{day}"}
    assert {span.context.trace_id for span in handled} == {sent.context.trace_id}
    assert len(handled) == 2
    (there_span,) = [span for span in handled if span.name == "process news.*"]
    assert dict(there_span.attributes or {}) == {
        "messaging.system": "polybus",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "news.today",
        "messaging.destination.template": "news.*",
        "polybus.protocol": protocol if isinstance(protocol, str) else protocol.name,
    }
    measured = traces.measured("messaging.process.duration")
    assert {str(facts["messaging.destination.template"]): count for facts, count in measured} == {"news.*": 2, "news.{day}": 2}


async def test_peers_that_read_no_headers_get_a_publication_without_and_others_the_very_same_with_them(traces: Traces) -> None:
    server = traces.bus()
    async with (
        server.serve("ubre+tcp://127.0.0.1:0") as listener,
        connect(listener.url) as ours,
        ours.subscribe("news.*") as news,
        raw_peer(listener.url) as bare,
    ):
        await bare.send({"subscribe": "news.today"})
        await eventually(lambda: sum("news.today" in core_of(peer).patterns for peer in server.peers) == 1)
        await server.publish("news.today", 1, headers={"x-tenant": "a"})
        server.publish_nowait("news.today", 2)
        headers = [(await news.receive(BOUND)).headers for _ in range(2)]
        assert [set(one or ()) for one in headers] == [{"x-tenant", "traceparent"}, {"traceparent"}]
        assert await bare.receive() == {"publish": "news.today", "body": 1, "headers": {"x-tenant": "a"}}
        assert await bare.receive() == {"publish": "news.today", "body": 2}


async def test_a_bare_peer_is_asked_without_the_context_and_gives_its_own(traces: Traces) -> None:
    server = traces.bus()

    @server.handle("ask.back")
    async def ask_back(ctx: Context) -> Any:
        assert ctx.peer is not None
        return await ctx.peer.request("page.title")

    async with server.serve("ubre+tcp://127.0.0.1:0") as listener, raw_peer(listener.url) as bare:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await bare.send({"request": "ask.back", "id": "1", "headers": {"traceparent": parent}})
        asked = await bare.receive()
        assert asked["request"] == "page.title" and "headers" not in asked
        await bare.send({"success": asked["id"], "body": "Title"})
        assert await bare.receive() == {"success": "1", "body": "Title"}
    handled = traces.span("ask.back", "SERVER")
    assert handled.parent is not None
    assert (handled.parent.trace_id, handled.parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert traces.span("page.title", "CLIENT").context.trace_id == handled.context.trace_id


@pytest.mark.parametrize("raised", [ValueError("bad"), NotFound("nobody is told of that")])
async def test_a_failing_on_handler_is_an_error_of_its_span_alone(raised: Exception, traces: Traces) -> None:
    server, client = traces.bus(), traces.bus()

    @server.on("news.*")
    async def fail(n: int) -> None:
        raise raised

    async with pair(server, client=client):
        await client.publish("news.today", 1)
        await eventually(lambda: len(traces.spans) == 2)
    assert traces.span("process news.*").status.status_code is StatusCode.ERROR
    assert traces.span("send news.today").status.status_code is StatusCode.UNSET


async def test_the_context_crosses_bridges(traces: Traces) -> None:
    client, left, right, worker = traces.bus(), Bus(), Bus(), traces.bus()

    @worker.handle("vehicle.open")
    async def opened(door: int) -> int:
        await worker.publish("opened", door)
        return door

    async with (
        pair(left, client=client),
        pair(worker, protocol="uprotocol", client=right),
        bridge(left, right, routes=[Route("door.open", "vehicle.open")]),
    ):
        assert await client.request("door.open", 2) == 2
    assert traces.path() == [("door.open", "CLIENT"), ("vehicle.open", "SERVER"), ("send opened", "PRODUCER")]


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep", "uprotocol"])
async def test_the_context_of_a_stream_and_a_channel_crosses_a_bridge(protocol: str, traces: Traces) -> None:
    client, left, right, worker = traces.bus(), Bus(), Bus(), traces.bus()

    @worker.handle("count")
    async def count(most: int) -> AsyncIterator[int]:
        yield most

    @worker.handle("echo")
    async def echo(channel: Channel[int, int]) -> None:
        async for number in channel:
            await channel.send(number)

    async with (
        pair(left, client=client),
        pair(worker, protocol=protocol, client=right),
        bridge(left, right, routes=[Route("*", "{1}", kinds={"stream", "channel"})]),
    ):
        async with client.stream("count", 2) as numbers:
            assert [number async for number in numbers] == [2]
        async with client.channel("echo") as channel:
            await channel.send(1)
            assert await channel.receive() == 1
            await channel.send_eof()
        await eventually(lambda: len(traces.spans) == 4)
    for name in ("count", "echo"):
        handled, asked = traces.span(name, "SERVER"), traces.span(name, "CLIENT")
        assert handled.parent is not None and handled.parent.span_id == asked.context.span_id


async def test_publications_of_a_peer_without_traces_have_nothing_to_do_with_one_another(traces: Traces) -> None:
    server = traces.bus()
    heard = noting(server, "news.*")
    async with pair(server) as client:
        await publish_each(client, "news.today", range(3))
        await eventually(lambda: len(heard) == 3)
        await eventually(lambda: len(traces.spans) == 3)
    assert [span.parent for span in traces.spans] == [None] * 3
    assert len({span.context.trace_id for span in traces.spans}) == 3
