"""Instrumentation of one bus: a middleware for what comes, and a hook for what leaves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .._core.bus.bus import Bus, parts_of
from .._validation import check_given, shown
from ..errors import LocalProtocolError

try:
    from .instruments import Telemetry
except ImportError:
    raise ImportError("polybus.opentelemetry needs opentelemetry-api: pip install 'polybus[opentelemetry]'") from None

from .incoming import IncomingSpans
from .outgoing import OutgoingSpans

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

logger: logging.Logger = logging.getLogger("polybus")


def instrument(bus: Bus, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Make spans and metrics of all that a bus asks, publishes and handles, and carry the context along.

    Requests, notifications, streams and channels are CLIENT and SERVER spans (``rpc.*``), publications PRODUCER and CONSUMER
    spans (``messaging.*``); the metrics are ``rpc.client.call.duration``, ``rpc.server.call.duration`` and
    ``messaging.process.duration``, in seconds. Of durable handlers there are ``polybus.store.pending``, ``.given`` and
    ``.redelivered``, and ``polybus.dead_letters``: `Stats.durables`.

    The context goes in the headers ``traceparent`` and ``tracestate`` to peers that read them: polybus peers, and any peer over
    uProtocol and NATS.

    Call it before `Bus.use` of other middleware, which then runs within the span.

    Args:
        bus: The bus, before it is entered: a link asks its peer then whether it reads headers.
        tracer_provider: The source of the tracer; the global one by default.
        meter_provider: The source of the meter; the global one by default.

    Raises:
        ImportError: (on import) ``opentelemetry-api`` is not installed.
        TypeError: `bus` is no bus, or a provider none.
        LocalProtocolError: It is instrumented already.
    """
    check_given(bus, Bus, "bus", "instrument(bus)")
    for name, provider, makes in (
        ("tracer_provider", tracer_provider, "get_tracer"),
        ("meter_provider", meter_provider, "get_meter"),
    ):
        if provider is not None and (isinstance(provider, type) or not hasattr(provider, makes)):
            kind = name.title().replace("_", "")
            raise TypeError(f"{name}={shown(provider)}: a {kind} of OpenTelemetry, as in instrument(bus, {name}={kind}())")
    services = parts_of(bus).services
    if any(isinstance(one, IncomingSpans) for one in services.executor.middleware):
        raise LocalProtocolError("this bus is instrumented already: call instrument(bus) once")
    if bus.peers:
        logger.warning("instrument() came after links of its bus, which carry no context: call it before the bus is entered")
    telemetry = Telemetry(tracer_provider, meter_provider, services.limits.headers)
    links = parts_of(bus).links
    telemetry.observe(lambda: links.progress)
    bus.use(IncomingSpans(telemetry))
    bus.use(OutgoingSpans(telemetry), outgoing=True)
