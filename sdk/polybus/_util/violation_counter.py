"""How often somebody breaks a rule: one such message is dropped, too many in a minute end the connection."""

from __future__ import annotations

from typing import Final

__all__ = ["Offences", "too_many"]

_MINUTE: Final = 60.0


class Offences:
    """Those of one connection."""

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def add(self, now: float) -> int:
        """One more. How many there are in this minute, which begins with the first."""
        if now - self._since > _MINUTE:
            self._count, self._since = 0, now
        self._count += 1
        return self._count


def too_many(limit: int) -> str:
    """Why a connection with more of them ends."""
    return f"more than {limit} malformed messages in a minute"
