"""Holes of recordings: where rows say that frames are missing, or the numbers of rows jump."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.columns.stamp import BatchGroup, gaps_in, rows_of

from ..capture.store.compute import pc

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
        if first is None:
            return
        if first > self.after.setdefault(name, first):
            self._add(name, first)
        self.first.setdefault(name, first)
        self.after[name] = after
        for gap in gaps:
            self._add(gap["capture_id"], gap["seq"])

    def _add(self, name: str, seq: int | None) -> None:
        if len(self.found) < MOST and seq is not None:
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
