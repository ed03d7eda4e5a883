"""Publications that are relayed: where they have been, so that each bus takes each once, also in a ring or over a double link.

A header tells it, ``polybus-via: <id>,<bus>,<bus>``: an id that the first one chose who may have sent it on two ways, and the
buses that it has left since. A bus drops what names itself, or has an id that it knows already of that subject. Handlers never
see the header.

Whoever gets a publication knows its id, and may say it elsewhere before the publication is there. So an id counts under its
subject alone: only who may publish to that very subject can take the place of what is published to it.
"""

from __future__ import annotations

import secrets
from typing import Final

from .headers import VIA
from .message import Message
from .subjects import canonical

__all__ = ["Journeys", "hide"]

_REMEMBERED: Final = 8192
"""Ids of one generation; two are kept. A copy that comes later than so many others is taken for another publication."""
_LONGEST: Final = 64


def hide(message: Message) -> None:
    """Take the header off a message that has come to its goal: handlers do not see it, and may pass on those that they see."""
    message.headers = {name: value for name, value in (message.headers or {}).items() if name != VIA} or None


class Journeys:
    """What one bus knows of publications that went through other buses."""

    __slots__ = ("_before", "_bus", "_recent")

    def __init__(self, bus: str) -> None:
        self._bus = bus
        self._recent: set[tuple[str, int]] = set()
        self._before: set[tuple[str, int]] = set()

    def arrived(self, message: Message, via: str) -> bool:
        """Whether a publication comes for the first time; takes the header off it."""
        hide(message)
        id, *buses = via.split(",")
        return self._bus not in buses and self._is_new(id, message.subject)

    def _is_new(self, id: str, subject: str | int) -> bool:
        # Python's hash of text has a key of this process: nobody outside finds a subject with the hash of another.
        known = id[:_LONGEST], hash(canonical(subject) if isinstance(subject, str) else subject)
        if known in self._recent or known in self._before:
            return False
        if len(self._recent) >= _REMEMBERED:
            self._before, self._recent = self._recent, set()
        self._recent.add(known)
        return True

    def crossed(self, via: str, bus: str, subject: str | int, hops: int) -> str | None:
        """The header of a publication that comes over a bridge from another bus of this process; None where it is no news."""
        id, *buses = via.split(",")
        if self._bus in buses or len(buses) >= hops:
            return None
        return ",".join((id[:_LONGEST], *buses, bus)) if self._is_new(id, subject) else None

    def first(self) -> str:
        """The header of a publication that has been nowhere yet."""
        return secrets.token_hex(8)

    def onward(self, via: str | None, hops: int) -> str | None:
        """The header with which a publication leaves this bus; None where it has been on as many as `hops` already."""
        if via is None:
            via = secrets.token_hex(8)  # nobody guesses it, and takes the place of what is to come
        return f"{via},{self._bus}" if via.count(",") < hops else None

    def begin(self, message: Message) -> Message:
        """A publication of this very bus that may reach another on two ways, as it goes over the wire."""
        headers = {**(message.headers or {}), VIA: f"{secrets.token_hex(8)},{self._bus}"}
        on = Message(message.kind, message.subject, None, message.raw, message.format, headers, attributes=message._attributes)
        on._value = message._value
        return on
