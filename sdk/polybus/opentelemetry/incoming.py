"""Spans of what a bus handles."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field
from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import INVALID_SPAN, SpanKind, set_span_in_context

from .._core.runtime.outcomes import kind_of, told_code
from ..message import Kind, Message
from .instruments import SYSTEM, is_fault_of_server, record_outcome, type_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from .._core.runtime.context import Context
    from .._core.runtime.executor import CallNext
    from .instruments import Telemetry


class _AnyCase(Getter[Mapping[str, str]]):
    """Headers by their names in any case, as W3C Trace Context 3.2.1 has it: clients in Go write ``Traceparent``."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key)
        if value is None:
            for name in carrier:
                if len(name) == len(key) and name.lower() == key.lower():
                    return [carrier[name]]
            return None
        return [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _AnyCase()


@define(eq=False)
class Handled:
    """The facts of all spans of one handler, and of its measurements that end well."""

    name: str
    kind: SpanKind
    facts: dict[str, AttributeValue]
    measured: dict[str, AttributeValue]


@define(eq=False)
class IncomingSpans:
    """A middleware: a span around each handler, the child of the one that its message names."""

    _telemetry: Telemetry
    _calls: dict[str | int, Handled] = field(factory=dict, init=False)
    """By the pattern of the handler."""
    _publications: dict[str | int, Handled] = field(factory=dict, init=False)

    def __call__(self, message: Message, ctx: Context, call_next: CallNext) -> Awaitable[Any]:
        if not message.headers and not self._telemetry.kept:
            return call_next(message)
        return self._within_a_span(self._handled(message, ctx.pattern), message, call_next)

    async def _within_a_span(self, handled: Handled, message: Message, call_next: CallNext) -> Any:
        began = perf_counter()
        span: Span = INVALID_SPAN
        token, recording = None, False
        try:
            context = extract(message.headers, getter=_HEADERS) if message.headers else None
            span = self._telemetry.tracer.start_span(handled.name, context, handled.kind, handled.facts)
            recording = span.is_recording()
            if recording:
                span.set_attributes(_of_message(message))
            if span is not INVALID_SPAN or context:
                token = attach(set_span_in_context(span, context))
        except Exception as failure:
            self._telemetry.failed(failure)
        error: BaseException | None = None
        try:
            return await call_next(message)
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                if token is not None:
                    detach(token)
                measured = self._measure(handled, message.kind, error, perf_counter() - began)
                if recording:
                    if error is not None and "error.type" in measured:
                        span.record_exception(error)
                    record_outcome(span, measured, error)
                span.end()
            except Exception as failure:
                self._telemetry.failed(failure)

    def _measure(self, handled: Handled, kind: Kind, error: BaseException | None, seconds: float) -> dict[str, AttributeValue]:
        measured = handled.measured
        published = kind is Kind.PUBLISH
        if error is not None:
            code = told_code(error, kind)
            measured = dict(measured) if published else {**measured, "rpc.response.status_code": code.name}
            if is_fault_of_server(code) or (published and isinstance(error, Exception)):  # of which nobody is told
                measured["error.type"] = type_of(error, code)
        histogram = self._telemetry.process if published else self._telemetry.server_call
        histogram.record(seconds, measured)
        return measured

    def _handled(self, message: Message, pattern: str | int) -> Handled:
        known = self._publications if message.kind is Kind.PUBLISH else self._calls
        if (handled := known.get(pattern)) is None:
            make = _publication if message.kind is Kind.PUBLISH else _call
            handled = known[pattern] = make(str(pattern))
        return handled


def _publication(pattern: str) -> Handled:
    measured: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.destination.template": pattern,
    }
    facts = {**measured, "messaging.operation.type": "process"}
    return Handled(f"process {pattern}", SpanKind.CONSUMER, facts, measured)


def _call(pattern: str) -> Handled:
    facts: dict[str, AttributeValue] = {"rpc.system.name": SYSTEM, "rpc.method": pattern}
    return Handled(pattern, SpanKind.SERVER, facts, {**facts, "rpc.response.status_code": "OK"})


def _of_message(message: Message) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    if message.kind is Kind.PUBLISH:
        found["messaging.destination.name"] = str(message.subject)
    else:
        found["polybus.kind"] = kind_of(message)
        if message.peer is not None:
            found["network.peer.address"] = message.peer.address
    if message.peer is not None:
        found["polybus.protocol"] = message.peer.protocol
    return found
