"""One trace from a page to a node of a cluster, through a gateway, CSB, a bridge and uProtocol."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import websockets
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

from polybus import Bus, Route, bridge, connect
from polybus.fastapi import BusDep, attach
from polybus.testing import NatsEngine
from tests.support import BOUND
from tests.unit.opentelemetry.spans import Traces

from .support import Uvicorn, running

PAINT = 0x0001_0007
PARENT = 0x0AF7651916CD43DD8448EB211C80319C
ASKED = {"request": "paint", "id": 1, "body": "red", "headers": {"traceparent": f"00-{PARENT:032x}-b7ad6b7169203331-01"}}
INWARDS = [
    "paint",  # the gateway's handler
    str(PAINT),  # asks over CSB
    "vehicle.paint",  # came over the bridge and uProtocol
    "paint",  # asks over NATS
    "paint",  # the other node of the cluster
]


@asynccontextmanager
async def plant(traces: Traces) -> AsyncIterator[Uvicorn]:
    """A page's gateway -> CSB -> a bridge -> uProtocol -> NATS; all of them but the bridge make spans."""
    app, gateway, csb, left, right = FastAPI(), traces.bus(), traces.bus(), Bus(), Bus()
    attach(app, gateway)
    FastAPIInstrumentor.instrument_app(app, tracer_provider=traces.tracers, exclude_spans=["send", "receive"])

    @app.get("/paint/{color}")
    async def paint(color: str, bus: BusDep) -> Any:
        return await bus.request("paint", color, timeout=BOUND)

    async with NatsEngine() as engine:
        uprotocol, worker = traces.bus(cluster=engine.url), traces.bus(cluster=engine.url)

        @gateway.handle("paint")
        async def from_the_page(color: str) -> Any:
            return await csb.request(PAINT, color, timeout=BOUND)

        @uprotocol.handle("vehicle.paint")
        async def to_the_worker(color: str) -> Any:
            return await uprotocol.request("paint", color, timeout=BOUND)

        @worker.handle("paint")
        async def painted(color: str) -> str:
            return f"painted {color}"

        async with (
            worker,
            left.serve("csb+tcp://127.0.0.1:0") as direct,
            uprotocol.serve("uprotocol+tcp://127.0.0.1:0") as vehicle,
            connect(direct.url, bus=csb),
            connect(vehicle.url, bus=right),
            bridge(left, right, routes=[Route(PAINT, "vehicle.paint")]),
            running(app) as server,
        ):
            yield server


def path(traces: Traces, trace: int) -> list[str]:
    """The names of the spans of a trace, from the outermost inwards: each has one child, between its ends of a wire."""
    spans = [span for span in traces.spans if span.context.trace_id == trace]
    known = {span.context.span_id for span in spans}
    (span,) = [span for span in spans if span.parent is None or span.parent.span_id not in known]
    names = [span.name]
    while below := [one for one in spans if one.parent is not None and one.parent.span_id == span.context.span_id]:
        (span,) = below
        names.append(span.name)
    assert len(names) == len(spans)
    return names


async def test_a_page_a_gateway_a_bridge_and_a_node_are_one_trace() -> None:
    traces = Traces()
    async with plant(traces) as server:
        async with websockets.connect(f"ws://127.0.0.1:{server.port}/bus", proxy=None) as page:
            await page.send(json.dumps(ASKED))
            assert json.loads(await page.recv())["body"] == "painted red"
        async with httpx.AsyncClient(trust_env=False) as http:
            response = await http.get(f"http://127.0.0.1:{server.port}/paint/blue", timeout=BOUND)
            assert response.json() == "painted blue"
    of_http = traces.span("GET /paint/{color}")
    assert path(traces, PARENT) == INWARDS
    # The endpoint asks its own bus.
    assert path(traces, of_http.context.trace_id) == ["GET /paint/{color}", "paint", *INWARDS]
