"""Selects exchanges that the report lists individually. Several runs select the same exchanges as a single run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .tables import ALIKE, DEFECTS, ROWS, SAMPLES
from .views import TIES

Row = dict[str, Any]
Rows = list[Row]

KIND_OF: Final = ("protocol", "subject", "outcome", "code")
_BY_TIME: Final = ("request_time_ns", *TIES.split(", "))
_SAME: Final = (*_BY_TIME, "protocol", "address", "outcome", "latency_ns")
_CANDIDATES: Final = 8
"""Candidates for journeys per reason. There are several because some are hops of an earlier journey."""


def in_order(row: Mapping[str, Any], names: Sequence[str] = _BY_TIME) -> tuple[Any, ...]:
    return tuple(value for name in names for value in (row[name] is not None, "" if row[name] is None else row[name]))


def _by_latency(row: Row) -> tuple[Any, ...]:
    """Sort key that puts exchanges without an answer first, then the slowest."""
    return row["latency_ns"] is not None, -(row["latency_ns"] or 0), *in_order(row)


def kept(rows: Iterable[Row]) -> Rows:
    found = _once(rows)
    of_kinds = _numbered(slowest(found, None))[:SAMPLES]
    return _once([*listed(found), *slowest(found), *unanswered(found), *(row for _, row in of_kinds)])


def _once(rows: Iterable[Row]) -> Rows:
    return list({tuple(row[name] for name in _SAME): row for row in rows}.values())


def listed(rows: Rows) -> Rows:
    """Return the slowest exchanges of each kind, starting with the failed kinds."""
    some = [(row["outcome"] == "ok", nth, in_order(row, KIND_OF), row) for nth, row in _numbered(sorted(rows, key=_by_latency))]
    return [row for _, nth, _, row in sorted(some, key=lambda one: one[:3])[:ROWS] if nth <= ALIKE]


def slowest(rows: Rows, most: int | None = SAMPLES) -> Rows:
    return sorted((row for row in rows if row["latency_ns"] is not None), key=_by_latency)[:most]


def unanswered(rows: Rows) -> Rows:
    """Return the first exchanges by wall-clock time, because each recording numbers its frames from 0."""
    return sorted((row for row in rows if row["latency_ns"] is None), key=in_order)[:SAMPLES]


def for_journeys(rows: Rows) -> Rows:
    """Return candidates for each reason (``why``): the first of each subject and code, then the second, and so on."""
    found: dict[str, Rows] = {}
    for row in rows:
        if row["outcome"] not in ("cancelled", "unseen", "open-at-end") and row["request_time_ns"] is not None:
            why = "failed" if row["outcome"] == "error" else "unanswered" if row["latency_ns"] is None else "slowest"
            found.setdefault(why, []).append({**row, "why": why})
    chosen: Rows = []
    for why, some in sorted(found.items()):
        some.sort(key=_by_latency if why == "slowest" else lambda row: (row["code"] not in DEFECTS, *in_order(row)))
        chosen += [row for _, row in _numbered(some, ("protocol", "subject", "code"))[:_CANDIDATES]]
    return chosen


def _numbered(rows: Iterable[Row], names: Sequence[str] = KIND_OF) -> list[tuple[int, Row]]:
    """Return the first row of each kind, then the second of each kind, and so on."""
    nth, found = Counter[tuple[Any, ...]](), list[tuple[int, Row]]()
    for row in rows:
        kind = tuple(row[name] for name in names)
        nth[kind] += 1
        found.append((nth[kind], row))
    return sorted(found, key=lambda pair: pair[0])
