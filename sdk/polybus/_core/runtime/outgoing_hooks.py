"""Calls outgoing hooks, which see messages before they are sent, can add headers, and can learn the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ...headers import check_headers
from ...message import Message
from ...outcomes import Outcome, OutgoingHook

logger: logging.Logger = logging.getLogger("polybus")


class Departure:
    __slots__ = ("_tell",)

    def __init__(self, tell: list[Callable[[Outcome], object]]) -> None:
        self._tell = tell

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None, *, sent: int = 0, received: int = 0) -> None:
        tell, self._tell = self._tell, []
        outcome = Outcome(error, sent, received)
        for hook in tell:
            try:
                hook(outcome)
            except KeyboardInterrupt:
                raise
            except BaseException:  # the caller already has its answer
                logger.exception("an outgoing hook failed when it was called with the outcome")


def depart(hooks: Sequence[OutgoingHook], message: Message, peer: Any, limit: int) -> Departure:
    """Call the hooks for a message. If the peer cannot read headers, drop headers from hooks.

    If there are several peers, `peer` is None. `limit` is the maximum size of all headers, in bytes.
    """
    given = message.headers
    headers = message.headers = {} if given is None else dict(given)
    tell: list[Callable[[Outcome], object]] = []
    message.peer = None if peer is None else peer.public
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
        message.headers = read_alone(message.headers, given, peer.link.own_headers)
    else:
        message.headers = message.headers or None
    return departure


def read_alone(
    headers: Mapping[str, str] | None, given: Mapping[str, str] | None, own: frozenset[str]
) -> dict[str, str] | None:
    """Return the headers for a peer that reads only some: the caller's, and members of `headers` with names in `own`."""
    kept = dict(given or ())
    if own and headers:
        kept |= {name: value for name, value in headers.items() if name.lower() in own}
    return kept or None
