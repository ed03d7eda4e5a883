"""Tokens of requests: the last part of the subject to which an answer comes."""

from __future__ import annotations

import random
from typing import Final

from attrs import define

_SALT: Final = 8
"""Hexadecimal digits of a token that are random: who answers one request cannot answer another."""
_AT_ONCE: Final = 64
"""Tokens whose random digits are drawn together: the system is asked for each draw."""


@define(eq=False)
class Tokens:
    """The tokens that were made on one connection. They are never made twice."""

    _rng: random.Random
    _count: int = 0
    _salts: str = ""

    def next(self) -> str:
        """Make another one."""
        at = self._count % _AT_ONCE * _SALT
        if not at:
            digits = _SALT * _AT_ONCE
            self._salts = f"{self._rng.getrandbits(4 * digits):0{digits}x}"
        self._count += 1
        return f"{self._count}{self._salts[at : at + _SALT]}"

    def was_given(self, token: str) -> bool:
        """True for a token that could be ours; whether it is, and still waited for, the link knows."""
        count = token[:-_SALT]
        return count.isascii() and count.isdigit() and len(count) < 20 and 0 < int(count) <= self._count
