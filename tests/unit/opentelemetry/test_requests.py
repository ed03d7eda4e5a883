"""Spans and measurements of requests, notifications, streams and channels."""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from opentelemetry.context import get_current
from opentelemetry.trace import StatusCode, get_current_span

from polybus import Bus, Channel, Context, Retry, connect
from polybus._core.bus.bus import parts_of
from polybus.errors import (
    DeadlineExceeded,
    Disconnected,
    LocalProtocolError,
    NoHandler,
    NotFound,
    RequestError,
    Unavailable,
)
from polybus.message import Kind, Message
from polybus.opentelemetry import OutgoingSpans, instrument
from polybus.protocols import Up
from polybus.testing import pair
from tests.support import eventually
from tests.unit.answering import answering
from tests.unit.opentelemetry.spans import Traces

PROTOCOLS = ["ubre", "csb", "jrep", "uprotocol"]


@pytest.mark.parametrize("protocol", [*PROTOCOLS, Up(names={"user.get": 1})])
async def test_a_request_is_one_trace_over_every_protocol(protocol: Any, traces: Traces) -> None:
    server, client = answering(traces.bus()), traces.bus()

    @server.handle("user.get")
    async def get(n: int) -> int:
        return await server.request("echo", n, returns=int)

    async with pair(server, protocol=protocol, client=client):
        assert await client.request("user.get", 7) == 7
    assert traces.path() == [("user.get", "CLIENT"), ("user.get", "SERVER"), ("echo", "CLIENT"), ("echo", "SERVER")]
    assert len({span.context.trace_id for span in traces.spans}) == 1
    asked = traces.spans[-1]
    assert asked.attributes is not None
    assert dict(asked.attributes) == {
        "rpc.system.name": "polybus",
        "rpc.method": "user.get",
        "rpc.response.status_code": "OK",
        "polybus.kind": "request",
        "polybus.protocol": protocol if isinstance(protocol, str) else protocol.name,
        "server.address": asked.attributes["server.address"],
    }
    handled = {"rpc.system.name": "polybus", "rpc.method": "user.get", "rpc.response.status_code": "OK"}
    assert (handled, 1) in traces.measured("rpc.server.call.duration")


@pytest.mark.parametrize("style", ["thread", "inline"])
async def test_what_a_plain_handler_asks_is_a_child_of_its_span(style: str, traces: Traces) -> None:
    server, client = answering(traces.bus()), traces.bus()

    @server.handle("outer", inline=style == "inline")
    def outer(ctx: Context) -> int:
        reply = ctx.bus.request("echo", 1)
        return int(reply) if style == "thread" else 1

    async with pair(server, client=client):
        assert await client.request("outer") == 1
        await eventually(lambda: len(traces.spans) == 4)
    assert traces.path() == [("outer", "CLIENT"), ("outer", "SERVER"), ("echo", "CLIENT"), ("echo", "SERVER")]


@pytest.mark.parametrize(
    ("raised", "code", "fault"),
    [
        (NotFound("no such user"), "NOT_FOUND", None),
        (ValueError("secret"), "INTERNAL", "ValueError"),
        (ExceptionGroup("of a task group", [NotFound("no such user")]), "NOT_FOUND", None),
        (DeadlineExceeded("elsewhere"), "INTERNAL", "DeadlineExceeded"),
        (Disconnected("elsewhere"), "INTERNAL", "Disconnected"),
        (Unavailable("not yet"), "UNAVAILABLE", "UNAVAILABLE"),
        (None, "INTERNAL", "INTERNAL"),
    ],
)
async def test_a_server_span_has_the_code_of_the_asker(
    raised: Exception | None, code: str, fault: str | None, traces: Traces
) -> None:
    server, client = traces.bus(), traces.bus()

    @server.handle("fail")
    async def fail() -> None:
        if raised is not None:
            raise raised
        await server.peers[0].request("nothing")  # its NoHandler falls through

    async with pair(server, client=client):
        with pytest.raises(RequestError) as caught:
            await client.request("fail")
    assert caught.value.code.name == code
    for kind, error_type in (("CLIENT", code), ("SERVER", fault)):
        facts = traces.facts("fail", kind)
        assert (facts["rpc.response.status_code"], facts.get("error.type")) == (code, error_type)
        assert traces.span("fail", kind).status.status_code is (StatusCode.UNSET if error_type is None else StatusCode.ERROR)
    assert [event.name for event in traces.span("fail", "SERVER").events] == ["exception"] * (fault is not None)
    measured = [facts for facts, _ in traces.measured("rpc.server.call.duration")]
    assert [(facts["rpc.response.status_code"], facts.get("error.type")) for facts in measured] == [(code, fault)]


