"""Watermarks: the progress of each recording on its own clock, by which latencies are measured, and on the wall's.

A recorder that was killed does not say that its recording is over, and its clock stands still. What it left open would be
carried from run to run for good, with an entry here; the wall clock of the others shows that it has been silent for long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Self

import attrs
import pyarrow as pa

from .ranges import LAST_NS

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

Holes = Mapping[str, Sequence[tuple[int, int]]]
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
            name = row["capture_id"]
            self.ends[name] = max(min(int(row["mono_ns_max"] or 0), FARTHEST_NS), self.ends.get(name, 0))
            self.seen[name] = max(int(row["time_ns_max"] or 0), self.seen.get(name, 0))

    def later(self, others: Iterable[Self]) -> Watermarks:
        """With what others have seen."""
        every = [self, *others]
        return Watermarks(_latest(one.ends for one in every), _latest(one.seen for one in every))

    def only(self, names: set[str]) -> Watermarks:
        """Of some recordings."""
        return Watermarks(*({name: at for name, at in clocks.items() if name in names} for clocks in (self.ends, self.seen)))

    def table(self, *, all_read: bool, ended: Collection[str] = (), holes: Holes | None = None) -> pa.Table:
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
