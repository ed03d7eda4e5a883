"""Spans of what a bus asks and publishes."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from attrs import define, field
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind

from .._core.outcomes import code_of, kind_of
from ..message import Kind, Message
from .instruments import OTHER, SYSTEM, BoundedNames, address_of, record_outcome, type_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from .._core.outgoing import Outcome
    from .instruments import Instruments, Spans


@define(eq=False)
class OutgoingSpans:
    """An outgoing hook: a span until the answer is there, whose context travels in the headers."""

    _spans: Spans
    _instruments: Instruments
    _names: BoundedNames = field(factory=BoundedNames, init=False)

    def __call__(self, message: Message) -> Callable[[Outcome], object] | None:
        if message.kind is Kind.PUBLISH:
            return self._publication(message)
        name, peer = self._names.of(message.subject), message.peer
        facts: dict[str, AttributeValue] = {"rpc.system.name": SYSTEM, "rpc.method": name, **address_of(peer)}
        if not self._spans.kept:
            _inject(trace.get_current_span(), message)  # that of a caller's elsewhere goes on all the same
            return Asked(self._instruments, facts).ended
        span = self._spans.tracer.start_span(SYSTEM if name == OTHER else name, None, SpanKind.CLIENT, facts)
        if span.is_recording():
            span.set_attribute("polybus.kind", kind_of(message))
            if peer is not None:
                span.set_attribute("polybus.protocol", peer.protocol)
        _inject(span, message)
        return Asked(self._instruments, facts, span).ended

    def _publication(self, message: Message) -> Callable[[Outcome], object] | None:
        if not self._spans.kept:
            _inject(trace.get_current_span(), message)
            return None
        name = self._names.of(message.subject)
        facts: dict[str, AttributeValue] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": str(message.subject),
        }
        span = self._spans.tracer.start_span("send" if name == OTHER else f"send {name}", None, SpanKind.PRODUCER, facts)
        _inject(span, message)
        return Published(span).ended


class Asked:
    """A request on its way, or a stream or channel while it is open."""

    __slots__ = ("_began", "_facts", "_instruments", "_span")

    def __init__(self, instruments: Instruments, facts: dict[str, AttributeValue], span: Span | None = None) -> None:
        self._instruments = instruments
        self._facts = facts
        self._span = span
        self._began = perf_counter()

    def ended(self, outcome: Outcome) -> None:
        """Measure how long it took, and end the span."""
        error, span = outcome.error, self._span
        measured = {**self._facts, "rpc.response.status_code": "OK"}
        if error is not None:
            code = code_of(error)
            measured["rpc.response.status_code"] = code.name
            if isinstance(error, Exception):
                measured["error.type"] = type_of(error, code)
        self._instruments.client_call.record(perf_counter() - self._began, measured)
        if span is not None:
            record_outcome(span, measured, error)
            if outcome.sent or outcome.received > 1:
                span.set_attributes({"polybus.items.sent": outcome.sent, "polybus.items.received": outcome.received})
            span.end()


class Published:
    """A publication until it has been handed over."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def ended(self, outcome: Outcome) -> None:
        """End the span."""
        error = outcome.error
        failure: dict[str, AttributeValue] = (
            {"error.type": type_of(error, code_of(error))} if isinstance(error, Exception) else {}
        )
        record_outcome(self._span, failure, error)
        self._span.end()


def _inject(span: Span, message: Message) -> None:
    if span is not trace.INVALID_SPAN and span.get_span_context().is_valid:
        propagate.inject(message.headers, trace.set_span_in_context(span))
