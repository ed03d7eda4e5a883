"""Requests under way, counted for each source authority: a fabric is one peer, and one loud sender must not fill it.

The ids of requests that were answered lately are known as well: a request that comes twice is asked once.
"""

from __future__ import annotations

from typing import Final

REMEMBERED: Final = 4096
"""Ids of answered requests, of a fabric, that are known at least; twice as many at most."""


class Accounts:
    """Counts requests that have come in and are not answered.

    Args:
        most: Of one authority.
        remembered: Answered requests of a connection that are known at least. 0 where none comes twice.
    """

    __slots__ = ("_counts", "_most", "_older", "_remembered", "_settled", "_under_way")

    def __init__(self, most: int, remembered: int = 0) -> None:
        self._most: Final = most
        self._remembered: Final = remembered
        self._under_way: dict[bytes, str] = {}
        """The authority of each."""
        self._settled: set[bytes] = set()
        self._older: set[bytes] = set()
        self._counts: dict[str, int] = {}

    def is_known(self, request: bytes) -> bool:
        """True of a request that is under way, or was answered lately; of `ReturnAddress.account`."""
        return request in self._under_way or request in self._settled or request in self._older

    def admit(self, request: bytes, authority: str) -> bool:
        """Count a request; False of one that is too much for its authority."""
        count = self._counts.get(authority, 0)
        if count >= self._most:
            return False
        self._under_way[request] = authority
        self._counts[authority] = count + 1
        return True

    def settle(self, request: bytes) -> None:
        """Count a request no longer: it is answered."""
        authority = self._under_way.pop(request, None)
        if authority is None:
            return
        left = self._counts[authority] - 1
        if left:
            self._counts[authority] = left
        else:
            del self._counts[authority]
        if self._remembered:
            self._settled.add(request)
            if len(self._settled) >= self._remembered:
                self._older, self._settled = self._settled, set()

    def clear(self) -> None:
        """Forget all."""
        self._under_way.clear()
        self._counts.clear()
        self._settled.clear()
        self._older.clear()
