"""Sizes of answers, foreseen before their handler has run: what is made for a peer that does not read must stay small."""

from __future__ import annotations

import math
from typing import Final

LARGE: Final = 16 * 1024
"""Bytes: a smaller body is neither foreseen nor charged while its request runs, since `Limits.total_running` bounds it."""

_MEMORY: Final = 60.0
"""Seconds for which a large answer is remembered."""
_FEW: Final = 8
"""Requests of a peer that run at the same time before their handler has given its very first answer, unless they wait."""


class AnswerSizes:
    """The sizes of the answers that one handler has given lately."""

    __slots__ = ("_until", "weight")

    def __init__(self) -> None:
        self.weight: int = -1
        """Bytes that its answers lately had at most, if they were large; 0 if not; -1 as long as there was none."""
        self._until = math.inf

    def expect(self, most: int, now: float) -> tuple[int, float]:
        """Tell the bytes to set aside for the next answer, where a peer may have `most` in all, and how long that is right."""
        if now >= self._until:
            self.weight = 0
        return (most // _FEW if self.weight < 0 else self.weight), self._until

    def learn(self, size: int, now: float) -> None:
        """Learn the size of an answer. To be called where it is large, or `weight` is not 0."""
        if size <= LARGE:
            self.weight = max(self.weight, 0)
        elif 2 * size >= self.weight:
            self.weight = max(size, self.weight)
            self._until = now + _MEMORY
