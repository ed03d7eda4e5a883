"""A bus in a FastAPI or Starlette application.

`attach` serves a bus and runs it with the application. `BusDep` injects the bus into endpoints. `run` serves the application so
that a SIGTERM does not lose any answers. `metrics_endpoint` is for Prometheus, `readiness_endpoint` for load balancers.
`BusDep` requires FastAPI. Everything else also works with plain Starlette.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("starlette") is None:
    raise ImportError("polybus.fastapi needs FastAPI or Starlette: pip install 'polybus[fastapi]'")

from ..plugins.tools import lazy_names
from ._attach import attach, bus_error_response, metrics_endpoint, readiness_endpoint
from ._attachment import bus_of
from ._run import run

if TYPE_CHECKING:
    from ._bus_dep import BlockingBusDep as BlockingBusDep
    from ._bus_dep import BusDep as BusDep

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

# Loaded on demand: they need FastAPI.
__getattr__: Callable[[str], Any] = lazy_names(__name__, {"._bus_dep": ["BlockingBusDep", "BusDep"]})
