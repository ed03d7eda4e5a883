"""Instruments of the meter, and shared parts of spans and measurements."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field
from opentelemetry import metrics, trace
from opentelemetry.metrics import Observation
from opentelemetry.propagate import inject
from opentelemetry.trace import INVALID_SPAN, Status, StatusCode, set_span_in_context

from ..errors import Code, DeadlineExceeded, RequestError
from ..headers import size_of
from ..outcomes import described, only_of
from ..plugins.tools import Warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from ..message import Message
    from ..stats import DurableStats

logger: logging.Logger = logging.getLogger("polybus")

_NAME: Final = "polybus"
_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_OF_THE_API: Final = ("opentelemetry.trace", "opentelemetry.metrics")
SYSTEM: Final = "polybus"
OTHER: Final = "_OTHER"
_BOUNDARIES: Final = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
MOST_NAMES: Final = 1000
_SELDOM: Final = 50
"""Messages between two checks for a provider in a process without one."""
_OF_DURABLES: Final = (
    ("pending", "polybus.store.pending", "{message}", "Stored publications that wait for a worker of a durable handler."),
    ("given", "polybus.store.given", "{message}", "Stored publications that workers have, or that come again."),
    ("redelivered", "polybus.store.redelivered", "{message}", "Publications of these that were given out more than once."),
    ("dead_letters", "polybus.dead_letters", "{message}", "Dead letters of a durable handler that are kept."),
)
_FAULTS_OF_THE_SERVER: Final = frozenset(
    (Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS)
)


class Telemetry:
    """Source of spans, and histograms of durations in seconds."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None, limit: int) -> None:
        self.tracer: Tracer = trace.get_tracer(_NAME, tracer_provider=tracers, schema_url=_SCHEMA)
        self._meter = meter = metrics.get_meter(_NAME, meter_provider=meters, schema_url=_SCHEMA)
        self.client_call: Histogram = _seconds(meter, "rpc.client.call.duration", "Duration of requests that this bus makes.")
        self.server_call: Histogram = _seconds(meter, "rpc.server.call.duration", "Duration of requests that are handled.")
        self.process: Histogram = _seconds(meter, "messaging.process.duration", "Duration of handling a publication.")
        self._providers: list[Callable[[], object]] = [
            trace.get_tracer_provider if tracers is None else lambda: tracers,
            metrics.get_meter_provider if meters is None else lambda: meters,
        ]
        self._limit = limit
        self._kept = False
        self._asked = 0
        self._warnings = Warnings()

    def observe(self, durables: Callable[[], Iterable[DurableStats]]) -> None:
        """Report the progress of durable handlers; the exporter's thread reads it."""
        for attribute, name, unit, text in _OF_DURABLES:

            def observed(options: CallbackOptions, attribute: str = attribute) -> Iterator[Observation]:
                for one in durables():
                    if (value := getattr(one, attribute)) is not None:
                        yield Observation(value, {"messaging.system": SYSTEM, "polybus.durable": one.durable})

            _ = self._meter.create_observable_gauge(name, [observed], unit, text)

    @property
    def kept(self) -> bool:
        """True if spans or measurements are recorded: the API alone records none.

        The check is cached: the library reads the environment each time, which costs more than everything else.
        """
        if not self._kept:
            self._asked -= 1
            if self._asked < 0:
                self._asked = _SELDOM
                self._kept = any(not type(get()).__module__.startswith(_OF_THE_API) for get in self._providers)
        return self._kept

    def inject(self, span: Span, message: Message) -> None:
        """Put the context of a span into the headers of an outgoing message, within their size limit.

        Much of it may come from a peer. The longest values are left out until it fits, so that a peer's baggage never holds a
        message back.
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
        """Log an error of a provider, span processor or propagator, which must not lose the message."""
        self._warnings.warn(logger, "telemetry has failed; messages go on without it", error=failure)


def _seconds(meter: Meter, name: str, text: str) -> Histogram:
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=_BOUNDARIES)


@define
class BoundedNames:
    """Subjects of a program, limited to a number that a backend can bear: later ones are `OTHER`."""

    _known: set[str] = field(factory=set, init=False)

    def of(self, subject: str | int) -> str:
        """Name of a subject."""
        name = str(subject)
        if name not in self._known:
            if len(self._known) >= MOST_NAMES:
                return OTHER
            self._known.add(name)
        return name


def is_fault_of_server(code: Code) -> bool:
    """True if a code means that the server failed, not its client."""
    return code in _FAULTS_OF_THE_SERVER


def type_of(error: BaseException, code: Code) -> str:
    """Type of a failure: its code if one was chosen deliberately, else its class."""
    error = only_of(error)
    chosen = isinstance(error, RequestError) or (isinstance(error, DeadlineExceeded) and error.where == "remote")
    return code.name if chosen else type(error).__qualname__


def record_outcome(span: Span, measured: dict[str, AttributeValue], error: BaseException | None) -> None:
    """Set the attributes of a measurement on a recording span, and its status: an error if they contain an error type."""
    span.set_attributes(measured)
    if "error.type" in measured:
        span.set_status(Status(StatusCode.ERROR, described(error)))


def parts_of_address(server: str | None) -> dict[str, AttributeValue]:
    """Address of a server dialled by this bus; not of clients, with their endless number of ports."""
    host, colon, port = (server or "").rpartition(":")
    if not colon or not port.isdecimal():
        return {"server.address": server} if server else {}
    return {"server.address": host.strip("[]"), "server.port": int(port)}
