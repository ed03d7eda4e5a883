"""Priorities of uProtocol's messages, in both of its generations: ``CS0`` to ``CS6``, by patterns of subjects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from .._util.pattern_index import SubjectIndex

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
