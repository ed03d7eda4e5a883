"""Ends of calls: their kinds and codes, the same for all who look, and the hooks that hear of what leaves and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import anyio
from attrs import frozen

from ...errors import (
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
from ...headers import check_headers
from ...message import Kind, Message


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


logger: logging.Logger = logging.getLogger("polybus")


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


_HANDED_OVER = Outcome()
_ANSWERED = Outcome(received=1)


OutgoingHook: TypeAlias = Callable[[Message], Callable[[Outcome], object] | None]
"""``hook(message)`` is called with what is about to leave, before it does: ``message.headers``, then always a dict, takes
further headers; ``message.peer`` is whom it goes to, None for a publication and for the bus's own handlers. What it returns is
called with the `Outcome`."""


class Departure:
    """A message on its way, and the hooks that want to know how it ends."""

    __slots__ = ("_tell",)

    def __init__(self, tell: list[Callable[[Outcome], object]]) -> None:
        self._tell = tell

    def end(self, error: BaseException | None = None, *, sent: int = 0, received: int = 0) -> None:
        """Tell the hooks, once."""
        tell, self._tell = self._tell, []
        if tell:
            if error is None and not sent and received <= 1:
                outcome = _ANSWERED if received else _HANDED_OVER
            else:
                outcome = Outcome(error, sent, received)
            for hook in tell:
                try:
                    hook(outcome)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # nobody waits for it: the caller has its answer
                    logger.exception("an outgoing hook failed when it was told the outcome")


def depart(hooks: Sequence[OutgoingHook], message: Message, peer: Any, limit: int) -> Departure:
    """Call the hooks for a message. What they add is left out where nobody would read it.

    Args:
        hooks: The hooks of the bus, in the order of `Bus.use`.
        message: What leaves; its headers are those of the caller.
        peer: Whom it goes to; None for several.
        limit: Bytes of all headers (`Limits.headers`).

    Raises:
        ReservedSubject, LocalProtocolError: What a hook has added is no header.
    """
    given = message.headers
    headers = message.headers = {} if given is None else dict(given)
    tell: list[Callable[[Outcome], object]] = []
    message.peer = peer
    departure = Departure(tell)
    try:
        for hook in hooks:
            told = hook(message)
            if told is not None:
                tell.append(told)
        added = message.headers
        if added is not headers or (added and added != given):
            check_headers(added or {}, limit)
    except BaseException as error:
        departure.end(error)
        raise
    finally:
        message.peer = None
    if peer is not None and message.headers != (given or {}) and not peer.reads_headers:
        message.headers = read_alone(message.headers, given, peer.own_headers)
    else:
        message.headers = message.headers or None
    return departure


def read_alone(
    headers: Mapping[str, str] | None, given: Mapping[str, str] | None, own: frozenset[str]
) -> dict[str, str] | None:
    """The headers for a peer that reads none but some of its own: those of the caller, and of what was added these."""
    kept = dict(given or ())
    if own and headers:
        kept |= {name: value for name, value in headers.items() if name.lower() in own}
    return kept or None
