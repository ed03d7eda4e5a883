"""Telemetry that nobody keeps, or some of it: what is made then, and what goes along all the same."""

from typing import Any

import pytest
from opentelemetry import baggage, context, metrics, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider

from polybus import Bus, Context
from polybus.opentelemetry import Telemetry, instrument
from polybus.testing import pair

from .spans import Traces


def telling(bus: Bus) -> Bus:
    @bus.handle("headers")
    async def headers(ctx: Context) -> dict[str, str]:
        return dict(ctx.message.headers or {})

    @bus.handle("baggage")
    async def tell_baggage() -> Any:
        return baggage.get_baggage("tenant")

    return bus


@pytest.mark.parametrize(("library", "kind"), [(trace, "tracer"), (metrics, "meter")])
def test_a_provider_that_is_set_later_is_found_in_50_messages(library: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[Any] = [getattr(library, f"get_{kind}_provider")()]
    monkeypatch.setattr(library, f"get_{kind}_provider", lambda: current[0])
    telemetry = Telemetry(None, None, 16384)
    assert not telemetry.kept
    current[0] = {"tracer": TracerProvider, "meter": MeterProvider}[kind]()
    assert [telemetry.kept for _ in range(51)][-1]


async def test_a_span_of_the_caller_goes_on_from_a_bus_that_keeps_none() -> None:
    client = Bus()
    instrument(client, tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
    async with pair(telling(Bus()), client=client) as asking:
        assert await asking.request("headers") == {}
        with TracerProvider().get_tracer("caller").start_as_current_span("caller") as span:
            sent = await asking.request("headers")
        assert f"{span.get_span_context().span_id:016x}" in sent["traceparent"]


async def test_measurements_alone_are_kept_without_spans(traces: Traces) -> None:
    server, client = telling(Bus()), Bus()
    for bus in (server, client):
        instrument(bus, tracer_provider=NoOpTracerProvider(), meter_provider=traces.meters)
    async with pair(server, client=client) as asking:
        assert await asking.request("headers") == {}
    assert [count for _, count in traces.measured("rpc.client.call.duration")] == [1]
    assert [count for _, count in traces.measured("rpc.server.call.duration")] == [1]


async def test_baggage_goes_along_into_the_handler(traces: Traces) -> None:
    async with pair(telling(traces.bus()), client=traces.bus()) as client:
        token = context.attach(baggage.set_baggage("tenant", "shop-7"))
        try:
            assert await client.request("baggage") == "shop-7"
        finally:
            context.detach(token)
        assert await client.request("baggage") is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"tracer_provider": 7},
            r"tracer_provider=7 must be an OpenTelemetry TracerProvider, as in instrument\(bus, tracer_prov",
        ),
        ({"tracer_provider": TracerProvider}, r"tracer_provider=.* must be an OpenTelemetry TracerProvider"),
        ({"tracer_provider": MeterProvider()}, r"tracer_provider=.* must be an OpenTelemetry TracerProvider"),
        ({"meter_provider": TracerProvider()}, r"meter_provider=.* must be an OpenTelemetry MeterProvider"),
    ],
)
def test_a_provider_that_is_none_is_an_error_at_once(options: dict[str, Any], says: str) -> None:
    bus = Bus()
    with pytest.raises(TypeError, match=says):
        instrument(bus, **options)
    instrument(bus)
