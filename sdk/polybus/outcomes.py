"""Kinds and outcomes of calls, shared by logs, metrics and traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import anyio
from msgspec import Struct

from .errors import (
    BadRequest,
    Code,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    QueueFull,
    RequestCancelled,
    RequestError,
)
from .message import Kind, Message


def kind_of(message: Message) -> str:
    """Return the kind of a call: request, notify, publish, stream or channel."""
    return str(message.attributes.get("mode", "stream")) if message.kind is Kind.OPEN else message.kind.value


class Denied(Forbidden):
    """Raised if `authorize` rejects a message. A handler raises a plain `Forbidden` instead."""


class Misfit(BadRequest):
    """Raised if an argument does not match its type. A handler raises a plain `BadRequest` instead."""

    @classmethod
    def of(cls, error: BadRequest) -> Misfit:
        return cls(error.text, reason=error.reason, detail=error.detail)


def answer_of(error: BaseException, kind: Kind) -> RequestError | None:
    """Return the error response that a handler raised, perhaps in a group, or None if it is a peer's or none is expected."""
    error = only_of(error)
    return error if isinstance(error, RequestError) and not error.received and kind is not Kind.NOTIFY else None


def facts_of(text: str, reason: str | None, detail: Any) -> Iterator[dict[str, Any]]:
    """Yield ever smaller versions of an error response: complete, without the detail, with less text, and almost empty.

    If the protocol cannot carry a larger version, the caller still gets a response.
    """
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded
    if isinstance(reason, str):
        reason = reason.encode("utf-8", "replace").decode()
    yield {"text": text, "reason": reason, "detail": detail}
    yield {"text": text, "reason": reason, "detail": None}
    yield {"text": text[:200], "reason": None, "detail": None}
    yield {"text": "", "reason": None, "detail": None}


def told_code(error: BaseException, kind: Kind) -> Code:
    """Return the code that the caller receives if a handler raises: CANCELLED if the handler was cancelled for any reason."""
    if (answer := answer_of(error, kind)) is not None:
        return answer.code
    error = only_of(error)
    # The caller has left the channel.
    if kind is Kind.OPEN and isinstance(error, RequestError) and error.code is Code.CANCELLED:
        return Code.CANCELLED
    stopped = isinstance(error, (anyio.get_cancelled_exc_class(), BaseExceptionGroup, GeneratorExit))
    return Code.CANCELLED if stopped and not isinstance(error, Exception) else Code.INTERNAL


def code_of(error: BaseException) -> Code:
    """Return the code for a failed call, including failures without a response."""
    if isinstance(error, RequestError):
        return error.code
    if isinstance(error, DeadlineExceeded):
        return Code.DEADLINE_EXCEEDED
    if isinstance(error, (ConnectFailed, Disconnected, QueueFull)):
        return Code.UNAVAILABLE
    if isinstance(error, RequestCancelled) or not isinstance(error, Exception):
        return Code.CANCELLED
    return Code.INTERNAL


def only_of(error: BaseException) -> BaseException:
    """Return the only exception in a group, or the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def first_of(error: BaseException) -> BaseException:
    """Return the first exception in a group, also in nested ones, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def described(error: BaseException | None) -> str:
    """Return the type and the text of an exception, even if its ``__str__`` raises."""
    try:
        text = str(error)
    except Exception as another:
        text = f"(its text raises {type(another).__name__})"
    return f"{type(error).__name__}: {text}"


class Outcome(Struct, frozen=True, weakref=True):
    """Outcome of an outgoing message, passed to the callback that an `OutgoingHook` returned.

    Attributes:
        error: The error, or None on success.
        sent: Number of items sent on a channel.
        received: Number of items received on a stream or channel. 1 for a successful request.
    """

    error: BaseException | None = None
    sent: int = 0
    received: int = 0


OutgoingHook: TypeAlias = Callable[[Message], Callable[[Outcome], object] | None]
"""``hook(message)`` is called before a message is sent. It can add to ``message.headers``, which is always a dict here.
``message.peer`` is the receiver, or None for publications and for local handlers. The hook can return a callback that receives
the `Outcome`."""
