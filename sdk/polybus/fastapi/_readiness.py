"""The endpoint of ``/readyz`` in an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import PlainTextResponse, Response

from .._core.bus.bus import Bus
from .._validation import check_given

# FastAPI looks at the annotations of an endpoint at run time.
from starlette.requests import Request  # isort: skip


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
