"""Watermarks: the progress of each recording on its own clock, by which latencies are measured, and on the wall's.

A recorder that was killed does not say that its recording is over, and its clock stands still. What it left open would be
carried from run to run for good, with an entry here; the wall clock of the others shows that it has been silent for long.

Holes are where rows say that frames are missing, or the numbers of rows jump.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Self

import attrs
import pyarrow as pa

from polybus.capture.columns.stamp import BatchGroup, gaps_in, rows_of

from ..capture.store.compute import pc

LAST_NS: Final = 2**63 - 1
"""The last moment there is, in the year 2262."""
NEEDED: Final = frozenset(("capture_id", "seq", "flags", "frame"))
"""Columns of rows that tell of holes."""
MOST: Final = 10_000
"""Holes that a task remembers; what lies around further ones is taken for seen."""


@attrs.define
class Holes:
    """The holes in what a task reads. Rows and groups are told before the events that are made of them."""

    found: list[list[Any]] = attrs.Factory(list)
    """Of each: the recording, the number of the first row behind it, and the last moment before it on the monotonic clock of
    the recording; None where no event was before."""
    first: dict[str, int] = attrs.Factory(dict)
    """By recording, the number of its first row here."""
    after: dict[str, int] = attrs.Factory(dict)
    """And the number behind its last one."""

    def rows(self, rows: pa.RecordBatch) -> None:
        """Take the next rows."""
        if rows.num_rows:
            self._go_on(rows_of([rows]), gaps_in(rows).select(["capture_id", "seq"]).to_pylist())

    def group(self, group: BatchGroup) -> None:
        """Take the next rows, of which only this is known."""
        if group.rows:
            self._go_on(group.rows, group.gap_rows)

    def _go_on(self, rows: Sequence[Any], gaps: Iterable[Mapping[str, Any]]) -> None:
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
        if len(self.found) < MOST and None not in (name, seq):
            self.found.append([name, seq, None])

    def note(self, events: pa.RecordBatch) -> None:
        """Take the moments of the next events."""
        if not self.found or not events.num_rows:
            return
        seqs, begin = events.column("seq"), pc.min(events.column("seq")).as_py()
        for hole in self.found:
            name, seq, at = hole
            if begin is not None and seq > begin:
                before = pc.and_(pc.equal(events.column("capture_id"), name), pc.less(seqs, seq))
                last = pc.max(events.column("mono_ns").filter(before)).as_py()
                hole[2] = last if at is None else max(at, last or at)


def joined(
    parts: Iterable[Holes], ends: Iterable[Mapping[str, int]], before: Mapping[str, int]
) -> dict[str, list[tuple[int, int]]]:
    """The holes of what tasks have read one after the other, and those in between, by recording: number and moment, ascending.

    Each part has its last moments in `ends`, those before the first stand in `before`.
    """
    moments, after, found = dict(before), dict[str, int](), dict[str, set[tuple[int, int]]]()
    for part, last in zip(parts, ends, strict=True):
        jumps = [[name, first, None] for name, first in part.first.items() if first > after.get(name, first)]
        for name, seq, at in (*jumps, *part.found):
            if (moment := at if at is not None else moments.get(name)) is not None:
                found.setdefault(name, set()).add((seq, moment))
        after |= part.after
        moments |= last
    return {name: sorted(some) for name, some in found.items()}


FARTHEST_NS: Final = 2**61
"""In 73 years: what is farther from 0 no monotonic clock says. Wall clocks may be so far apart, and are no farther here."""


CLOCKS: Final = pa.schema(
    [
        *(("capture_id", pa.string()), ("end_ns", pa.int64()), ("silent_ns", pa.int64()), ("ended", pa.bool_())),
        *((name, pa.int64()) for name in ("from_seq", "until_seq", "hole_ns")),
    ]
)
"""Of a recording its last moment, how long others have gone on since (``silent_ns``), and whether it says that it is over. A
row is for the frames from one number up to another, behind which is the next hole: it began at ``hole_ns``; null for none."""

KnownHoles = Mapping[str, Sequence[tuple[int, int]]]
"""By recording, the number of the first row behind each hole, and the moment before it; ascending."""


@attrs.frozen
class Watermarks:
    """Of each recording, by its id."""

    ends: dict[str, int] = attrs.Factory(dict)
    """Its last moment, ns on its monotonic clock."""
    seen: dict[str, int] = attrs.Factory(dict)
    """The same on the wall clock, ns since 1970 UTC; what an older polybus has written does not say it."""

    def note(self, events: pa.RecordBatch) -> None:
        """Take the moments of some events."""
        found = pa.table(events.select(["capture_id", "mono_ns", "time_ns"])).group_by("capture_id")
        for row in found.aggregate([("mono_ns", "max"), ("time_ns", "max")]).to_pylist():
            if (name := row["capture_id"]) is None:  # of no recording, so nothing is ever compared with it
                continue
            self.ends[name] = max(min(int(row["mono_ns_max"] or 0), FARTHEST_NS), self.ends.get(name, 0))
            self.seen[name] = max(int(row["time_ns_max"] or 0), self.seen.get(name, 0))

    def later(self, others: Iterable[Self]) -> Watermarks:
        """With what others have seen."""
        every = [self, *others]
        return Watermarks(_latest(one.ends for one in every), _latest(one.seen for one in every))

    def only(self, names: set[str]) -> Watermarks:
        """Of some recordings."""
        return Watermarks(*({name: at for name, at in clocks.items() if name in names} for clocks in (self.ends, self.seen)))

    def table(self, *, all_read: bool, ended: Collection[str] = (), holes: KnownHoles | None = None) -> pa.Table:
        """Rows of `CLOCKS`: one for each recording, and one more for each of its `holes`.

        Where not all that is on the disk has been read, a recording may have said something after what others have said later,
        and none counts as silent.
        """
        now = max(self.seen.values(), default=0) if all_read else 0
        rows = []
        for name, end in self.ends.items():
            silent = min(max(now - self.seen.get(name, now), 0), FARTHEST_NS)
            edges = [(-LAST_NS, None), *(holes or {}).get(name, ()), (LAST_NS, None)]
            for (begin, _), (behind, at) in pairwise(edges):
                rows.append((name, end, silent, name in ended, begin, behind, at))
        return pa.Table.from_pylist([dict(zip(CLOCKS.names, row, strict=True)) for row in rows], CLOCKS)


def _latest(every: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for clocks in every:
        found |= {name: max(value, found.get(name, value)) for name, value in clocks.items()}
    return found
