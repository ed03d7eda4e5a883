"""`BusDep` and `BlockingBusDep`, and the dependencies behind them. Imported if FastAPI is installed.

Both depend on `bus_of`, so a test that overrides it replaces the bus at every endpoint.
"""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any, TypeAlias

from fastapi import Depends

from .. import Bus
from ..sync.event_loop_thread import HandlerLoop
from ..sync.verbs import BlockingBus
from ._attachment import bus_of

# FastAPI reads the annotations of dependencies at run time.
from starlette.requests import HTTPConnection  # isort: skip


async def blocking_bus_of(bus: Annotated[Any, Depends(bus_of)]) -> Any:
    """Return the blocking twin for code in a thread. If a test has replaced the bus, return the replacement unchanged."""
    return BlockingBus(bus, HandlerLoop()) if isinstance(bus, Bus) else bus


async def bus_or_twin_of(connection: HTTPConnection, bus: Annotated[Any, Depends(bus_of)]) -> Any:
    return await blocking_bus_of(bus) if _runs_in_a_thread(connection.scope.get("endpoint")) else bus


def _runs_in_a_thread(endpoint: Any) -> bool:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    if endpoint is None:
        return False
    call = inspect.unwrap(endpoint if inspect.isroutine(endpoint) else type(endpoint).__call__)
    return not (inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call))


BusDep: TypeAlias = Annotated[Bus, Depends(bus_or_twin_of)]
"""The bus attached to the application of the request, or its blocking twin in a `def` endpoint."""
BlockingBusDep: TypeAlias = Annotated[BlockingBus, Depends(blocking_bus_of)]
"""The blocking twin of the bus, for `def` endpoints and `def` dependencies. Unlike `BusDep`, it is also typed as the twin."""
