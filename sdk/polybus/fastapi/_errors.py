"""Errors of the bus as answers of HTTP: what an endpoint does not catch."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from .._core.outcomes import code_of
from ..errors import BusError, Code, DeadlineExceeded, Disconnected, QueueFull, RequestError

_STATUS: Final = {
    Code.INVALID_ARGUMENT: 422,
    Code.FAILED_PRECONDITION: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ABORTED: 409,
    Code.ALREADY_EXISTS: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
"""By the code of a `RequestError`, as google.rpc.Code has it, but for INVALID_ARGUMENT: 422, as in FastAPI. Others are 500."""


def bus_error_response(connection: HTTPConnection, error: Exception) -> JSONResponse:
    """Answer an HTTP request whose endpoint raised an error of the bus: `attach` registers it with the application.

    The body is ``{"detail": text, "code": "NOT_FOUND", "reason": ..., "faults": ...}``; the last two where the error has them.

    Raises:
        Exception: The error itself, where it is no answer to a request: a mistake in the program stays one, and so does that
            of a WebSocket.
    """
    status = status_of(error)
    if status is None or not isinstance(connection, Request):
        raise error
    said: dict[str, Any] = {"detail": getattr(error, "text", "") or str(error), "code": code_of(error).name}
    if isinstance(error, RequestError):
        said |= {name: value for name, value in (("reason", error.reason), ("faults", error.detail)) if value is not None}
    return JSONResponse(said, status_code=status)


def status_of(error: Exception) -> int | None:
    """Find the status of HTTP for an error; None for one that is no answer to a request."""
    answer = isinstance(error, (RequestError, DeadlineExceeded, Disconnected, QueueFull))
    return _STATUS.get(code_of(error), 500) if answer else None


def answer_errors(app: Any) -> None:
    """Register `bus_error_response` with an application, unless it has an answer of its own."""
    handlers = getattr(app, "exception_handlers", None)
    if isinstance(handlers, dict) and BusError not in handlers:
        app.add_exception_handler(BusError, bus_error_response)
