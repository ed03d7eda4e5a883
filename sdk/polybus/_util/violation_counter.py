"""Counts of broken rules: a message that breaks one is dropped, too many in a minute end the connection."""

from __future__ import annotations

from typing import Final

from attrs import define

_MINUTE: Final = 60.0


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


def too_many(limit: int) -> str:
    """Explain why a connection with more of them ends."""
    return f"more than {limit} malformed messages in a minute"
