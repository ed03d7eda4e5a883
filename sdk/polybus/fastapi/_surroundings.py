"""Surroundings of an attached bus: whether anything around it may wait for the end of a connection."""

from __future__ import annotations

import inspect
from typing import Any, Final

from ..transports._ws.asgi import Receive, Scope
from ._attachment import AttachedRoute

_PLAIN: Final = ("starlette.", "fastapi.", "uvicorn.")
"""Packages whose middleware does nothing when the call of a WebSocket returns; FastAPI's telemetry is seen in the scope."""
_MOST: Final = 100
"""Middlewares of one application: beyond that something is wrong, and it is watched."""


def is_watched(scope: Scope, receive: Receive) -> bool:
    """True unless everything from the server's call down to the route is known to be of no consequence at its end.

    That is uvicorn's and Starlette's own middleware. FastAPI's telemetry, and whatever else an application has, may count or
    trace connections.
    """
    application = scope.get("app")
    outermost = _within(getattr(getattr(receive, "__self__", None), "app", None), application)
    router = getattr(application, "router", None)
    if outermost is None or router is None or "fastapi.telemetry" in scope:
        return True
    if _within(getattr(application, "middleware_stack", None), router) is None:
        return True
    if _within(getattr(router, "middleware_stack", None), getattr(router, "app", None)) is None:
        return True
    endpoint = scope.get("endpoint")
    # A route of a mounted or included router has others around it.
    return not any(getattr(route, "app", None) is endpoint for route in router.routes if isinstance(endpoint, AttachedRoute))


def _within(outer: Any, inner: Any) -> Any:
    """`inner`, if there are only plain middlewares around it, or None."""
    for _ in range(_MOST):
        if outer == inner:
            return inner
        called = inspect.getattr_static(type(outer), "__call__", None)
        if not str(getattr(called, "__module__", "")).startswith(_PLAIN):
            return None
        outer = getattr(outer, "app", None)
    return None
