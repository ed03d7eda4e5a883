"""OpenTelemetry traces and metrics for a bus: ``instrument(bus)``. Requires ``pip install 'polybus[opentelemetry]'``.

A middleware creates spans for incoming messages; an outgoing hook does so for outgoing messages. Names follow the OpenTelemetry
semantic conventions 1.44, "RPC" and "Messaging".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

try:
    from opentelemetry import metrics, trace
except ImportError:
    raise ImportError("polybus.opentelemetry needs opentelemetry-api: pip install 'polybus[opentelemetry]'") from None
from opentelemetry.context import attach, detach
from opentelemetry.metrics import Observation
from opentelemetry.propagate import extract, inject
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import INVALID_SPAN, SpanKind, Status, StatusCode, get_current_span, set_span_in_context

from . import Bus
from .errors import Code, DeadlineExceeded, LocalProtocolError, RequestError
from .headers import size_of
from .integrations import durables_of, middleware_of
from .message import Kind, Message
from .outcomes import code_of, described, kind_of, only_of, told_code
from .plugins.extensions import core_of
from .plugins.tools import Warnings, check_given, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from . import CallNext, Context, Outcome
    from .stats import DurableStats

__all__ = ["instrument"]

logger: logging.Logger = logging.getLogger("polybus")

_NAME: Final = "polybus"
_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_OF_THE_API: Final = ("opentelemetry.trace", "opentelemetry.metrics")
SYSTEM: Final = "polybus"
OTHER: Final = "_OTHER"
_BOUNDARIES: Final = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
MOST_NAMES: Final = 1000
_SELDOM: Final = 50
"""Number of messages between checks for a provider, in a process without one."""
_OF_DURABLES: Final = {
    "available": "1 while NATS reports on the store of a durable handler, otherwise 0.",
    "pending": "Stored publications that wait for a worker of a durable handler.",
    "unacknowledged": "Stored publications that workers are processing or that wait for a retry.",
    "redelivered": "Publications among these that have been delivered more than once.",
    "dead_letters": "Dead letters stored for a durable handler.",
}
_FAULTS_OF_THE_SERVER: Final = frozenset(
    (Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS)
)


class Telemetry:
    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None, limit: int) -> None:
        self.tracer: Tracer = trace.get_tracer(_NAME, tracer_provider=tracers, schema_url=_SCHEMA)
        self._meter = meter = metrics.get_meter(_NAME, meter_provider=meters, schema_url=_SCHEMA)
        self.client_call: Histogram = _seconds(meter, "rpc.client.call.duration", "Duration of requests sent by this bus.")
        self.server_call: Histogram = _seconds(meter, "rpc.server.call.duration", "Duration of handled requests.")
        self.process: Histogram = _seconds(meter, "messaging.process.duration", "Duration of handled publications.")
        self._providers: list[Callable[[], object]] = [
            trace.get_tracer_provider if tracers is None else lambda: tracers,
            metrics.get_meter_provider if meters is None else lambda: meters,
        ]
        self._limit = limit
        self._kept = False
        self._asked = 0
        self._warnings = Warnings()

    def observe(self, durables: Callable[[], Iterable[DurableStats]]) -> None:
        for attribute, text in _OF_DURABLES.items():
            name = "polybus.dead_letters" if attribute == "dead_letters" else f"polybus.store.{attribute}"
            unit = "1" if attribute == "available" else "{message}"

            def observed(options: CallbackOptions, attribute: str = attribute) -> Iterator[Observation]:
                for one in durables():
                    if (value := getattr(one, attribute)) is not None:
                        yield Observation(int(value), {"messaging.system": SYSTEM, "polybus.durable": one.durable})

            _ = self._meter.create_observable_gauge(name, [observed], unit, text)

    @property
    def kept(self) -> bool:
        """True if spans or measurements are recorded. This requires an SDK in addition to the API.

        The result is cached, because the library reads the environment on each check, which would cost more than all other
        work.
        """
        if not self._kept:
            self._asked -= 1
            if self._asked < 0:
                self._asked = _SELDOM
                self._kept = any(not type(get()).__module__.startswith(_OF_THE_API) for get in self._providers)
        return self._kept

    def inject(self, span: Span, message: Message) -> None:
        """Inject a span's context into the headers of an outgoing message, within the header size limit.

        Leaves out the longest values until the rest fits, so that baggage from a peer never blocks a message.
        """
        if span is INVALID_SPAN or not span.get_span_context().is_valid:
            return
        headers: Any = message.headers
        given = {**headers}
        inject(headers, set_span_in_context(span))
        added = [name for name in headers if name not in given]
        while added and size_of(headers) > self._limit:
            longest = max(added, key=lambda name: len(headers[name]))
            added.remove(longest)
            del headers[longest]

    def failed(self, failure: Exception) -> None:
        """Log an error from a provider, span processor or propagator. Such errors are not raised, so that the message is not
        lost."""
        self._warnings.warn(logger, "telemetry failed; messages are sent without it", error=failure)


def _seconds(meter: Meter, name: str, text: str) -> Histogram:
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=_BOUNDARIES)


def type_of(error: BaseException, code: Code) -> str:
    error = only_of(error)
    chosen = isinstance(error, RequestError) or (isinstance(error, DeadlineExceeded) and error.where == "remote")
    return code.name if chosen else type(error).__qualname__


def record_outcome(span: Span, measured: dict[str, AttributeValue], error: BaseException | None) -> None:
    span.set_attributes(measured)
    if "error.type" in measured:
        span.set_status(Status(StatusCode.ERROR, described(error)))


def parts_of_address(server: str | None) -> dict[str, AttributeValue]:
    """Return the span attributes for a server's address. Callers pass None for clients, because each client has a new port."""
    host, colon, port = (server or "").rpartition(":")
    if not colon or not port.isdecimal():
        return {"server.address": server} if server else {}
    return {"server.address": host.strip("[]"), "server.port": int(port)}


