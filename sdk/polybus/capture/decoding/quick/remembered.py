"""A memory of what was worked out for some bytes, while there is room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_MOST: Final = 8192
"""Then all are forgotten: what they are made of may come from anybody."""
_LONGEST: Final = 4096
"""Longer bytes are worked out each time."""


class Remembered(dict[bytes, T], Generic[T]):
    """Results of a function of bytes, which is asked once for those that come again."""

    def __init__(self, work_out: Callable[[bytes], T]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, key: bytes) -> T:
        found = self._work_out(key)
        if len(key) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[key] = found
        return found
