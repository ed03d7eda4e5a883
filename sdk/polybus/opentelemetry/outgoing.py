"""Spans of what a bus asks and publishes."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from attrs import define, field
from opentelemetry.trace import INVALID_SPAN, SpanKind, get_current_span

from .._core.runtime.outcomes import code_of, kind_of
from ..message import Kind, Message
from .instruments import MOST_NAMES, OTHER, SYSTEM, BoundedNames, parts_of_address, record_outcome, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from .._core.runtime.outgoing import Outcome
    from .instruments import Telemetry


@define(eq=False)
class Leaving:
    """The facts of all spans of one subject to one server, and of its measurements that end well."""

    name: str
    facts: dict[str, AttributeValue]
    measured: dict[str, AttributeValue]


@define(eq=False)
class OutgoingSpans:
    """An outgoing hook: a span until the answer is there, whose context travels in the headers."""

    _telemetry: Telemetry
    _names: BoundedNames = field(factory=BoundedNames, init=False)
    _asked: dict[tuple[str | int, str | None], Leaving] = field(factory=dict, init=False)
    """By the subject, and the address of the server where this bus has dialled it."""

    def __call__(self, message: Message) -> Callable[[Outcome], object] | None:
        telemetry = self._telemetry
        try:
            if not telemetry.kept:
                if (span := get_current_span()) is not INVALID_SPAN:  # of a caller elsewhere: it goes on all the same
                    telemetry.inject(span, message)
                return None
            if message.kind is Kind.PUBLISH:
                return self._publication(message)
            peer = message.peer
            server = peer.address if peer is not None and peer.link.upstream else None
            leaving = self._asked.get((message.subject, server)) or self._leaving(message, server)
            span = telemetry.tracer.start_span(leaving.name, None, SpanKind.CLIENT, leaving.facts)
            if span.is_recording():
                span.set_attribute("polybus.kind", kind_of(message))
                if peer is not None:
                    span.set_attribute("polybus.protocol", peer.protocol)
            telemetry.inject(span, message)
            return Asked(telemetry, leaving, span, message.kind is Kind.OPEN).ended
        except Exception as failure:
            telemetry.failed(failure)
            return None

    def _leaving(self, message: Message, server: str | None) -> Leaving:
        name = self._names.of(message.subject)
        facts: dict[str, AttributeValue] = {"rpc.system.name": SYSTEM, "rpc.method": name, **parts_of_address(server)}
        leaving = Leaving(SYSTEM if name == OTHER else name, facts, {**facts, "rpc.response.status_code": "OK"})
        if name != OTHER and len(self._asked) < MOST_NAMES:
            self._asked[message.subject, server] = leaving
        return leaving

    def _publication(self, message: Message) -> Callable[[Outcome], object]:
        name = self._names.of(message.subject)
        facts: dict[str, AttributeValue] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": str(message.subject),
        }
        kind = SpanKind.PRODUCER
        span = self._telemetry.tracer.start_span("send" if name == OTHER else f"send {name}", None, kind, facts)
        self._telemetry.inject(span, message)
        return Published(self._telemetry, span).ended


class Asked:
    """A request on its way, or a stream or channel while it is open."""

    __slots__ = ("_began", "_counts", "_leaving", "_span", "_telemetry")

    def __init__(self, telemetry: Telemetry, leaving: Leaving, span: Span, counts: bool) -> None:
        self._telemetry = telemetry
        self._leaving = leaving
        self._span = span
        self._counts = counts
        self._began = perf_counter()

    def ended(self, outcome: Outcome) -> None:
        """Measure how long it took, and end the span."""
        error, span, measured = outcome.error, self._span, self._leaving.measured
        try:
            if error is not None:
                code = code_of(error)
                measured = {**measured, "rpc.response.status_code": code.name}
                if isinstance(error, Exception):
                    measured["error.type"] = type_of(error, code)
            self._telemetry.client_call.record(perf_counter() - self._began, measured)
            if span.is_recording():
                record_outcome(span, measured, error)
                if self._counts:
                    span.set_attributes({"polybus.items.sent": outcome.sent, "polybus.items.received": outcome.received})
            span.end()
        except Exception as failure:
            self._telemetry.failed(failure)


class Published:
    """A publication until it has been handed over."""

    __slots__ = ("_span", "_telemetry")

    def __init__(self, telemetry: Telemetry, span: Span) -> None:
        self._telemetry = telemetry
        self._span = span

    def ended(self, outcome: Outcome) -> None:
        """End the span."""
        error = outcome.error
        try:
            if error is not None and self._span.is_recording():
                failed = isinstance(error, Exception)
                record_outcome(self._span, {"error.type": type_of(error, code_of(error))} if failed else {}, error)
            self._span.end()
        except Exception as failure:
            self._telemetry.failed(failure)
