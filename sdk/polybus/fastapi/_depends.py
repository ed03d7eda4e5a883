"""The bus that belongs to a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._core.bus.bus import parts_of
from ..errors import Unavailable
from ._attachment import AttachedRoute, Attachment

# FastAPI looks at the annotations of dependencies at run time.
from starlette.requests import HTTPConnection  # isort: skip

if TYPE_CHECKING:
    from .._core.bus.bus import Bus


async def bus_of(connection: HTTPConnection) -> Bus:
    """The bus attached to the application that serves a request or WebSocket; it is started where that has not happened.

    Raises:
        RuntimeError: None is attached there, or several are.
        Unavailable: It has failed, and its application still runs.
    """
    attachment = _attachment(connection)
    await attachment.start(connection.scope.get("app"))
    if why := parts_of(attachment.bus).services.failed:
        raise Unavailable(f"the bus of this application has ended: {why}")
    return attachment.bus


def _attachment(connection: HTTPConnection) -> Attachment:
    """The one bus of the application; RuntimeError where there are none, or several."""
    app = connection.scope.get("app")
    found = {attachment.bus: attachment for attachment in _attachments(getattr(app, "routes", ()))}
    if not found:
        raise RuntimeError(
            "no bus is attached to the application that serves this request: attach(app, bus); "
            "a mounted application needs its own"
        )
    if len(found) > 1:
        raise RuntimeError(
            f"{len(found)} buses are attached to the application that serves this request, so BusDep cannot choose: "
            "import the one you mean"
        )
    return next(iter(found.values()))


def _attachments(routes: Iterable[Any]) -> Iterator[Attachment]:
    for route in routes:
        endpoint = getattr(route, "endpoint", None)
        if isinstance(endpoint, AttachedRoute):
            yield endpoint.attachment
        elif (included := getattr(route, "original_router", None)) is not None:  # FastAPI keeps routers that are included
            yield from _attachments(included.routes)
        elif (mounted := getattr(route, "app", None)) is not None and hasattr(mounted, "routes"):
            if not hasattr(mounted, "state"):  # a router; an application serves its requests itself
                yield from _attachments(mounted.routes)
