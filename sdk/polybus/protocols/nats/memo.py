"""A bounded cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST: Final = 4096


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
        made = self._make(key)
        if len(self) >= self._most:
            self.clear()
        self[key] = made
        return made