class _AnyCase(Getter[Mapping[str, str]]):
    """Case-insensitive header getter, as W3C Trace Context 3.2.1 requires. For example, Go clients send ``Traceparent``."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        if (value := carrier.get(key)) is not None:
            return [value]
        return next(([carrier[name]] for name in carrier if len(name) == len(key) and name.lower() == key.lower()), None)

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _AnyCase()


@define(eq=False)
class Traced:
    """Name, kind and attributes shared by all spans for a handler, or for a subject on a server.

    `measured` contains the attributes of successful measurements.
    """

    name: str
    kind: SpanKind
    facts: dict[str, AttributeValue]
    measured: dict[str, AttributeValue]


@define(eq=False)
class IncomingSpans:
    """Middleware that runs each handler in a span, as a child of the span in the message."""

    _telemetry: Telemetry
    _call: Callable[[str | int], Traced] = field(factory=lambda: cache(_call), init=False)
    """Returns the span description for a handler's pattern."""
    _publication: Callable[[str | int], Traced] = field(factory=lambda: cache(_publication), init=False)

    def __call__(self, message: Message, ctx: Context, call_next: CallNext) -> Awaitable[Any]:
        if not message.headers and not self._telemetry.kept:
            return call_next(message)
        describe = self._publication if message.kind is Kind.PUBLISH else self._call
        return self._within_a_span(describe(ctx.pattern), message, call_next)

    async def _within_a_span(self, handled: Traced, message: Message, call_next: CallNext) -> Any:
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

    def _measure(self, handled: Traced, kind: Kind, error: BaseException | None, seconds: float) -> dict[str, AttributeValue]:
        measured = handled.measured
        published = kind is Kind.PUBLISH
        if error is not None:
            code = told_code(error, kind)
            measured = dict(measured) if published else {**measured, "rpc.response.status_code": code.name}
            if code in _FAULTS_OF_THE_SERVER or (published and isinstance(error, Exception)):  # a publisher gets no error
                measured["error.type"] = type_of(error, code)
        histogram = self._telemetry.process if published else self._telemetry.server_call
        histogram.record(seconds, measured)
        return measured


def _publication(pattern: str | int) -> Traced:
    measured: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.destination.template": str(pattern),
    }
    facts = {**measured, "messaging.operation.type": "process"}
    return Traced(f"process {pattern}", SpanKind.CONSUMER, facts, measured)


def _call(pattern: str | int) -> Traced:
    facts: dict[str, AttributeValue] = {"rpc.system.name": SYSTEM, "rpc.method": str(pattern)}
    return Traced(str(pattern), SpanKind.SERVER, facts, {**facts, "rpc.response.status_code": "OK"})


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


