"""The first stage: a task reads a range of a capture, decodes it and writes events and quarantine as Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from polybus.capture.columns.stamp import BatchGroup, gap_rows

from ..capture.store.compute import pc
from .manifest import RunCounts
from .partitions import BY_DATE, PartitionWriter
from .range_reader import RangeReader
from .ranges import Range, ReadWindow
from .storage import Storage
from .watermarks import Watermarks

SAMPLES: Final = 100
"""Gap rows and losses that a task reports one by one; all are counted."""


@attrs.define
class IngestResult(RunCounts):
    """Result of a task."""

    ends: dict[str, int] = attrs.Factory(dict)
    seen: dict[str, int] = attrs.Factory(dict)
    holes: dict[str, Any] = attrs.Factory(dict)
    """`Holes`, as their fields."""
    gap_rows: list[dict[str, Any]] = attrs.Factory(list)
    losses: list[dict[str, Any]] = attrs.Factory(list)
    ended: list[str] = attrs.Factory(list)
    """Recordings that say that they are over."""
    files: list[list[str]] = attrs.Factory(list)
    """Table and path, in the staging folder."""


def take(capture: str, storage: Storage, staging: str, piece: Range, window: ReadWindow) -> IngestResult:
    """Decode a range into files.

    Raises:
        CaptureError: The segment is gone.
        OSError: A file cannot be written.
    """
    done = IngestResult()
    tables = PartitionWriter(storage, staging)
    reader, watermarks = RangeReader(capture, piece), Watermarks(done.ends, done.seen)
    moments = attrs.evolve(window, connection=None)  # the connection of missing frames is not known

    def seen(rows: pa.RecordBatch) -> None:
        _note_gaps(done, *gap_rows(moments.of(rows), SAMPLES))

    def told(group: BatchGroup) -> None:
        _note_gaps(done, group.gaps, group.gap_rows)

    for made in reader.decoded(window, seen, told):
        events, quarantine = made.events, made.quarantine
        done.frames += made.frames
        done.quarantined += quarantine.num_rows
        done.empty += made.empty
        done.refused += made.refused
        done.events += events.num_rows
        # A frame's first message is number 0.
        done.rowed += pc.sum(pc.equal(events.column("sub"), 0)).as_py() or 0
        watermarks.note(events)
        reader.holes.note(events)
        tables.add("events", events, BY_DATE)
        tables.add("quarantine", quarantine, BY_DATE)
    tables.close()
    done.holes = attrs.asdict(reader.holes)
    done.files = tables.files
    done.ended = [reader.ended] if reader.ended is not None else []
    done.lost = len(reader.damage)
    done.losses = [{"segment": piece.start.segment, **attrs.asdict(stretch)} for stretch in reader.damage[:SAMPLES]]
    return done


def _note_gaps(done: IngestResult, count: int, samples: Sequence[Mapping[str, Any]]) -> None:
    done.gaps += count
    done.gap_rows += map(dict, samples[: SAMPLES - len(done.gap_rows)])
