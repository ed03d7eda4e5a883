"""Ids as they stand on the wire: a message UUID of 18 bytes, which are compared and kept as they are.

``09`` and the time, version and counter, ``11`` and the variant and the random part, each half with its last byte first.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_SIZE: Final = 18
_COUNTS: Final = 4096
_LAST_MS: Final = 2**48 - 1
_VERSION: Final = 7 << 12
_VARIANT: Final = 2 << 62


class WireIds:
    """Makes ids of version 7 (RFC 9562): unique and in order, whatever the clock does.

    When more than 4,096 are asked for within a millisecond, or the clock was set back, the millisecond in them runs ahead of
    the clock until that has caught up. Not to be shared between threads.
    """

    __slots__ = ("_clock", "_next", "_limit", "suffix")

    def __init__(self, clock: Callable[[], int], rng: random.Random) -> None:
        self._clock = clock
        self.suffix: Final = b"\x11" + (_VARIANT | rng.getrandbits(62)).to_bytes(8, "little")
        """The last 9 bytes of all ids of this maker."""
        self._next = self._limit = -1

    def next(self) -> bytes:
        """A new id, which is later than all before it."""
        first = (self._clock() // 1_000_000) << 16 | _VERSION
        number = self._next
        if first > number or number == self._limit:
            ms = first >> 16 if first > number else (number >> 16) + (number == self._limit)
            number = min(max(ms, 0), _LAST_MS) << 16 | _VERSION
            self._limit = number + _COUNTS
        self._next = number + 1
        return b"\x09" + number.to_bytes(8, "little") + self.suffix


def is_wire_id(id: bytes) -> bool:
    """True if a message UUID is in the usual form, and its id of version 7."""
    return len(id) == _SIZE and id[0] == 9 and id[9] == 17 and id[2] >> 4 == 7 and id[17] >> 6 == 2


def wire_ms(id: bytes) -> int:
    """The time in an id: milliseconds since 1970."""
    return int.from_bytes(id[3:9], "little")