@define(eq=False)
class OutgoingSpans:
    """Outgoing hook that creates a span for each message, sends its context in the headers, and ends it when the call ends."""

    _telemetry: Telemetry
    _names: set[str] = field(factory=set, init=False)
    """Subjects in spans and metrics, which backends store for good. Their number is limited."""
    _asked: dict[tuple[str | int, str | None], Traced] = field(factory=dict, init=False)
    """Span descriptions by subject and, if this bus connected to a server, the address of the server."""

    def __call__(self, message: Message) -> Callable[[Outcome], object] | None:
        telemetry = self._telemetry
        try:
            if not telemetry.kept:
                if (span := get_current_span()) is not INVALID_SPAN:  # a remote caller's context is passed on anyway
                    telemetry.inject(span, message)
                return None
            if message.kind is Kind.PUBLISH:
                return self._publication(message)
            peer = message.peer
            server = peer.address if peer is not None and core_of(peer).link.upstream else None
            leaving = self._asked.get((message.subject, server)) or self._leaving(message, server)
            span = telemetry.tracer.start_span(leaving.name, None, leaving.kind, leaving.facts)
            if span.is_recording():
                span.set_attribute("polybus.kind", kind_of(message))
                if peer is not None:
                    span.set_attribute("polybus.protocol", peer.protocol)
            telemetry.inject(span, message)
            return self._end_of_call(leaving, span, counts=message.kind is Kind.OPEN)
        except Exception as failure:
            telemetry.failed(failure)
            return None

    def _name_of(self, subject: str | int) -> str:
        name = str(subject)
        if name not in self._names:
            if len(self._names) >= MOST_NAMES:
                return OTHER
            self._names.add(name)
        return name

    def _leaving(self, message: Message, server: str | None) -> Traced:
        name = self._name_of(message.subject)
        facts: dict[str, AttributeValue] = {"rpc.system.name": SYSTEM, "rpc.method": name, **parts_of_address(server)}
        leaving = Traced(SYSTEM if name == OTHER else name, SpanKind.CLIENT, facts, {**facts, "rpc.response.status_code": "OK"})
        if name != OTHER and len(self._asked) < MOST_NAMES:
            self._asked[message.subject, server] = leaving
        return leaving

    def _publication(self, message: Message) -> Callable[[Outcome], object]:
        name = self._name_of(message.subject)
        facts: dict[str, AttributeValue] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": str(message.subject),
        }
        kind = SpanKind.PRODUCER
        span = self._telemetry.tracer.start_span("send" if name == OTHER else f"send {name}", None, kind, facts)
        self._telemetry.inject(span, message)

        def ended(outcome: Outcome) -> None:
            error = outcome.error
            try:
                if error is not None and span.is_recording():
                    failed = isinstance(error, Exception)
                    record_outcome(span, {"error.type": type_of(error, code_of(error))} if failed else {}, error)
                span.end()
            except Exception as failure:
                self._telemetry.failed(failure)

        return ended

    def _end_of_call(self, leaving: Traced, span: Span, *, counts: bool) -> Callable[[Outcome], object]:
        telemetry, began = self._telemetry, perf_counter()

        def ended(outcome: Outcome) -> None:
            error, measured = outcome.error, leaving.measured
            try:
                if error is not None:
                    code = code_of(error)
                    measured = {**measured, "rpc.response.status_code": code.name}
                    if isinstance(error, Exception):
                        measured["error.type"] = type_of(error, code)
                telemetry.client_call.record(perf_counter() - began, measured)
                if span.is_recording():
                    record_outcome(span, measured, error)
                    if counts:
                        span.set_attributes({"polybus.items.sent": outcome.sent, "polybus.items.received": outcome.received})
                span.end()
            except Exception as failure:
                telemetry.failed(failure)

        return ended


def instrument(bus: Bus, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Add spans and metrics to all requests, publications and handlers of a bus, and propagate the trace context.

    Requests, notifications, streams and channels are CLIENT and SERVER spans (``rpc.*``), publications are PRODUCER and
    CONSUMER spans (``messaging.*``). The metrics are ``rpc.client.call.duration``, ``rpc.server.call.duration`` and
    ``messaging.process.duration``, in seconds. Durable handlers also export the numbers in `Stats.durables`:
    ``polybus.store.available``, ``.pending``, ``.unacknowledged`` and ``.redelivered``, and ``polybus.dead_letters``.

    The context is sent in the ``traceparent`` and ``tracestate`` headers, but only to peers that read headers: polybus peers,
    and any peer over uProtocol or NATS. Call this before adding other middleware with `Bus.use`, so that the middleware runs
    within the span.

    Args:
        bus: A bus that has not been entered yet, because it checks whether a peer can read headers when a link opens.
        tracer_provider: Defaults to the global provider.
        meter_provider: Defaults to the global provider.

    Raises:
        ImportError: When importing this module, if ``opentelemetry-api`` is not installed.
        TypeError: If `bus` is not a bus, or a provider is invalid.
        LocalProtocolError: If the bus is already instrumented.
    """
    check_given(bus, Bus, "bus", "instrument(bus)")
    providers = ("tracer_provider", tracer_provider, "get_tracer"), ("meter_provider", meter_provider, "get_meter")
    for name, provider, makes in providers:
        if provider is not None and (isinstance(provider, type) or not hasattr(provider, makes)):
            kind = name.title().replace("_", "")
            raise TypeError(f"{name}={shown(provider)} must be an OpenTelemetry {kind}, as in instrument(bus, {name}={kind}())")
    if any(isinstance(one, IncomingSpans) for one in middleware_of(bus)):
        raise LocalProtocolError("this bus is already instrumented: call instrument(bus) once")
    if bus.peers:
        logger.warning("instrument() was called after links, which carry no context: call it before the bus is entered")
    telemetry = Telemetry(tracer_provider, meter_provider, bus.limits.headers)
    telemetry.observe(lambda: durables_of(bus))
    bus.use(IncomingSpans(telemetry))
    bus.use(OutgoingSpans(telemetry), outgoing=True)
