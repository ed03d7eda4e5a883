"""A bus with spans and measurements that a test can read."""

from collections import defaultdict
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from polybus import Bus
from polybus.opentelemetry import instrument

__all__ = ["Traces"]


class Traces:
    """The providers of one test, and what they have been given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader])

    def bus(self, **options: Any) -> Bus:
        bus = Bus(**options)
        instrument(bus, tracer_provider=self.tracers, meter_provider=self.meters)
        return bus

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def span(self, name: str, kind: str = "") -> ReadableSpan:
        found = [span for span in self.spans if span.name == name and kind in ("", span.kind.name)]
        assert len(found) == 1, [(span.name, span.kind.name) for span in self.spans]
        return found[0]

    def facts(self, name: str, kind: str = "") -> dict[str, Any]:
        return dict(self.span(name, kind).attributes or {})

    def path(self) -> list[tuple[str, str]]:
        """The names and kinds from the root down, where each span has one child at most."""
        children = defaultdict(list)
        for span in self.spans:
            children[span.parent.span_id if span.parent is not None else None].append(span)
        path, at = [], None
        while below := children[at]:
            (span,) = below
            path.append((span.name, span.kind.name))
            at = span.context.span_id
        return path

    def gauges(self) -> dict[str, dict[str, Any]]:
        """The gauges of durable handlers, by their names and those of the handlers."""
        data = self._reader.get_metrics_data()
        found: dict[str, dict[str, Any]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in metric.data.data_points:
                    if "polybus.durable" in (attributes := point.attributes or {}):
                        found.setdefault(metric.name, {})[str(attributes["polybus.durable"])] = point.value  # type: ignore[union-attr]
        return found

    def measured(self, name: str) -> list[tuple[dict[str, Any], int]]:
        """The attributes of a histogram's points, with how often each was recorded."""
        data = self._reader.get_metrics_data()
        found = []
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        assert metric.unit == "s"
                        found += [(dict(point.attributes or {}), point.count) for point in metric.data.data_points]  # type: ignore[union-attr]
        return found
