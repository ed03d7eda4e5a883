"""Telemetry that fails, or is more than a message can carry: messages go on without it."""

from typing import Any, Final

import pytest
from opentelemetry import propagate
from opentelemetry.sdk.trace import SpanProcessor

from polybus import Bus, Context, Limits, LocalProtocolError
from polybus.opentelemetry import instrument
from polybus.testing import pair
from tests.unit.answering import noting
from tests.unit.opentelemetry.spans import Traces

pytestmark = pytest.mark.native

PARENT: Final = f"00-{'a' * 32}-{'b' * 16}-01"


def fail(*given: Any, **options: Any) -> Any:
    raise ZeroDivisionError("a part of the application")


class AtStart(SpanProcessor):
    on_start = fail


class AtEnd(SpanProcessor):
    on_end = fail


class Propagator:
    fields: Final[set[str]] = set()
    extract = inject = fail


@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize("broken", [AtStart, AtEnd, Propagator])
async def test_an_answer_arrives_whatever_telemetry_raises(
    side: str, broken: type[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    server, client = Bus(), Bus()
    if broken is Propagator:
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Propagator())
    else:
        traces.tracers.add_span_processor(broken())
    instrument({"server": server, "client": client}[side], tracer_provider=traces.tracers, meter_provider=traces.meters)
    handled = noting(server, "order.placed")

    @server.handle("order.place")
    async def place(article: str, ctx: Context) -> str:
        await ctx.bus.publish("order.placed", article)
        return f"one {article}"

    async with pair(server, client=client):
        for _ in range(20):
            assert await client.request("order.place", "soup", headers={"traceparent": PARENT}) == "one soup"
    assert handled == ["soup"] * 20
    assert "ZeroDivisionError" in caplog.text
    assert caplog.text.count("telemetry failed") == 3  # and no more lines, however often it does


async def names_of_headers(ctx: Context) -> list[str]:
    return sorted(ctx.message.headers or {})


async def test_what_a_peer_has_put_into_the_context_never_keeps_a_handler_from_asking(traces: Traces) -> None:
    store, shop = Bus(), traces.bus()
    store.handle("price")(names_of_headers)

    @shop.handle("order")
    async def order(ctx: Context) -> list[str]:
        found: list[str] = await ctx.bus.request("price", headers={"authorization": "t" * 3000})
        return found

    given = {
        "traceparent": PARENT,
        "tracestate": ",".join(f"k{place}={'b' * 240}" for place in range(32)),
        "baggage": ",".join(f"k{place}={'b' * 37}" for place in range(170)),
    }
    async with pair(store, client=shop), pair(shop) as client:
        assert await client.request("order", headers=given) == ["authorization", "baggage", "traceparent"]


async def test_headers_that_fill_the_limit_go_without_the_context_and_others_are_refused_as_ever(traces: Traces) -> None:
    server, client = Bus(), traces.bus(limits=Limits(headers=1000))
    server.handle("x")(names_of_headers)
    async with pair(server, client=client):
        assert await client.request("x", headers={"x-a": "t" * 923}) == ["traceparent", "x-a"]  # which fill it
        assert await client.request("x", headers={"x-a": "t" * 924}) == ["x-a"]
        assert await client.request("x", headers={"x-a": "t" * 993}) == ["x-a"]
        with pytest.raises(LocalProtocolError, match="headers of 1001 bytes"):
            await client.request("x", headers={"x-a": "t" * 994})
