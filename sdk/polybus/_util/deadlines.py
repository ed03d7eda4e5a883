"""Expires the entries of a table. The cost depends on the number of expired entries, not on the size of the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeVar

from attrs import define, field

_LEAST: Final = 64
"""Minimum number of deadlines to keep sorted."""


class _Timed(Protocol):
    @property
    def deadline(self) -> float: ...


T = TypeVar("T", bound=_Timed)


@define(eq=False, repr=False)
class Deadlines:
    """Finds the expired entries of an unordered table.

    Only the nearest quarter of the deadlines is sorted. Most new entries expire later, so adding one costs a comparison with
    `until`. Once all sorted entries are used up, the table is searched for the next quarter, so each entry is examined about
    four times. The heap stores keys, which don't keep finished entries alive.
    """

    until: float = math.inf
    """Time before which all deadlines are sorted. New entries with an earlier deadline must be added."""
    _near: list[tuple[float, int, Any]] = field(factory=list)
    _share: int = _LEAST
    _added: int = 0

    @property
    def next(self) -> float:
        """Earliest deadline, which may belong to a finished entry, or infinity without any."""
        return self._near[0][0] if self._near else math.inf

    def add(self, deadline: float, key: Any) -> None:
        """Add an entry with a deadline before `until`."""
        near = self._near
        if self.until == math.inf:
            self.until = deadline
        self._added += 1
        heappush(near, (deadline, self._added, key))
        if len(near) > 2 * self._share:  # leave the last ones to the next search
            near.sort()
            del near[self._share :]
            self.until = near[-1][0]

    def due(self, now: float, table: Mapping[Any, T]) -> Iterator[T]:
        """Yield each expired entry once. The caller has to remove it from the table."""
        near = self._near
        while near and near[0][0] <= now:
            found = table.get(heappop(near)[2])
            if found is not None and found.deadline <= now:
                yield found
        if not near:
            yield from self._look(now, table)

    def _look(self, now: float, table: Mapping[Any, T]) -> list[T]:
        """Sort the next share of the deadlines, and return entries that have already expired."""
        later = sorted(each.deadline for each in table.values() if now < each.deadline < math.inf)
        self._share = max(_LEAST, len(later) // 4)
        self.until = until = later[: self._share][-1] if later else math.inf
        if later:
            places = enumerate(table.items())
            self._near = sorted((each.deadline, place, key) for place, (key, each) in places if now < each.deadline <= until)
            self._added = len(table)
        return [each for each in table.values() if each.deadline <= now]
