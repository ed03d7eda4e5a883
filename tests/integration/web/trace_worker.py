"""A node of a cluster in a process of its own, whose spans go to a collector."""

from __future__ import annotations

import json
import sys

import anyio
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from polybus import Bus
from polybus.opentelemetry import instrument


def providers(service: str, collector: str) -> TracerProvider:
    """Make a provider whose spans go to the collector, at its end at the latest."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector}/v1/traces")))
    return provider


async def main(engine: str, collector: str) -> None:
    bus = Bus(cluster=engine)
    provider = providers("worker", collector)
    instrument(bus, tracer_provider=provider)

    @bus.handle("paint")
    async def paint(color: str) -> str:
        return f"painted {color}"

    async with bus:
        print(json.dumps({"urls": []}), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
    provider.shutdown()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
