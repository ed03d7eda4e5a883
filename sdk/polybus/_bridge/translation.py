"""Translation of bodies and errors between the two sides of a bridge."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from ..errors import (
    BadReply,
    BusError,
    Code,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    EncodeError,
    LocalProtocolError,
    QueueFull,
    RequestError,
    ReservedSubject,
    Unavailable,
    Unsupported,
)
from ..message import RELAYED, Kind, Message

LEAVING: Final = "the bridge is leaving: try again later"
TRACE: Final = "traceparent"
USUAL: Final = 30.0
"""Seconds for messages without a deadline."""
_SET_OUT: Final = (Kind.REQUEST, Kind.NOTIFY, Kind.PUBLISH)
_CARRIED: Final = ("id", "priority")
_MISUSE: Final = (EncodeError, LocalProtocolError, ReservedSubject, Unsupported)


def carried(kind: Kind, message: Message) -> dict[str, Any] | None:
    """Choose the attributes that cross: what sets out here and has an id or a priority keeps them, for wires that know them."""
    if kind not in _SET_OUT:
        return None
    known = message.attributes
    facts = known.get(RELAYED)  # over the bridge before this one
    if not isinstance(facts, dict):
        facts = {name: value for name in _CARRIED if isinstance(value := known.get(name), str)}
    return {RELAYED: facts} if facts else None


async def applied(convert: Callable[..., Any] | None, body: Any, message: Message) -> Any:
    """Convert a body, where the route says how."""
    if convert is None:
        return body
    found = convert(body, message)
    return await found if inspect.isawaitable(found) else found


def translated(error: BaseException) -> RequestError:
    """Make the error that the client is told of a failure on the other side of the bridge."""
    if isinstance(error, RequestError):
        return error.relay() if error.received else error
    if isinstance(error, DeadlineExceeded) and error.text:
        return RequestError(Code.DEADLINE_EXCEEDED, error.text, reason=error.reason, detail=error.detail)
    if isinstance(error, TimeoutError):
        return RequestError(Code.DEADLINE_EXCEEDED, "no answer from the other side of the bridge in time")
    if isinstance(error, QueueFull):
        return RequestError(Code.RESOURCE_EXHAUSTED, f"the other side of the bridge is slow: {error}")
    if isinstance(error, (Disconnected, ConnectFailed)):
        return Unavailable("the other side of the bridge is not there now: try again later")
    if isinstance(error, _MISUSE):
        return RequestError(Code.INVALID_ARGUMENT, f"the other side of the bridge cannot carry this: {error}")
    if isinstance(error, BadReply):
        return RequestError(Code.INTERNAL, "the answer from the other side of the bridge is malformed")
    return RequestError(Code.UNAVAILABLE, "the other side of the bridge cannot be asked now")


def first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Choose the error that is told of a channel that failed."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return translated(error) if isinstance(error, BusError) else error
