"""Outcomes of calls: kinds and codes, shared by logs, metrics and traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

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
    """Kind of a call: request, notify, publish, stream or channel."""
    return str(message.attributes.get("mode", "stream")) if message.kind is Kind.OPEN else message.kind.value


class Denied(Forbidden):
    """A refusal by `authorize`, as opposed to a `Forbidden` of a handler."""


class Misfit(BadRequest):
    """An argument that does not fit, as opposed to a `BadRequest` of the function."""

    @classmethod
    def of(cls, error: BadRequest) -> Misfit:
        """Convert an error about an argument."""
        return cls(error.text, reason=error.reason, detail=error.detail)


def answer_of(error: BaseException, kind: Kind) -> RequestError | None:
    """Error that a handler means as its answer, also if it is the only one in the exception group of a task group. None for
    an error from a peer, and if no answer is expected."""
    error = only_of(error)
    return error if isinstance(error, RequestError) and not error.received and kind is not Kind.NOTIFY else None


def told_code(error: BaseException, kind: Kind) -> Code:
    """Code that the caller gets when a handler raised; CANCELLED if the handler was stopped for any reason."""
    if (answer := answer_of(error, kind)) is not None:
        return answer.code
    error = only_of(error)
    # The caller has left the channel.
    if kind is Kind.OPEN and isinstance(error, RequestError) and error.code is Code.CANCELLED:
        return Code.CANCELLED
    stopped = isinstance(error, (anyio.get_cancelled_exc_class(), BaseExceptionGroup, GeneratorExit))
    return Code.CANCELLED if stopped and not isinstance(error, Exception) else Code.INTERNAL


def code_of(error: BaseException) -> Code:
    """Code for the failure of a call, including failures without an answer."""
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
    """The only exception in a group, or the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def described(error: BaseException | None) -> str:
    """Type and text of an exception, even if its ``__str__`` raises."""
    try:
        text = str(error)
    except Exception as another:
        text = f"(its text raises {type(another).__name__})"
    return f"{type(error).__name__}: {text}"


class Outcome(Struct, frozen=True):
    """Outcome of an outgoing message, the argument of an `OutgoingHook`'s callback.

    Attributes:
        error: The failure; None on success.
        sent: Items sent on a channel.
        received: Items received on a stream or channel; 1 for an answered request.
    """

    error: BaseException | None = None
    sent: int = 0
    received: int = 0


OutgoingHook: TypeAlias = Callable[[Message], Callable[[Outcome], object] | None]
"""``hook(message)`` runs before a message is sent and may add to ``message.headers``, always a dict here. ``message.peer`` is
the receiver, None for a publication and for the bus's own handlers. The returned function is called with the `Outcome`."""
