"""Requests under way, counted for each source authority: a fabric is one peer, and one loud sender must not fill it."""

from __future__ import annotations

from typing import Final


class Accounts:
    """Counts requests that have come in and are not answered.

    Args:
        most: Of one authority.
    """

    __slots__ = ("_authorities", "_counts", "_most")

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._authorities: dict[str, str] = {}
        """By the id of each request."""
        self._counts: dict[str, int] = {}

    def admit(self, id: str, authority: str) -> bool:
        """Count a request; False of one that is too much for its authority. One that has come before counts once."""
        if id in self._authorities:
            return True
        count = self._counts.get(authority, 0)
        if count >= self._most:
            return False
        self._authorities[id] = authority
        self._counts[authority] = count + 1
        return True

    def settle(self, id: str) -> None:
        """Count a request no longer: it is answered."""
        authority = self._authorities.pop(id, None)
        if authority is None:
            return
        left = self._counts[authority] - 1
        if left:
            self._counts[authority] = left
        else:
            del self._counts[authority]

    def clear(self) -> None:
        """Forget all."""
        self._authorities.clear()
        self._counts.clear()
