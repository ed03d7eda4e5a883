"""The first stage: a task reads a range of a capture, decodes it and writes events and quarantine as Parquet.

Frames and events stay in the Python worker, as Arrow, from one file to the other; the JVM sees one row a task. The names of the
files are new with each attempt, and only those of attempts that Spark has accepted are used.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from polybus.capture.columns.stamp import BatchGroup, gap_rows

from ...capture.store.compute import pc
from ..source.range_reader import RangeReader
from ..source.ranges import Range, ReadWindow
from .manifest import RunCounts
from .storage import Storage

ROWS_AT_ONCE: Final = 50_000
"""Of a row group; so many at most are held in memory for each date and protocol of a task."""
BYTES_AT_ONCE: Final = 64 << 20
"""A row group is not larger, but for one batch: a row may have megabytes."""
SAMPLES: Final = 100
"""Gap rows and losses that a task reports one by one; all are counted."""


@attrs.define
class IngestResult(RunCounts):
    """Result of a task."""

    ends: dict[str, int] = attrs.Factory(dict)
    seen: dict[str, int] = attrs.Factory(dict)
    gap_rows: list[dict[str, Any]] = attrs.Factory(list)
    losses: list[dict[str, Any]] = attrs.Factory(list)
    ended: list[str] = attrs.Factory(list)
    """Recordings that say that they are over."""
    files: list[list[str]] = attrs.Factory(list)
    """Table and path, in the staging folder."""


def ingest_task(
    capture: str, out: str, staging: str, ranges: list[Range], window: ReadWindow, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow`` over the numbers of ranges, one a partition, when it knows the rest."""
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        done = take(capture, Storage(out), f"{staging}/{number:06d}-{uuid.uuid4().hex[:12]}", ranges[number], window)
        yield pa.RecordBatch.from_pydict({"taken": [json.dumps(attrs.asdict(done))]})


def take(capture: str, storage: Storage, staging: str, piece: Range, window: ReadWindow) -> IngestResult:
    """Decode a range into files.

    Raises:
        CaptureError: The segment is gone.
        OSError: A file cannot be written.
    """
    done = IngestResult()
    tables = _Tables(storage, staging)
    reader = RangeReader(capture, piece)
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
        _note_ends(done, events)
        tables.add("events", events, "time_ns")
        tables.add("quarantine", quarantine, "ts_ns")
    tables.close()
    done.files = tables.files
    done.ended = [reader.ended] if reader.ended is not None else []
    done.lost = len(reader.damage)
    done.losses = [{"segment": piece.start.segment, **attrs.asdict(stretch)} for stretch in reader.damage[:SAMPLES]]
    return done


def _note_ends(done: IngestResult, events: pa.RecordBatch) -> None:
    found = pa.table(events.select(["capture_id", "mono_ns", "time_ns"])).group_by("capture_id")
    for row in found.aggregate([("mono_ns", "max"), ("time_ns", "max")]).to_pylist():
        name = row["capture_id"]
        done.ends[name] = max(int(row["mono_ns_max"]), done.ends.get(name, 0))
        done.seen[name] = max(int(row["time_ns_max"]), done.seen.get(name, 0))


def _note_gaps(done: IngestResult, count: int, samples: Sequence[Mapping[str, Any]]) -> None:
    done.gaps += count
    done.gap_rows += map(dict, samples[: SAMPLES - len(done.gap_rows)])


class _Tables:
    """Parquet files by table, date and protocol."""

    def __init__(self, storage: Storage, staging: str) -> None:
        self.files: list[list[str]] = []
        self._storage = storage
        self._staging = staging
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._room: dict[str, list[int]] = {}  # rows and bytes that may still wait
        self._writers: dict[str, Any] = {}

    def add(self, table: str, rows: pa.RecordBatch, time: str) -> None:
        for folder, part in _parts(rows, time):
            place = f"{table}/{folder}"
            self._waiting.setdefault(place, []).append(part)
            room = self._room.setdefault(place, [ROWS_AT_ONCE, BYTES_AT_ONCE])
            room[:] = room[0] - part.num_rows, room[1] - part.nbytes
            if min(room) <= 0:
                self._flush(place)

    def _flush(self, place: str) -> None:
        table = pa.Table.from_batches(self._waiting.pop(place))
        del self._room[place]
        writer = self._writers.get(place)
        if writer is None:
            name, files = f"{self._staging}/{place}/part.parquet", self._storage.filesystem
            files.create_dir(self._storage.inside(f"{self._staging}/{place}"), recursive=True)
            writer = pq.ParquetWriter(self._storage.inside(name), table.schema, filesystem=files, compression="zstd")
            self._writers[place] = writer
            self.files.append([place, name])
        writer.write_table(table)

    def close(self) -> None:
        for place in list(self._waiting):
            self._flush(place)
        for writer in self._writers.values():
            writer.close()


def _parts(rows: pa.RecordBatch, time: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by folder: date in UTC and protocol."""
    if not rows.num_rows:
        return
    days = pc.divide(rows.column(time), 86_400_000_000_000)
    protocols = pc.fill_null(rows.column("protocol"), "")
    plain = rows.drop_columns(["protocol"])
    found = pa.table([days, protocols], ["day", "protocol"]).group_by(["day", "protocol"]).aggregate([])
    for key in found.to_pylist():
        date = pa.scalar(key["day"], pa.int32()).cast(pa.date32()).as_py()
        # As Spark writes such a name, and reads it: a capture may have been made by anybody.
        folder = f"date={date}/protocol={quote(key['protocol'], safe='') or '__HIVE_DEFAULT_PARTITION__'}"
        if len(found) == 1:
            yield folder, plain
            return
        yield folder, plain.filter(pc.and_(pc.equal(days, key["day"]), pc.equal(protocols, key["protocol"])))
