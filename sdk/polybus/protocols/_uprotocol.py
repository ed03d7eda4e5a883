"""The part that both generations of uProtocol share: ids, priorities, and the facts about a message that outlive a relay.

Ids are UUIDs that hold the time of their making (eclipse-uprotocol/up-spec a6392ed, basics/uuid.adoc). The document's layout is
UUID version 8: 48 bits of Unix milliseconds, the version, 12 bits of a counter that begins anew with each millisecond, the
variant, 62 bits that are random once for the life of the maker. Version 6 was written by up-java for a while, version 7 is
written by later releases: both are read. The document's own examples show version 4, which has no time.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from .._util.pattern_index import SubjectIndex
from .._util.sources import sources
from ..message import RELAYED

PRIORITIES: Final = tuple(f"CS{level}" for level in range(7))
LEVELS: Final = {name: level for level, name in enumerate(PRIORITIES)}
Pairs: TypeAlias = tuple[tuple[str, str], ...]


def pairs_in(table: Any) -> tuple[tuple[Any, Any], ...] | None:
    """The pairs of an option that is a table, or pairs already; None of anything else."""
    try:
        return tuple((name, value) for name, value in (table.items() if isinstance(table, Mapping) else table))
    except (TypeError, ValueError):
        return None


def pairs_of(protocol: str, priorities: Mapping[str, str] | Pairs) -> Pairs:
    """Pairs of pattern and priority. May raise `ValueError`: a priority is none; the text names the protocol."""
    pairs = pairs_in(priorities)
    if pairs is None:
        text = "a table is needed, from patterns to CS0 ... CS6: {'door.*': 'CS4'}"
        raise ValueError(f"{protocol}: priorities={str(priorities)[:60]!r}: {text}")
    for pattern, name in pairs:
        if name not in LEVELS:
            raise ValueError(f"{protocol}: priority {name!r} of {pattern!r} is not one of {', '.join(PRIORITIES)}")
    return pairs


class SubjectLevels:
    """The priority of a subject, by the patterns of the application."""

    def __init__(self, priorities: Pairs) -> None:
        self._index: SubjectIndex[int] = SubjectIndex()
        self._names = [name for _, name in priorities]
        for place, (pattern, _) in enumerate(priorities):
            self._index.add(pattern, place)

    def of(self, subject: str | int) -> str | None:
        """The name of its priority, or None."""
        places = self._index.match(subject) if self._names else ()
        return self._names[min(places)] if places else None


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
    """

    __slots__ = ("_clock", "_count", "_head", "_ms", "suffix")

    def __init__(self, clock: Callable[[], int] | None = None, rng: random.Random | None = None) -> None:
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
        self._head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-8"


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


_CONVERTIBLE: Final = (7, 8)
"""Versions of ids with the same layout: the old generation writes 8, the new one 7."""
_VERSION_AT: Final = 14


def relayed_priority(attributes: Mapping[str, Any]) -> str | None:
    """The priority that a message came with, also over a bridge; None of one that came with none, or from another wire."""
    crossed = attributes.get(RELAYED)
    name = crossed.get("priority") if isinstance(crossed, dict) else attributes.get("priority")
    return name if isinstance(name, str) and name in LEVELS else None


def relayed_id(attributes: Mapping[str, Any], version: int) -> str | None:
    """The id with which a message set out before it crossed a bridge, as one of a version; None where it had none with a time.

    Version 7 and 8 differ in that digit alone, so that an id that crosses twice is what it was.
    """
    crossed = attributes.get(RELAYED)
    id = crossed.get("id") if isinstance(crossed, dict) else None
    if not isinstance(id, str) or id_version(id) not in _CONVERTIBLE:
        return None
    return f"{id[:_VERSION_AT]}{version}{id[_VERSION_AT + 1 :]}".lower()
