"""Maps errors of answers, and errors with which a server ends a connection, to polybus errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from ...body import JSON, OCTETS
from ...errors import BusError, Code, Forbidden, Unauthorized
from ...message import Kind, Message
from .headers import HeaderBlock

NO_RESPONDERS: Final = 503  # Status of an empty message from the server: the request's subject has no subscriber

_STATUSES: Final[Mapping[int, tuple[Code, str | None]]] = {
    400: (Code.INVALID_ARGUMENT, None),
    401: (Code.UNAUTHENTICATED, None),
    403: (Code.PERMISSION_DENIED, None),
    404: (Code.NOT_FOUND, None),
    405: (Code.UNIMPLEMENTED, "not_implemented"),
    408: (Code.DEADLINE_EXCEEDED, None),
    409: (Code.ABORTED, None),
    410: (Code.NOT_FOUND, None),
    412: (Code.FAILED_PRECONDITION, None),
    413: (Code.RESOURCE_EXHAUSTED, "too_large"),
    415: (Code.INVALID_ARGUMENT, None),
    422: (Code.INVALID_ARGUMENT, None),
    429: (Code.RESOURCE_EXHAUSTED, None),
    499: (Code.CANCELLED, None),
    500: (Code.INTERNAL, None),
    501: (Code.UNIMPLEMENTED, "not_implemented"),
    503: (Code.UNAVAILABLE, None),
    504: (Code.DEADLINE_EXCEEDED, None),
}
"""Numbers of foreign services, by custom HTTP status codes. Numbers 1 to 16 are polybus codes."""


def code_of_status(number: Any) -> Code:
    return _STATUSES.get(number, (Code.UNKNOWN, None))[0] if type(number) is int else Code.UNKNOWN


def is_failure(headers: HeaderBlock | None) -> bool:
    return headers is not None and (headers.error is not None or headers.status is not None)


def error_message(id: Any, headers: HeaderBlock, payload: bytes) -> Message:
    """Convert an error answer of a service (ADR-32) or of the server."""
    if headers.error is None and headers.status == NO_RESPONDERS and not payload:
        text = headers.text or "no subscriber for this subject (503 of the NATS server)"
        facts: dict[str, Any] = {"text": text, "reason": None, "detail": None}
        return Message(Kind.ERROR, "", id, code=Code.UNIMPLEMENTED, attributes=facts)
    given = headers.error if headers.error is not None else str(headers.status)
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0
    detail = _detail(payload)
    if 1 <= number <= 16:
        code, reason = Code(number), headers.reason
    else:
        code, reason = _STATUSES.get(number, (Code.UNKNOWN, None))
        reason = headers.reason or reason
        detail = {"status": number or given, **({} if detail is None else {"body": detail})}
    return Message(Kind.ERROR, "", id, code=code, attributes={"text": headers.text, "reason": reason, "detail": detail})


def _detail(payload: bytes) -> Any:
    if not payload:
        return None
    try:
        return JSON.decode(payload)
    except BusError:
        return OCTETS.decode(payload)


@frozen
class ServerError:
    """Meaning of an -ERR.

    Attributes:
        ends: The connection ends or is unusable.
        error: Error for callers if reconnecting is useless.
        refused: The subject without permission.
        subscribing: The refused operation was a subscription, not a publication.
        queue: Queue group of that subscription.
    """

    text: str
    ends: bool = False
    error: BusError | None = None
    refused: str | None = None
    subscribing: bool = False
    queue: str | None = None

    @property
    def expired(self) -> bool:
        return self.text.lower().endswith("expired")


_VIOLATION: Final = re.compile(
    r'permissions violation for (publish|subscription)[^"]*"([^"]*)"(?: using queue "([^"]*)")?', re.I
)
_CREDENTIALS: Final = ("authorization violation", "authentication timeout", "authentication expired", "authentication revoked")
_GOES_ON: Final = ("invalid subject", "invalid publish subject", "maximum subscriptions exceeded", "permissions violation")
"""Prefixes of errors after which the server goes on. It ends the connection after any other."""


def read_error(text: str) -> ServerError:
    lower = text.lower()
    violation = _VIOLATION.match(text)
    if violation is not None:
        verb, subject, queue = violation.groups()
        return ServerError(text, refused=subject, subscribing=verb.lower() == "subscription", queue=queue)
    if any(one in lower for one in _CREDENTIALS):
        hint = "" if lower.endswith("expired") else ": check user and password, token, or credentials"
        return ServerError(text, ends=True, error=Unauthorized(f"the NATS server says: {text}{hint}"))
    if lower.startswith(("permissions violation for account", "account authorization", "no matching origin")):
        return ServerError(text, ends=True, error=Forbidden(f"the NATS server says: {text}"))
    return ServerError(text, ends=not lower.startswith(_GOES_ON))
