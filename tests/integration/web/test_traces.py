"""One trace of a request over HTTP, the question of its endpoint to the bus, and the handler."""

from typing import Any

import httpx
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

from polybus.fastapi import BusDep, attach
from tests.unit.opentelemetry.spans import Traces


async def test_an_endpoint_and_the_handler_that_it_asks_are_one_trace() -> None:
    traces, app = Traces(), FastAPI()
    bus = traces.bus()
    attach(app, bus)
    FastAPIInstrumentor.instrument_app(app, tracer_provider=traces.tracers, exclude_spans=["send", "receive"])

    @bus.handle("paint")
    async def paint(color: str) -> str:
        return f"painted {color}"

    @app.get("/paint/{color}")
    async def endpoint(color: str, bus: BusDep) -> Any:
        return await bus.request("paint", color)

    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        assert (await http.get("/paint/blue")).json() == "painted blue"
    of_http = traces.span("GET /paint/{color}")
    spans: list[Any] = [span for span in traces.spans if span.context.trace_id == of_http.context.trace_id]
    handled, asked, last = spans
    assert (handled.name, asked.name, last) == ("paint", "paint", of_http)
    assert (handled.parent.span_id, asked.parent.span_id) == (asked.context.span_id, of_http.context.span_id)
