"""A bus in a FastAPI or Starlette application.

`attach` serves a bus and runs it with the application. `BusDep` injects the bus into endpoints. `run` serves the application so
that a SIGTERM does not lose any answers. `metrics_endpoint` is for Prometheus, `readiness_endpoint` for load balancers.
`BusDep` requires FastAPI. Everything else also works with plain Starlette.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

if find_spec("starlette") is None:
    raise ImportError("polybus.fastapi needs FastAPI or Starlette: pip install 'polybus[fastapi]'")

from ._attach import attach, bus_error_response, metrics_endpoint, readiness_endpoint
from ._attachment import bus_of
from ._run import run

if TYPE_CHECKING:
    from fastapi import Depends

    from .. import Bus
    from ..sync import BlockingBus
    from ._bus_dep import blocking_bus_of, bus_or_twin_of

    BusDep: TypeAlias = Annotated[Bus, Depends(bus_or_twin_of)]
    """The bus attached to the application of the request, or its blocking twin in a `def` endpoint."""
    BlockingBusDep: TypeAlias = Annotated[BlockingBus, Depends(blocking_bus_of)]
    """The blocking twin of the bus, for `def` endpoints and `def` dependencies. Unlike `BusDep`, it is also typed as the
    twin."""

__all__ = [
    "BlockingBusDep",
    "BusDep",
    "attach",
    "bus_error_response",
    "bus_of",
    "metrics_endpoint",
    "readiness_endpoint",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in ("BusDep", "BlockingBusDep"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fastapi import Depends

    from .. import Bus
    from ..sync import BlockingBus
    from ._bus_dep import blocking_bus_of, bus_or_twin_of

    return Annotated[Bus, Depends(bus_or_twin_of)] if name == "BusDep" else Annotated[BlockingBus, Depends(blocking_bus_of)]
