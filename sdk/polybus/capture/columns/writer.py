"""Writes the columns of segments: decoded once, for all who read them later.

The two files of a segment appear one after the other, each whole under its name or not at all. A process that is killed leaves
hidden files behind, which the next one removes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field, frozen

from ..decoding.decoder import BYTES_AT_ONCE, ROWS_AT_ONCE, decoded
from ..errors import CaptureError
from ..schema import EVENTS, QUARANTINE
from ..store.compute import pc
from ..store.filesystems import AnyPath
from ..store.reader import Capture, Segment
from ..store.segments import SegmentReader, lock
from .places import TABLES, columns_path
from .reader import SegmentColumns
from .stamp import KEY, BatchGroup, ColumnStamp, SegmentIdentity, gap_rows
from .versions import decoder_version

_SCHEMAS: Final = {"events": EVENTS, "quarantine": QUARANTINE}
_ROWS_OF_GROUP: Final = 131_072
_BYTES_OF_GROUP: Final = 64 << 20
"""A group of rows is not larger, but for what is decoded at a time: a row may have megabytes."""
_SAMPLES: Final = 100
"""Gap rows that a group names one by one; all are counted."""
_COMPRESSION: Final = {
    table: {name: "zstd" if name in ("data", "raw") else "lz4" for name in schema.names} for table, schema in _SCHEMAS.items()
}
"""By column: bodies shrink most, and are read least."""


@frozen
class DecodedCapture:
    """Result of `write_columns`."""

    segments: int
    """Number of segments that were decoded now."""
    fresh: int
    """Number of those whose columns were there, and are as good."""
    damaged: tuple[int, ...]
    """Numbers of segments without columns, for parts of them are lost: those who read them count what is missing."""
    open: int
    """Number of segments that are still written, or were left by a recorder that was killed."""
    frames: int
    events: int
    bytes: int
    """Bytes of the columns that were written."""


def write_columns(path: AnyPath, progress: Callable[[int], None] | None = None) -> DecodedCapture:
    """Decode the sealed segments of a capture, as far as that was not done before, and write what they say beside them.

    A recorder may write to the folder meanwhile, and others may read.

    Args:
        path: The capture, in a folder on this machine.
        progress: Told the number of frames, now and then.

    Raises:
        CaptureError: It is no capture, it is elsewhere, or a segment is of an unknown version.
        OSError: The columns cannot be written.
    """
    if "://" in os.fspath(path):
        raise CaptureError(f"{os.fspath(path)}: columns are written into a folder on this machine only; copy them from here")
    capture = Capture(path)
    segments = capture.segments(complete=False)
    _tidy(Path(path), {segment.number for segment in segments})
    sealed = [segment for segment in segments if segment.sealed]
    work = _Work(progress if progress is not None else lambda frames: None)
    for segment in sealed:
        work.take(Path(path), capture, segment)
    opened = len(segments) - len(sealed)
    return DecodedCapture(work.segments, work.fresh, tuple(work.damaged), opened, work.frames, work.events, work.bytes)


@define
class _Work:
    """The sums of what was done."""

    progress: Callable[[int], None]
    segments: int = 0
    fresh: int = 0
    damaged: list[int] = field(factory=list)
    frames: int = 0
    events: int = 0
    bytes: int = 0

    def take(self, folder: Path, capture: Capture, segment: Segment) -> None:
        if SegmentColumns.of(capture, segment) is not None:
            self.fresh += 1
            return
        reader = capture.reader(segment)
        with _Files(folder, segment.number) as files:
            groups = []
            for group in _groups(reader, files):
                groups.append(group)
                self.frames += group.frames
                self.progress(self.frames)
            if reader.damage:
                self.damaged.append(segment.number)
                return
            self.bytes += files.finish(groups, SegmentIdentity.of(reader.data), Path(segment.path))
        self.segments += 1
        self.events += sum(group.events for group in groups)


def _tidy(folder: Path, numbers: set[int]) -> None:
    """Remove what killed decoders have left, and the columns of segments that are not there any more."""
    for table in TABLES:
        whole = {Path(columns_path(str(folder), table, number)).name for number in numbers}
        for path in folder.glob(f"{table}/*segment-*"):
            if path.name in whole:
                continue
            file = os.open(path, os.O_RDWR)
            try:
                if lock(file):
                    path.unlink(missing_ok=True)
            finally:
                os.close(file)


class _Chunk(NamedTuple):
    """Batches that are decoded together."""

    first: int
    after: int
    offset: int
    rows: pa.RecordBatch | None
    ended: bool


def _chunks(reader: SegmentReader) -> Iterator[_Chunk]:
    """The batches of a segment, some at a time."""
    first = after = offset = rows = size = 0
    waiting: list[pa.RecordBatch] = []
    for message in reader.messages():
        if after == first:
            offset = message.offset
        after = message.batch + 1
        if message.rows:
            waiting.append(reader.rows(message))
            rows, size = rows + message.rows, size + waiting[-1].nbytes
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield _Chunk(first, after, offset, pa.concat_batches(waiting), reader.ended)
            first, rows, size = after, 0, 0
            waiting.clear()
    if after > first:
        yield _Chunk(first, after, offset, pa.concat_batches(waiting) if waiting else None, reader.ended)


def _groups(reader: SegmentReader, files: _Files) -> Iterator[BatchGroup]:
    """Decodes a segment into files, and says what each group of rows in them is."""
    group: _Group | None = None
    for chunk in _chunks(reader):
        group = group or _Group(chunk.first, chunk.offset)
        group.add(chunk, files)
        if files.waiting_rows >= _ROWS_OF_GROUP or files.waiting_bytes >= _BYTES_OF_GROUP:
            yield group.finished(reader, files)
            group = None
    if group is not None:
        yield group.finished(reader, files)


@define
class _Group:
    """A group while it grows."""

    first: int
    offset: int
    after: int = 0
    frames: int = 0
    empty: int = 0
    refused: int = 0
    gaps: int = 0
    gap_rows: list[dict[str, Any]] = field(factory=list)
    ended: bool = False

    def add(self, chunk: _Chunk, files: _Files) -> None:
        self.after, self.ended = chunk.after, chunk.ended
        if chunk.rows is None:
            return
        gaps, samples = gap_rows(chunk.rows, _SAMPLES - len(self.gap_rows))
        self.gaps += gaps
        self.gap_rows += samples
        files.decoders.update(pc.unique(chunk.rows.column("protocol")).to_pylist())
        for made in decoded([chunk.rows]):
            self.frames += made.frames
            self.empty += made.empty
            self.refused += made.refused
            files.add("events", made.events)
            files.add("quarantine", made.quarantine)

    def finished(self, reader: SegmentReader, files: _Files) -> BatchGroup:
        events, quarantined = (files.flush(table) for table in ("events", "quarantine"))
        counts = self.frames, self.empty, self.refused, self.gaps
        ended = reader.metadata.get("capture_id") if self.ended else None
        return BatchGroup(self.first, self.after, self.offset, events, quarantined, *counts, self.gap_rows, ended)


class _Files:
    """The files of a segment while they are written, hidden until they are whole."""

    def __init__(self, folder: Path, segment: int) -> None:
        self.decoders: set[str] = set()
        self._token = secrets.token_hex(8)
        self._paths = {table: Path(columns_path(str(folder), table, segment)) for table in TABLES}
        self._hidden = {table: path.with_name(f".{path.stem}.{self._token}.new") for table, path in self._paths.items()}
        self._files: dict[str, Any] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[pa.RecordBatch]] = {table: [] for table in TABLES}

    def __enter__(self) -> Self:
        for table, path in self._hidden.items():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            lock(number)
            file = self._files[table] = os.fdopen(number, "wb")
            self._writers[table] = pq.ParquetWriter(
                file, _SCHEMAS[table], compression=_COMPRESSION[table], use_compliant_nested_type=False
            )
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._hidden.values():
            path.unlink(missing_ok=True)
        for writer in self._writers.values():
            with suppress(OSError, ValueError):  # a full disk, which has been said
                writer.close()
            writer.is_open = False
        for file in self._files.values():
            with suppress(OSError):
                file.close()

    @property
    def waiting_rows(self) -> int:
        """Rows of a table that are not written yet, of the table that has more."""
        counts: list[int] = [sum(rows.num_rows for rows in waiting) for waiting in self._waiting.values()]
        return max(counts)

    @property
    def waiting_bytes(self) -> int:
        """Their bytes, of both."""
        return sum(rows.nbytes for waiting in self._waiting.values() for rows in waiting)

    def add(self, table: str, rows: pa.RecordBatch) -> None:
        """Rows of a table."""
        if rows.num_rows:
            self._waiting[table].append(rows)

    def flush(self, table: str) -> int:
        """Write what waits as one group of rows, and tell how many they are."""
        waiting, self._waiting[table] = self._waiting[table], []
        rows: int = sum(batch.num_rows for batch in waiting)
        if rows:
            self._writers[table].write_table(pa.Table.from_batches(waiting), row_group_size=rows)
        return rows

    def finish(self, groups: Sequence[BatchGroup], identity: SegmentIdentity, segment: Path) -> int:
        """Give the files their names. Gives the number of their bytes."""
        stamp = ColumnStamp(identity, {name: decoder_version(name) for name in sorted(self.decoders)}, self._token, groups)
        size: int = 0
        for table, writer in self._writers.items():
            writer.add_key_value_metadata({KEY: stamp.to_json()})
            writer.close()
            file = self._files[table]
            file.flush()
            os.fsync(file.fileno())
            size += file.tell()
        for table in TABLES:
            self._hidden[table].rename(self._paths[table])
        if not segment.exists():  # retention was faster
            for path in self._paths.values():
                path.unlink(missing_ok=True)
        return size
