"""One trace from a page in a browser to a worker in another process, as a collector is told it in OTLP."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from attrs import define, field
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from polybus import Bus, Route, bridge, connect
from polybus.fastapi import BusDep, attach
from polybus.opentelemetry import instrument
from tests.integration.interop.nats_servers import nats_server
from tests.integration.web.browser import BOUND, browser
from tests.integration.web.support import running
from tests.integration.web.trace_worker import providers

pytestmark = pytest.mark.anyio

PAINT = 0x0001_0007
PARENT = "0af7651916cd43dd8448eb211c80319c"
SCRIPT = """
new Promise((resolve) => {
  const socket = new WebSocket(%s, "ubre")
  socket.onopen = () => socket.send(JSON.stringify({
    request: "paint", id: 1, body: "red", headers: { traceparent: "00-%s-b7ad6b7169203331-01" } }))
  socket.onmessage = ({ data }) => resolve(data)
  socket.onclose = ({ code, reason }) => resolve(`${code} ${reason}`)
})
"""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvicorn and the browser run on it."""
    return "asyncio", {"use_uvloop": False}


@define
class Collector:
    """A receiver of OTLP over HTTP."""

    url: str
    spans: list[tuple[str, Any]] = field(factory=list)
    """The name of the service, and the span as it came."""

    def path(self, trace: str) -> list[tuple[str, str]]:
        """Services and names of the spans of a trace, from the outermost inwards."""
        spans = [(service, span) for service, span in self.spans if span.trace_id.hex() == trace]
        known = {span.span_id for _, span in spans}
        path, at = [], next(span.parent_span_id for _, span in spans if span.parent_span_id not in known)
        while below := [(service, span) for service, span in spans if span.parent_span_id == at]:
            ((service, span),) = below
            path.append((service, span.name))
            at = span.span_id
        assert len(path) == len(spans)
        return path


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in request.resource_spans:
                (service,) = [pair.value.string_value for pair in resource.resource.attributes if pair.key == "service.name"]
                found.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@asynccontextmanager
async def worker(engine: str, collector: Collector) -> AsyncIterator[None]:
    """The worker; it has told all its spans when the block is left."""
    command = [sys.executable, "-m", "tests.integration.web.trace_worker", engine, collector.url]
    with await anyio.to_thread.run_sync(partial(subprocess.Popen, command, stdin=-1, stdout=-1)) as process:
        try:
            assert process.stdout is not None
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            assert json.loads(line) == {"urls": []}
            yield
        except BaseException:
            process.kill()
            raise
        await anyio.to_thread.run_sync(process.communicate)
        assert process.returncode == 0


@asynccontextmanager
async def plant(engine: str, provider: TracerProvider) -> AsyncIterator[FastAPI]:
    """A page's gateway -> CSB -> a bridge -> uProtocol -> NATS; all of them but the bridge make spans."""
    gateway, csb, left, uprotocol = Bus(), Bus(), Bus(), Bus(cluster=engine)
    for bus in (gateway, csb, uprotocol):
        instrument(bus, tracer_provider=provider)

    @gateway.handle("paint")
    async def from_the_page(color: str) -> Any:
        return await csb.request(PAINT, color, timeout=BOUND)

    @uprotocol.handle("vehicle.paint")
    async def to_the_worker(color: str) -> Any:
        return await uprotocol.request("paint", color, timeout=BOUND)

    app = FastAPI()
    attach(app, gateway, path="/bus")

    @app.get("/paint/{color}")
    async def paint(color: str, bus: BusDep) -> Any:
        return await bus.request("paint", color, timeout=BOUND)

    @app.get("/page")
    async def page() -> HTMLResponse:
        return HTMLResponse("<!doctype html><title>page</title>")

    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider, exclude_spans=["send", "receive"])
    right = Bus()
    async with (
        left.serve("csb+tcp://127.0.0.1:0") as direct,
        uprotocol.serve("uprotocol+tcp://127.0.0.1:0") as vehicle,
        connect(direct.url, bus=csb),
        connect(vehicle.url, bus=right),
        bridge(left, right, routes=[Route(PAINT, "vehicle.paint")]),
    ):
        yield app


INWARDS = [
    ("plant", "paint"),  # the gateway's handler
    ("plant", str(PAINT)),  # asks over CSB
    ("plant", "vehicle.paint"),  # came over the bridge and uProtocol
    ("plant", "paint"),  # asks over NATS
    ("worker", "paint"),
]


async def test_a_page_a_gateway_a_bridge_and_a_worker_are_one_trace(collector: Collector) -> None:
    provider = providers("plant", collector.url)
    with nats_server("debian") as server:
        async with worker(server.url, collector), plant(server.url, provider) as app, running(app) as web:
            async with browser() as chromium:
                tab = await chromium.tab(f"http://127.0.0.1:{web.port}/page")
                answer = await tab.run(SCRIPT % (json.dumps(f"ws://127.0.0.1:{web.port}/bus"), PARENT))
            assert json.loads(answer)["success"] == 1, answer
            async with httpx.AsyncClient(trust_env=False) as http:
                response = await http.get(f"http://127.0.0.1:{web.port}/paint/blue", timeout=BOUND)
            assert response.json() == "painted blue"
    provider.shutdown()
    assert collector.path(PARENT) == INWARDS
    (of_http,) = [span for _, span in collector.spans if span.name == "GET /paint/{color}"]
    assert collector.path(of_http.trace_id.hex()) == [
        ("plant", "GET /paint/{color}"),
        ("plant", "paint"),  # the endpoint asks its own bus
        *INWARDS,
    ]
