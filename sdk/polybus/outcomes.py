"""Ends of calls: their kinds and codes, the same for all who look: logs, metrics, traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import anyio
from attrs import frozen

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
    """Name the kind of a call: request, notify, publish, stream or channel."""
    return str(message.attributes.get("mode", "stream")) if message.kind is Kind.OPEN else message.kind.value


class Denied(Forbidden):
    """A refusal of `authorize`, told apart from a `Forbidden` that a handler raises."""


class Misfit(BadRequest):
    """An argument that does not fit: told apart from a `BadRequest` that the function raises."""

    @classmethod
    def of(cls, error: BadRequest) -> Misfit:
        """The same error, as one of an argument."""
        return cls(error.text, reason=error.reason, detail=error.detail)


def answer_of(error: BaseException, kind: Kind) -> RequestError | None:
    """Find the error that a handler means as its answer: also one that is alone in the group of a task group, but none that a
    peer has sent, and none where nobody waits for an answer."""
    error = only_of(error)
    return error if isinstance(error, RequestError) and not error.received and kind is not Kind.NOTIFY else None


def told_code(error: BaseException, kind: Kind) -> Code:
    """Find the code that the asker is told where a handler has raised; CANCELLED where it was stopped, whatever the reason."""
    if (answer := answer_of(error, kind)) is not None:
        return answer.code
    error = only_of(error)
    if kind is Kind.OPEN and isinstance(error, RequestError) and error.code is Code.CANCELLED:  # the asker has left the channel
        return Code.CANCELLED
    stopped = isinstance(error, (anyio.get_cancelled_exc_class(), BaseExceptionGroup, GeneratorExit))
    return Code.CANCELLED if stopped and not isinstance(error, Exception) else Code.INTERNAL


def code_of(error: BaseException) -> Code:
    """Find the code that stands for the failure of what was asked, also where no answer has come."""
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
    """Find the exception that a group holds, where it holds one alone."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def described(error: BaseException | None) -> str:
    """Type and text of an exception, even of one whose text cannot be had."""
    try:
        text = str(error)
    except Exception as another:
        text = f"(its text raises {type(another).__name__})"
    return f"{type(error).__name__}: {text}"


@frozen
class Outcome:
    """The end of what has left a bus, as an `OutgoingHook` is told it.

    Attributes:
        error: The reason why it failed; None where it did not.
        sent: Items that were sent on a channel.
        received: Items that came on a stream or channel; 1 for a request that was answered.
    """

    error: BaseException | None = None
    sent: int = 0
    received: int = 0


OutgoingHook: TypeAlias = Callable[[Message], Callable[[Outcome], object] | None]
"""``hook(message)`` is called with what is about to leave, before it does: ``message.headers``, then always a dict, takes
further headers; ``message.peer`` is whom it goes to, None for a publication and for the bus's own handlers. What it returns is
called with the `Outcome`."""
