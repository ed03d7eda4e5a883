"""Tokens of requests: the last part of the subject to which an answer comes."""

from __future__ import annotations

import random
from typing import Final

from attrs import define

_SALT: Final = 8
"""Hexadecimal digits of a token that are random: who answers one request cannot answer another."""


@define(eq=False)
class Tokens:
    """The tokens that were given on one connection. They are never given twice."""

    _rng: random.Random
    _count: int = 0

    def next(self) -> str:
        """The token that `given` makes known."""
        return f"{self._count + 1:x}{self._rng.getrandbits(4 * _SALT):0{_SALT}x}"

    def given(self) -> None:
        """Take note that the next one has been used."""
        self._count += 1

    def was_given(self, token: str) -> bool:
        """True for a token that could be ours; whether it is, and still waited for, the link knows."""
        count = token[:-_SALT]
        if len(token) <= _SALT or len(token) > 2 * _SALT or not token.isalnum():
            return False
        try:
            return 0 < int(count, 16) <= self._count
        except ValueError:
            return False
