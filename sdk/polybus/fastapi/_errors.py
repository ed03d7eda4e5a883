"""Errors of the bus as answers of HTTP: what an endpoint does not catch."""

from __future__ import annotations

import logging
from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from .._core.runtime.outcomes import code_of
from .._util.log_fields import log_fields
from .._util.sources import sources
from ..errors import BusError, Code, ConnectFailed, DeadlineExceeded, Disconnected, QueueFull, RequestError, TooLarge

logger: logging.Logger = logging.getLogger("polybus")

_STATUS: Final = {
    Code.INVALID_ARGUMENT: 422,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ABORTED: 409,
    Code.ALREADY_EXISTS: 409,
    Code.FAILED_PRECONDITION: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
"""By the code of a `RequestError`, as google.rpc.Code has it, but for INVALID_ARGUMENT, which is 422 as in FastAPI, and for
FAILED_PRECONDITION, which is 409 as each `Conflict` is. Others are 500."""

_TOO_LARGE: Final = 413

_OF_OTHERS: Final = {401: 502, 403: 502}
"""Statuses that mean the visitor, where another program has refused this one."""


def bus_error_response(connection: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer an HTTP request whose endpoint raised an error of the bus: `attach` registers it with the application.

    The body is ``{"detail": text, "code": "NOT_FOUND", "reason": ..., "faults": ...}``; the last two where the error has them.
    Of what another program said, or where it is, strangers learn an id, by which the log has the rest, and the status; that is
    502 in place of 401 and 403, for it was not the visitor who was refused. ``raise error.relay()`` passes it on knowingly.

    Raises:
        Exception: The error itself, where it is no answer to a request: a mistake in the program stays one, and so does that
            of a WebSocket.
    """
    status = status_of(error)
    if status is None or not isinstance(connection, Request):
        raise error
    if _is_of_others(error):
        error_id = sources.get().urandom(4).hex()
        text, fields = "%s %s failed [%s], as a service behind it did: %s", log_fields(error_id=error_id)
        logger.error(text, connection.method, connection.url.path[:200], error_id, error, extra=fields)
        detail = f"a service behind this one failed [{error_id}]"
        return JSONResponse({"detail": detail, "code": code_of(error).name}, status_code=_OF_OTHERS.get(status, status))
    said: dict[str, Any] = {"detail": getattr(error, "text", "") or str(error), "code": code_of(error).name}
    if isinstance(error, RequestError):
        said |= {name: value for name, value in (("reason", error.reason), ("faults", error.detail)) if value is not None}
    return JSONResponse(said, status_code=status)


def _is_of_others(error: Exception) -> bool:
    if isinstance(error, DeadlineExceeded):
        return error.where == "remote"
    return not isinstance(error, RequestError) or error.foreign


def status_of(error: Exception) -> int | None:
    """Find the status of HTTP for an error; None for one that is no answer to a request."""
    if isinstance(error, TooLarge):
        return _TOO_LARGE  # 429 would have it sent again
    answer = isinstance(error, (RequestError, DeadlineExceeded, ConnectFailed, Disconnected, QueueFull))
    return _STATUS.get(code_of(error), 500) if answer else None


def answer_errors(app: Any) -> None:
    """Register `bus_error_response` with an application, unless it has an answer of its own."""
    handlers = getattr(app, "exception_handlers", None)
    if isinstance(handlers, dict) and BusError not in handlers:
        app.add_exception_handler(BusError, bus_error_response)
