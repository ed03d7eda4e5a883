"""Watermarks and holes of recordings.

A watermark is the last moment of a recording on its monotonic clock (used for latencies) and on the wall clock. A killed
recorder does not write an end. The wall clocks of other recordings then show how long it has been silent. Holes are missing
frames, indicated by gap rows or by jumps in the row numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.columns.stamp import BatchGroup, gaps_in, rows_of

from ..capture.store.compute import pc

LAST_NS: Final = 2**63 - 1
"""The last representable moment, in the year 2262."""
NEEDED: Final = frozenset(("capture_id", "seq", "flags", "frame"))
MOST: Final = 10_000
"""Maximum holes that a task remembers. Frames around further holes count as seen."""


@attrs.define
class Holes:
    """The holes in a task's input. For each batch, call `rows` or `group` before calling `note` with its events."""

    found: list[list[Any]] = attrs.Factory(list)
    """Recording, first row after the hole, and the last moment before it on the monotonic clock (`None` if unknown)."""
    first: dict[str, int] = attrs.Factory(dict)
    after: dict[str, int] = attrs.Factory(dict)
    ends: dict[str, int] = attrs.Factory(dict)
    """The last moment of each recording, as in `Watermarks`."""

    def rows(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._go_on(rows_of([rows]), gaps_in(rows).select(["capture_id", "seq"]).to_pylist())

    def group(self, group: BatchGroup) -> None:
        """Add the rows of the next row group, using only the facts about the group."""
        if group.rows:
            self._go_on(group.rows, group.gap_rows)

    def end(self, name: str, seq: int) -> None:
        """Add the end of a recording, with the number after its last frame, because the last frames may also be missing."""
        self._go_on((name, seq, seq))

    def _go_on(self, rows: Sequence[Any], gaps: Iterable[Mapping[str, Any]] = ()) -> None:
        name, first, after = rows
        if first is None or name is None:
            return
        if first > self.after.setdefault(name, first):
            self._add(name, first)
        self.first.setdefault(name, first)
        self.after[name] = after
        for gap in gaps:
            self._add(gap["capture_id"], gap["seq"])

    def _add(self, name: str | None, seq: int | None) -> None:
        if len(self.found) < MOST and name is not None and seq is not None:
            self.found.append([name, min(seq, LAST_NS), self.ends.get(name)])

    def note(self, events: pa.RecordBatch) -> None:
        if not self.found or not events.num_rows:
            return
        seqs, begin = events.column("seq"), pc.min(events.column("seq")).as_py()
        for hole in self.found:
            name, seq, at = hole
            if begin is not None and seq > begin:
                before = pc.and_(pc.equal(events.column("capture_id"), name), pc.less(seqs, seq))
                last = pc.max(events.column("mono_ns").filter(before)).as_py()
                hole[2] = last if at is None else max(at, last or at)


def joined(parts: Iterable[Holes]) -> dict[str, list[tuple[int, int]]]:
    """Join the holes within and between tasks. For each recording, return ascending row numbers and moments."""
    ends, after, found = dict[str, int](), dict[str, int](), dict[str, set[tuple[int, int]]]()
    for part in parts:
        jumps = [[name, first, None] for name, first in part.first.items() if first > after.get(name, first)]
        for name, seq, at in (*jumps, *part.found):
            if (moment := at if at is not None else ends.get(name)) is not None:
                found.setdefault(name, set()).add((seq, moment))
        after |= part.after
        ends |= part.ends
    return {name: sorted(some) for name, some in found.items()}


FARTHEST_NS: Final = 2**61
"""73 years. No monotonic clock is farther from 0. Wall clocks may be farther, but are limited to this value here."""


CLOCKS: Final = pa.schema(
    [
        *(("capture_id", pa.string()), ("end_ns", pa.int64()), ("silent_ns", pa.int64()), ("ended", pa.bool_())),
        *((name, pa.int64()) for name in ("from_seq", "until_seq", "hole_ns")),
    ]
)
"""The last moment of each recording, how long others have continued since, and its next hole, which began at ``hole_ns``."""

KnownHoles = Mapping[str, Sequence[tuple[int, int]]]
"""By recording, the number of the first row after each hole and the moment before the hole, in ascending order."""


@attrs.frozen
class Watermarks:
    ends: dict[str, int] = attrs.Factory(dict)
    """By recording, the last moment in ns on the monotonic clock."""
    seen: dict[str, int] = attrs.Factory(dict)
    """Last moment of each recording on the wall clock, in ns since 1970 (UTC). Older versions did not store it."""

    def note(self, events: pa.RecordBatch) -> None:
        found = pa.table(events.select(["capture_id", "mono_ns", "time_ns"])).group_by("capture_id")
        for row in found.aggregate([("mono_ns", "max"), ("time_ns", "max")]).to_pylist():
            if (name := row["capture_id"]) is None:  # without a recording, so nothing is compared with it
                continue
            end, seen = max(0, min(int(row["mono_ns_max"] or 0), FARTHEST_NS)), max(0, int(row["time_ns_max"] or 0))
            self.add({name: end}, {name: seen})

    def add(self, ends: Mapping[str, int], seen: Mapping[str, int]) -> None:
        for known, given in ((self.ends, ends), (self.seen, seen)):
            known.update({name: max(at, known.get(name, at)) for name, at in given.items()})

    def only(self, names: set[str]) -> Watermarks:
        return Watermarks(*({name: at for name, at in clocks.items() if name in names} for clocks in (self.ends, self.seen)))

    def table(self, *, all_read: bool, ended: Collection[str] = (), holes: KnownHoles | None = None) -> pa.Table:
        """Return rows of `CLOCKS`. Recordings count as silent only if everything on the disk was read."""
        now = max(self.seen.values(), default=0) if all_read else 0
        rows = []
        for name, end in self.ends.items():
            silent = min(max(now - self.seen.get(name, now), 0), FARTHEST_NS)
            edges = [(-LAST_NS, None), *(holes or {}).get(name, ()), (LAST_NS, None)]
            for (begin, _), (behind, at) in pairwise(edges):
                rows.append((name, end, silent, name in ended, begin, behind, at))
        return pa.Table.from_pylist([dict(zip(CLOCKS.names, row, strict=True)) for row in rows], CLOCKS)
