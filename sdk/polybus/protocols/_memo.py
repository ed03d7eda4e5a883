"""Bounded caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST: Final = 4096


def remember(cache: dict[K, V], key: K, value: V, most: int) -> V:
    """Add an entry to a cache, which is emptied first if it has `most` entries."""
    if len(cache) >= most:
        cache.clear()
    cache[key] = value
    return value


class Memo(dict[K, V]):
    """A dictionary that makes missing values and empties itself when full. A hit costs no Python call.

    Args:
        make: Makes the value of a key. Its exceptions are raised by the look-up and not cached.
        most: Maximum number of keys.
    """

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[K], V], most: int = _MOST) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: K) -> V:
        return remember(self, key, self._make(key), self._most)
