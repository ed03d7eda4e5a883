"""Endpoints of an application for those that watch it: ``/metrics`` and ``/readyz``."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .. import Bus
from ..plugins.registry import metrics_maker
from ..plugins.tools import check_given

# No annotations from the future: FastAPI looks at those of an endpoint at run time.
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


def readiness_endpoint(bus: Bus) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint that a load balancer asks: ``app.add_route("/readyz", readiness_endpoint(bus))``.

    It answers 200, or 503 with `Bus.why_not_ready`: of several workers of an application for the one that is asked.

    Raises:
        TypeError: `bus` is no bus.
    """
    check_given(bus, Bus, "bus", "readiness_endpoint(bus)")

    async def readiness(request: Request) -> Response:
        why = bus.why_not_ready
        return PlainTextResponse(f"{why}\n" if why else "OK\n", 503 if why else 200)

    return readiness
