"""The instruments of the meter, and what spans and measurements have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import define, field
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from .._core.executor import described
from .._core.outcomes import only_of
from ..errors import Code, DeadlineExceeded, RequestError

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

SYSTEM: Final = "polybus"
OTHER: Final = "_OTHER"
_BOUNDARIES: Final = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
_MOST: Final = 1000
_SELDOM: Final = 50
"""Messages for which a process without a provider is not asked for one again."""
_FAULTS_OF_THE_SERVER: Final = frozenset(
    (Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS)
)


class Spans:
    """The source of spans."""

    def __init__(self, provider: TracerProvider | None, name: str, schema: str) -> None:
        self.tracer: Tracer = trace.get_tracer(name, tracer_provider=provider, schema_url=schema)
        self._kept = provider is not None
        self._asked = 0

    @property
    def kept(self) -> bool:
        """True where somebody takes the spans: a provider was given, or is set for the process.

        The library looks into the environment each time, which costs more than all the rest: it is asked once in a while.
        """
        if not self._kept:
            self._asked -= 1
            if self._asked < 0:
                self._asked = _SELDOM
                self._kept = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        return self._kept


class Instruments:
    """Histograms of durations, in seconds."""

    def __init__(self, meter: Meter) -> None:
        self.client_call: Histogram = _seconds(meter, "rpc.client.call.duration", "Duration of requests that this bus makes.")
        self.server_call: Histogram = _seconds(meter, "rpc.server.call.duration", "Duration of requests that are handled.")
        self.process: Histogram = _seconds(meter, "messaging.process.duration", "Duration of handling a publication.")


def _seconds(meter: Meter, name: str, text: str) -> Histogram:
    return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=_BOUNDARIES)


@define
class BoundedNames:
    """Names that a program says itself, kept to a number that a backend can bear: what comes later is `OTHER`."""

    _known: set[str] = field(factory=set, init=False)

    def of(self, subject: str | int) -> str:
        """Give the name of a subject."""
        name = str(subject)
        if name not in self._known:
            if len(self._known) >= _MOST:
                return OTHER
            self._known.add(name)
        return name


def is_fault_of_server(code: Code) -> bool:
    """Tell whether a server failed that answers with a code: other errors are a mistake of its client."""
    return code in _FAULTS_OF_THE_SERVER


def type_of(error: BaseException, code: Code) -> str:
    """Name the type of a failure: that of its code where somebody has chosen one, else its class."""
    error = only_of(error)
    chosen = isinstance(error, RequestError) or (isinstance(error, DeadlineExceeded) and error.where == "remote")
    return code.name if chosen else type(error).__qualname__


def record_outcome(span: Span, measured: dict[str, AttributeValue], error: BaseException | None) -> None:
    """Put on a span what a measurement says, and its status: an error where that has the type of one."""
    if span.is_recording():
        span.set_attributes(measured)
        if "error.type" in measured:
            span.set_status(Status(StatusCode.ERROR, described(error)))


def address_of(peer: Any) -> dict[str, AttributeValue]:
    """Give the address of a server that this bus has dialled; nothing of who has dialled in, whose ports are without number."""
    if peer is None or not peer.link.upstream:
        return {}
    host, colon, port = peer.address.rpartition(":")
    if not colon or not port.isdecimal():
        return {"server.address": peer.address} if peer.address else {}
    return {"server.address": host.strip("[]"), "server.port": int(port)}
