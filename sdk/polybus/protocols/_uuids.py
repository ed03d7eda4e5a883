"""Ids of uProtocol messages: UUIDs that hold the time of their making (eclipse-uprotocol/up-spec a6392ed, basics/uuid.adoc).

UMessage has those of RFC 9562, version 7, in the same layout. That of the generation before is version 8: 48 bits of Unix
milliseconds, the version, 12 bits of a counter that begins anew with each millisecond, the variant, 62 bits that are random
once for the life of the maker. Version 6 was written by up-java for a while, version 7 is written by later releases: both are
read. The document's own examples show version 4, which has no time.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Final

from .._util.sources import sources

_UUID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE
)
_COUNTS: Final = 4096
_HEX: Final = tuple(f"{count:03x}" for count in range(1024))
"""Counts of a million ids a second: formatting one costs a third of making an id."""
_LAST_MS: Final = 2**48 - 1
_GREGORIAN_MS: Final = 12_219_292_800_000  # from 1582-10-15, where version 6 begins to count, to 1970


class IdFactory:
    """Makes ids: unique and in order, whatever the clock does.

    When more than 4,096 ids are asked for within a millisecond, or the clock was set back, the millisecond in the ids runs
    ahead of the clock until that has caught up. (The document freezes the counter instead, which gives the same id twice.)

    Not to be shared between threads.

    Args:
        clock: Nanoseconds since 1970.
        rng: Makes the random part; `random.SystemRandom` by default.
        version: Of the UUIDs: 8, or 7 for UMessage.
    """

    __slots__ = ("_clock", "_count", "_head", "_ms", "_version", "suffix")

    def __init__(self, clock: Callable[[], int] | None = None, rng: random.Random | None = None, *, version: int = 8) -> None:
        self._version = version
        self._clock = clock if clock is not None else sources.get().wall_clock_ns
        random_bits = (rng if rng is not None else sources.get().rng).getrandbits(62)
        self.suffix: Final = (
            f"-{8 + (random_bits >> 60):x}{random_bits >> 48 & 0xFFF:03x}-{random_bits & 0xFFFF_FFFF_FFFF:012x}"
        )
        """The last 18 characters of all ids of this maker."""
        self._ms: float = -math.inf
        self._count = 0
        self._head = ""

    def next(self) -> str:
        """A new id, which sorts after all before it."""
        ms = self._clock() // 1_000_000
        count = self._count + 1
        if ms > self._ms:
            self._begin(ms)
            count = 0
        elif count == _COUNTS:
            self._begin(int(self._ms) + 1)
            count = 0
        self._count = count
        return f"{self._head}{_HEX[count] if count < 1024 else f'{count:03x}'}{self.suffix}"

    def _begin(self, ms: int) -> None:
        ms = min(max(ms, 0), _LAST_MS)
        self._ms = ms
        self._head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-{self._version}"


def id_version(id: str) -> int | None:
    """The version of a hyphenated UUID, or None where the text is none."""
    found = _UUID.fullmatch(id)
    return int(found[1], 16) if found is not None else None


def id_time_ms(id: str) -> int | None:
    """Time at which an id was made, in milliseconds since 1970; None where it has none (version 4, as in the document).

    Raises:
        ValueError: The text is no hyphenated UUID.
    """
    version = id_version(id)
    if version == 8 or version == 7:
        return int(id[:8], 16) << 16 | int(id[9:13], 16)
    if version == 6:
        return (int(id[:8], 16) << 28 | int(id[9:13], 16) << 12 | int(id[15:18], 16)) // 10_000 - _GREGORIAN_MS
    if version is None:
        raise ValueError(f"{id[:60]!r} is no UUID: it has the form 018bcfe5-687b-8000-9122-334455667788")
    return None
