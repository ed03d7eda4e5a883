"""A priority queue that lets no item wait forever."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_AGEING: Final = 8
"""Interval at which the queue returns the item that has waited longest, while several levels are in use."""


class PriorityQueue(Generic[T]):
    """A queue that returns items by level, highest first. Within a level, the order is first in, first out.

    Unless `ages` is False, every eighth item is the one that has waited longest, so that low levels make progress under any
    load. Items must be unique. Removing an item takes the same time at any position.
    """

    __slots__ = ("_ages", "_levels", "_taken", "_turn", "count")

    def __init__(self, *, ages: bool = True) -> None:
        self._ages = ages
        self._levels: dict[int, OrderedDict[T, int]] = {}
        self.count: int = 0
        """Number of items, for callers that look often."""
        self._turn = 0
        self._taken = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        for level in sorted(self._levels, reverse=True):
            yield from self._levels[level]

    def __contains__(self, item: object) -> bool:
        return any(item in queue for queue in self._levels.values())

    def append(self, item: T, level: int = 0) -> None:
        queue = self._levels.get(level)
        if queue is None:
            queue = self._levels[level] = OrderedDict()
        self._turn += 1
        self.count += 1
        queue[item] = self._turn

    def appendleft(self, item: T, level: int = 0) -> None:
        self.append(item, level)
        self._levels[level].move_to_end(item, last=False)

    def popleft(self) -> T:
        """Take the next item.

        Raises:
            IndexError: If the queue is empty.
        """
        if not self.count:
            raise IndexError("the queue is empty")
        self.count -= 1
        levels = self._levels
        if len(levels) == 1:  # the usual case, in few steps
            (queue,) = levels.values()
            item, _ = queue.popitem(False)
            if not queue:
                levels.clear()
            return item
        self._taken += 1
        if self._ages and not self._taken % _AGEING:
            level = min(levels, key=lambda level: next(iter(levels[level].values())))
        else:
            level = max(levels)
        queue = levels[level]
        item, _ = queue.popitem(False)
        if not queue:
            del levels[level]
        return item

    def remove(self, item: T) -> bool:
        """Remove an item. Returns False if it is not in the queue."""
        for level, queue in self._levels.items():
            if queue.pop(item, None) is not None:
                self.count -= 1
                if not queue:
                    del self._levels[level]
                return True
        return False
