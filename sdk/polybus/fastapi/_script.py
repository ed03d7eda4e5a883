"""The JavaScript module for pages and frames, as a route."""

from __future__ import annotations

from typing import Any

from .._validation import shown
from ..transports.postmessage import script

_NAME = "polybus-script"


def check_script(path: Any) -> None:
    """
    Raises:
        TypeError: No text.
        ValueError: Not a path.
    """
    if not isinstance(path, str):
        raise TypeError(f"script={shown(path)}: a path such as '/polybus.js', not {type(path).__name__}")
    if not path.startswith("/"):
        raise ValueError(f"script={path!r}: a path that begins with a slash, as '/polybus.js' does")


def add_script(router: Any, path: str) -> None:
    """Serve it to everybody: it holds no secret, and a sandboxed frame, whose origin is opaque, has to be able to import it."""
    if any(getattr(route, "name", None) == _NAME and route.path == path for route in router.routes):
        return  # several buses of one application
    from starlette.responses import Response

    content = script()
    headers = {"access-control-allow-origin": "*", "cache-control": "no-cache", "x-content-type-options": "nosniff"}

    async def javascript(request: Any) -> Response:
        return Response(content, media_type="text/javascript", headers=headers)

    router.add_route(path, javascript, methods=["GET"], name=_NAME, include_in_schema=False)
