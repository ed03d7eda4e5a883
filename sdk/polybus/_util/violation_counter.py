"""Counts of broken rules: a message that breaks one is dropped, too many in a minute end the connection."""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, field

_MINUTE: Final = 60.0
_LINES: Final = 10
"""Warnings of one kind in a minute."""


@define(eq=False, weakref_slot=False)
class ViolationCounter:
    """Counts the violations of one connection, by the minute."""

    _count: int = 0
    _since: float = 0.0

    def add(self, now: float) -> int:
        """Count one more, and tell how many there are in this minute, which begins with the first."""
        if now - self._since > _MINUTE:
            self._count, self._since = 0, now
        self._count += 1
        return self._count


@define(eq=False)
class Warnings:
    """Warnings that a peer can cause: one that connects again and again must not fill the log with them."""

    _said: dict[str, ViolationCounter] = field(factory=dict)

    def warn(self, logger: logging.Logger, now: float, text: str, *args: object, error: BaseException | None = None) -> None:
        """Write a line, unless there were many of the same kind in this minute.

        Args:
            now: By any clock that is never set.
            text: A template, by which lines are counted.
            error: A mistake of the application that a peer can repeat: its traceback is written, as an error.
        """
        count = self._count(text, now)
        if count > _LINES:
            return
        if count == _LINES:
            text += " (others like this are not logged for up to a minute)"
        logger.log(logging.WARNING if error is None else logging.ERROR, text, *args, exc_info=error)

    def allows(self, text: str, now: float) -> bool:
        """Count a line that somebody else writes: False where there were many of its kind in this minute."""
        return self._count(text, now) <= _LINES

    def _count(self, text: str, now: float) -> int:
        return self._said.setdefault(text, ViolationCounter()).add(now)


def too_many(limit: int) -> str:
    """Explain why a connection with more of them ends."""
    return f"more than {limit} malformed messages in a minute"
