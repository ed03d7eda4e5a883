"""The subscriptions of one connection: which there are, and which of several copies of a message counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import define, field

from ..._util.pattern_index import SubjectIndex

INBOX_SID: Final = "1"
"""The subscription to all answers; those of patterns and handlers have higher numbers."""

_LEAVING: Final = 4096
"""Subscriptions that are remembered after their end."""


@define(eq=False)
class NatsSubscription:
    """One subscription of this side.

    Attributes:
        number: Its sid; later ones are higher.
        queue: The queue group that it is in.
        tag: What it is for, to the dialect.
    """

    number: int
    pattern: str
    queue: str | None
    tag: Any = None
    name: Any = None
    """The pattern as the bus knows it."""


@define(eq=False)
class NatsSubscriptions:
    """The subscriptions of one connection, by sid.

    A server sends a connection one copy of a message for each of its subscriptions that match, in any order. The copy of the
    oldest counts; the others are left out. When the oldest is given up while a message is on its way, that message may come by
    the next one again: the wire has no sign by which the two copies could be told to be one. Groups have copies of their own.
    """

    by_sid: dict[str, NatsSubscription] = field(factory=dict)
    refused: dict[Any, None] = field(factory=dict)
    """Patterns that the server does not allow."""
    alone: SubjectIndex[int] = field(factory=lambda: SubjectIndex[int]())
    """The numbers of those that are in no group."""
    _sids: dict[tuple[str, str | None], str] = field(factory=dict)
    _last: int = int(INBOX_SID)
    _leaving: dict[str, None] = field(factory=dict)
    """Subscriptions in groups that were given up: what the server had chosen this side for before is still to be taken."""

    def add(self, pattern: str, queue: str | None = None, tag: Any = None, name: Any = None) -> str | None:
        """Add a subscription; its sid, or None where it is there already."""
        if (pattern, queue) in self._sids:
            return None
        self.refused.pop(pattern if name is None else name, None)
        self._last = number = self._last + 1
        sid = self._sids[pattern, queue] = str(number)
        self.by_sid[sid] = NatsSubscription(number, pattern, queue, tag, pattern if name is None else name)
        if queue is None:
            self.alone.add(pattern, number)
        return sid

    def remove(self, pattern: str, queue: str | None = None) -> str | None:
        """Remove a subscription; the sid that it had, or None where there is none."""
        if queue is None:
            self.refused.pop(pattern, None)
        sid = self._sids.pop((pattern, queue), None)
        if sid is not None:
            if queue is None:
                self.alone.remove(pattern, self.by_sid.pop(sid).number)
            else:
                self._leaving[sid] = None
                if len(self._leaving) > _LEAVING:
                    self.left((next(iter(self._leaving)),))
        return sid

    def groups(self) -> list[tuple[str, str]]:
        """Patterns and groups of the subscriptions that are in one."""
        return [(pattern, queue) for pattern, queue in self._sids if queue is not None]

    def leaving(self) -> tuple[str, ...]:
        """The sids that were given up, and of which messages may still be on their way."""
        return tuple(self._leaving)

    def left(self, sids: Iterable[str]) -> None:
        """Forget these: the server knows, and nothing more of them comes."""
        for sid in sids:
            if sid in self._leaving:
                del self._leaving[sid], self.by_sid[sid]

    def sid(self, pattern: str, queue: str | None) -> str | None:
        """Find the sid of a subscription; None where there is none."""
        return self._sids.get((pattern, queue))

    def refuse(self, pattern: str, queue: str | None = None) -> None:
        """Take note that the server does not allow a subscription."""
        sid = self._sids.get((pattern, queue))
        name = None if sid is None else self.by_sid[sid].name
        if self.remove(pattern, queue) is not None and queue is None:
            self.refused[name] = None

    def counts(self, subscription: NatsSubscription, subject: str) -> bool:
        """True for the copy of a publication that is the one to deliver."""
        matching = self.alone.match(subject)
        return len(matching) < 2 or subscription.number == min(matching)
