"""The deadlines of what waits in a table, at a cost that follows what is past its deadline, not what waits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, Final, Protocol, TypeVar

from attrs import define, field

_LEAST: Final = 64
"""Deadlines that are kept in order, where there are so many."""


class _Timed(Protocol):
    @property
    def deadline(self) -> float: ...


T = TypeVar("T", bound=_Timed)


@define(eq=False)
class Deadlines:
    """Finds what is past its deadline in a table, which keeps no order.

    A share of the deadlines, the nearest, is kept in order. Most of what enters the table later is due later as well, and costs
    a comparison with `until`. When the share is used up, the table is looked through for the next one: since a share is a
    quarter, that is four looks at each entry. Keys are kept, so that what has ended is not held.
    """

    until: float = math.inf
    """All that is due before this is in order already. What enters the table with an earlier deadline has to be added."""
    _near: list[tuple[float, int, Any]] = field(factory=list)
    _share: int = _LEAST
    _added: int = 0

    @property
    def next(self) -> float:
        """The earliest deadline, also of what has ended meanwhile; infinite where there is none."""
        return self._near[0][0] if self._near else math.inf

    def add(self, deadline: float, key: Any) -> None:
        """Take in what is due before `until`."""
        near = self._near
        if self.until == math.inf:
            self.until = deadline
        self._added += 1
        heappush(near, (deadline, self._added, key))
        if len(near) > 2 * self._share:  # short ones behind a long one: the last are left to the next look
            near.sort()
            del near[self._share :]
            self.until = near[-1][0]

    def due(self, now: float, table: Mapping[Any, T]) -> Iterator[T]:
        """Give what is past its deadline, each once: who gets it takes it out of the table."""
        near = self._near
        while near and near[0][0] <= now:
            found = table.get(heappop(near)[2])
            if found is not None and found.deadline <= now:
                yield found
        if not near:
            yield from self._look(now, table)

    def _look(self, now: float, table: Mapping[Any, T]) -> list[T]:
        """Put the next share in order, and give what is past its deadline in the rest."""
        later = sorted(each.deadline for each in table.values() if now < each.deadline < math.inf)
        self._share = max(_LEAST, len(later) // 4)
        self.until = until = later[: self._share][-1] if later else math.inf
        if later:
            places = enumerate(table.items())
            self._near = sorted((each.deadline, place, key) for place, (key, each) in places if now < each.deadline <= until)
            self._added = len(table)
        return [each for each in table.values() if each.deadline <= now]