async def test_requests_that_are_not_answered_end_their_spans(traces: Traces) -> None:
    server, client = answering(), traces.bus()
    async with pair(server, client=client):
        with pytest.raises(DeadlineExceeded):
            await client.request("endless", timeout=0.01)
        with anyio.CancelScope() as scope:
            reply = client.request("endless")
            scope.cancel()
            await reply
        await eventually(lambda: server.stats().running == 0)
        lost = client.request("endless")
        await eventually(lambda: server.stats().running == 1)
        await server.aclose()
        with pytest.raises(Disconnected):
            await lost
    codes = [span.attributes["rpc.response.status_code"] for span in traces.spans if span.attributes is not None]
    assert codes == ["DEADLINE_EXCEEDED", "CANCELLED", "UNAVAILABLE"]


@pytest.mark.parametrize(("protocol", "most"), [*((protocol, 3) for protocol in PROTOCOLS), ("ubre", 0), ("ubre", 1)])
async def test_a_stream_is_one_span_with_its_counts(protocol: str, most: int, traces: Traces) -> None:
    server, client = traces.bus(), traces.bus()

    @server.handle("count")
    async def count(most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number

    async with pair(server, protocol=protocol, client=client), client.stream("count", most) as numbers:
        assert [number async for number in numbers] == list(range(most))
    assert traces.path() == [("count", "CLIENT"), ("count", "SERVER")]
    facts = traces.facts("count", "CLIENT")
    assert facts["polybus.kind"] == "stream"
    assert (facts["polybus.items.sent"], facts["polybus.items.received"]) == (0, most)


@pytest.mark.parametrize("own", [False, True])
async def test_a_channel_is_one_span_with_its_counts_to_oneself_too(own: bool, traces: Traces) -> None:
    server, client = traces.bus(), traces.bus()

    @server.handle("echo")
    async def echo(channel: Channel[int, int]) -> None:
        async for number in channel:
            await channel.send(number)

    async with pair(server, client=client), (server if own else client).channel("echo") as channel:
        await channel.send(1)
        assert await channel.receive() == 1
        await channel.send_eof()
    assert traces.path() == [("echo", "CLIENT"), ("echo", "SERVER")]
    facts = traces.facts("echo", "CLIENT")
    assert facts["polybus.kind"] == "channel"
    assert (facts["polybus.items.sent"], facts["polybus.items.received"]) == (1, 1)


@pytest.mark.parametrize("names", [("traceparent", "tracestate"), ("Traceparent", "Tracestate"), ("TRACEPARENT", "TraceState")])
async def test_names_of_headers_are_read_in_any_case(names: tuple[str, str], traces: Traces) -> None:
    values = f"00-{'a' * 32}-{'b' * 16}-01", "shop=7"
    async with pair(answering(traces.bus())) as client:
        await client.request("echo", headers={"x-tracestat": "other", **dict(zip(names, values, strict=True))})
    span = traces.span("echo", "SERVER")
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert dict(span.context.trace_state) == {"shop": "7"}


async def test_a_notification_is_a_client_and_a_server_span(traces: Traces) -> None:
    server, client, told = traces.bus(), traces.bus(), list[int]()
    server.handle("tell")(lambda number: told.append(number))
    async with pair(server, client=client):
        await client.notify("tell", 1)
        await server.notify("tell", 2)
        await eventually(lambda: len(told) == 2)
    await eventually(lambda: len(traces.spans) == 4)
    assert sorted((span.name, span.kind.name) for span in traces.spans) == [("tell", "CLIENT")] * 2 + [("tell", "SERVER")] * 2


async def test_a_method_is_the_registered_pattern_and_of_a_client_one_of_a_thousand(traces: Traces) -> None:
    async with pair(Bus(), client=traces.bus()) as client:
        for number in range(1010):
            with pytest.raises(NoHandler):
                await client.request(f"user.{number}")
    methods = {attributes["rpc.method"] for attributes, _ in traces.measured("rpc.client.call.duration")}
    assert len(methods) == 1001 and "_OTHER" in methods
    assert [span.name for span in traces.spans].count("polybus") == 10


async def test_what_is_remembered_of_subjects_and_servers_is_bounded(traces: Traces) -> None:
    bus = traces.bus()
    (spans,) = [hook for hook in parts_of(bus).services.outgoing if isinstance(hook, OutgoingSpans)]
    for number in range(1200):
        server: Any = SimpleNamespace(address=f"10.0.0.1:{number}", protocol="ubre", link=SimpleNamespace(upstream=True))
        spans(Message(Kind.REQUEST, "x", headers={}, peer=server))
        spans(Message(Kind.REQUEST, f"y.{number}", headers={}))
    assert max(len(table) for table in (spans._asked, spans._names)) == 1000


async def test_each_attempt_of_a_retried_request_is_a_child_of_the_span_around_the_call(traces: Traces) -> None:
    server, client, asked = traces.bus(), traces.bus(), list[int]()

    @server.handle("work")
    async def work() -> int:
        asked.append(1)
        if len(asked) < 3:
            raise Unavailable("not yet")
        return len(asked)

    async with pair(server, client=client):
        with traces.tracers.get_tracer("test").start_as_current_span("around") as around:
            assert await client.request("work", retry=Retry(backoff=0)) == 3
    parents = [span.parent for span in traces.spans if span.kind.name == "CLIENT"]
    assert [parent and parent.span_id for parent in parents] == [around.get_span_context().span_id] * 3


async def test_an_instrumentation_too_late_for_a_link_says_so(caplog: pytest.LogCaptureFixture, traces: Traces) -> None:
    server, client = Bus(), Bus()
    async with server.serve("ubre+memory://late") as listener:
        instrument(server, tracer_provider=traces.tracers)
        assert caplog.records == []
        async with connect(listener.url, bus=client):
            instrument(client, tracer_provider=traces.tracers)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "instrument() was called after links, which carry no context: call it before the bus is entered"
    ]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_context_of_a_handler_ends_with_it(fails: bool, traces: Traces) -> None:
    seen, server, client = list[Any](), Bus(), Bus()

    @server.use
    async def around(message: Message, ctx: Context, call_next: Any) -> Any:
        before = get_current()
        try:
            return await call_next(message)
        finally:
            seen.append((before, get_current()))

    instrument(server, tracer_provider=traces.tracers, meter_provider=traces.meters)

    @server.handle("within")
    async def within() -> bool:
        if fails:
            raise NotFound("no")
        return get_current_span().is_recording()

    async with pair(server, client=client):
        with pytest.raises(NotFound) if fails else nullcontext():
            assert await client.request("within")
    ((before, after),) = seen
    assert after is before


async def test_a_bus_is_instrumented_once(traces: Traces) -> None:
    with pytest.raises(LocalProtocolError, match="already"):
        instrument(traces.bus())
    with pytest.raises(TypeError, match="bus="):
        instrument("bus")  # type: ignore[arg-type]


async def test_the_first_request_over_a_real_connection_carries_the_context(traces: Traces) -> None:
    server, client = answering(traces.bus()), traces.bus()
    async with server.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url, bus=client):
        assert await client.request("echo", 1) == 1
        port = int(listener.url.rpartition(":")[2])
    assert traces.path() == [("echo", "CLIENT"), ("echo", "SERVER")]
    facts = traces.facts("echo", "CLIENT")
    assert (facts["server.address"], facts["server.port"]) == ("127.0.0.1", port)
