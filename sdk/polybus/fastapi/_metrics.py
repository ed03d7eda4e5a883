"""The endpoint of ``/metrics`` in an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from .._core.bus.bus import Bus
from .._validation import check_given
from ..plugins.registry import metrics_maker

# FastAPI looks at the annotations of an endpoint at run time.
from starlette.requests import Request  # isort: skip

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_endpoint(bus: Bus) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint of a page for Prometheus: ``app.add_route("/metrics", metrics_endpoint(bus))``.

    It answers what `polybus.prometheus.scrape` gives: of an application that several workers serve that is all of them,
    whichever is asked. Who may ask is the application's matter.

    Raises:
        ImportError: prometheus-client is not installed.
        TypeError: `bus` is no bus.
    """
    check_given(bus, Bus, "bus", "metrics_endpoint(bus)")
    scrape = metrics_maker("scrape", "metrics_endpoint()")

    async def metrics(request: Request) -> Response:
        return Response(await scrape(bus), media_type=_TYPE)

    return metrics
