"""Writes the columns of segments, decoded once for all readers. A file appears only when it is complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field

from ..decoding import decoded
from ..errors import CaptureError
from ..paths import folder_path
from ..store.compute import pc
from ..store.filesystems import AnyPath, naming
from ..store.reader import Capture, Segment
from ..store.segments import SegmentReader, lock, locked
from .reader import SegmentColumns
from .stamp import KEY, TABLES, BatchGroup, ColumnStamp, SegmentIdentity, columns_path, decoder_version, gap_rows, rows_of

_ROWS_OF_GROUP: Final = 65_536
"""Maximum rows of a row group. Twice as many would need 60 MB more memory while writing, and more disk space."""
_BYTES_OF_GROUP: Final = 64 << 20
"""Maximum bytes of frames in a row group, plus one batch. A single frame may have megabytes."""
_SAMPLES: Final = 100
"""Maximum gap rows listed per group. All gap rows are counted."""
_COMPRESSION: Final[Any] = {
    table: {name: "zstd" if name in ("data", "raw") else "lz4" for name in schema.names} for table, schema in TABLES.items()
}
"""Compression by column. Bodies shrink most and are read least often."""
_ASCENDING: Final = ("seq", "time", "time_ns", "ts_ns", "mono_ns", "expires_at", "deadline_ns")
"""Columns written as differences, which makes files two fifths smaller and slows down neither polybus nor Spark."""


@define
class DecodedCapture:
    """Result of `write_columns`.

    Attributes:
        segments: Number of segments decoded by this call.
        fresh: Number of segments that had already been decoded.
        damaged: Numbers of corrupt segments. They get no columns, so that their readers count the missing frames.
        busy: Number of segments that another process is decoding.
        open: Number of segments that have a writer or were left by a killed recorder.
        frames, events: Number of frames and events in the segments decoded by this call.
        bytes: Size of their column files.
    """

    segments: int = 0
    fresh: int = 0
    damaged: list[int] = field(factory=list)
    busy: int = 0
    open: int = 0
    frames: int = 0
    events: int = 0
    bytes: int = 0


def write_columns(path: AnyPath, progress: Callable[[int], None] | None = None) -> DecodedCapture:
    """Decode the sealed segments of a capture that are not decoded yet, and write the events next to them.

    Other processes may record to the folder, read it or decode it at the same time, because each segment is decoded by only one
    process. The newest segments are decoded first, because retention removes the oldest first.

    Args:
        path: The capture, which must be a folder on this machine.
        progress: Called occasionally with the number of frames decoded.

    Raises:
        CaptureError: If `path` is not a capture, is on another machine, or has a segment of an unknown version.
        TypeError, ValueError: If `path` is not the path of a folder.
        OSError: If the columns cannot be written.
    """
    if "://" in (given := folder_path(path)):
        raise CaptureError(f"{given}: columns can only be written to a folder on this machine; copy them from there")
    capture, folder, done = Capture(given), Path(given), DecodedCapture()
    segments = capture.segments(complete=False)
    _tidy(folder, {segment.number for segment in segments})
    for segment in reversed(segments):
        if not segment.sealed:
            done.open += 1
            continue
        try:
            with naming(folder):
                _decode(capture, segment, folder, done, progress or (lambda frames: None))
        except (CaptureError, FileNotFoundError):
            if Path(segment.path).exists():  # otherwise removed by retention
                raise
    done.damaged.reverse()
    return done


def _decode(capture: Capture, segment: Segment, folder: Path, done: DecodedCapture, progress: Callable[[int], None]) -> None:
    if SegmentColumns.of(capture, segment) is not None:
        done.fresh += 1
        return
    with _claimed(segment) as ours:
        if not ours:
            done.busy += 1
        elif SegmentColumns.of(capture, segment) is not None:  # just now
            done.fresh += 1
        elif capture.reader(segment).all_damage():
            done.damaged.append(segment.number)
        else:
            _write(capture, segment, folder, done, progress)


@contextmanager
def _claimed(segment: Segment) -> Iterator[bool]:
    """Claim a segment. Yields False if another process is decoding it. Without locks, several processes may decode it."""
    with ExitStack() as stack:
        try:
            _, ours = stack.enter_context(locked(segment.path))
        except OSError:  # locks need write access
            ours = True
        yield ours is not False


def _write(capture: Capture, segment: Segment, folder: Path, done: DecodedCapture, progress: Callable[[int], None]) -> None:
    groups: list[BatchGroup] = []
    with _Files(folder, segment.number) as files:
        for batches in _groups(capture.reader(segment)):
            groups.append(files.write(batches))
            progress(done.frames + sum(group.frames for group in groups))
        done.bytes += files.finish(groups, SegmentIdentity.of(capture.filesystem, segment.path), Path(segment.path))
    done.segments += 1
    done.frames += sum(group.frames for group in groups)
    done.events += sum(group.events for group in groups)


def _tidy(folder: Path, numbers: set[int]) -> None:
    for table in TABLES:
        whole = {Path(columns_path(str(folder), table, number)).name for number in numbers}
        for path in folder.glob(f"{table}/*segment-*"):
            if path.name not in whole:
                with suppress(FileNotFoundError), locked(path) as (_, ours):  # another decoder may be faster, or rename it
                    if ours:
                        path.unlink(missing_ok=True)


@define
class _Batches:
    first: int
    offset: int
    after: int = 0
    rows: list[pa.RecordBatch] = field(factory=list)
    ended: str | None = None
    seq: int = 0
    """Number after the last row."""


def _groups(reader: SegmentReader) -> Iterator[_Batches]:
    group, rows, size = None, 0, 0
    for message in reader.messages():
        group = group or _Batches(message.batch, message.offset)
        group.after, group.seq = message.batch + 1, message.seq + message.rows
        group.ended = reader.metadata.get("capture_id") if reader.ended else None
        if message.rows:
            group.rows.append(reader.rows(message))
            rows, size = rows + message.rows, size + group.rows[-1].nbytes
        if rows >= _ROWS_OF_GROUP or size >= _BYTES_OF_GROUP:
            yield group
            group, rows, size = None, 0, 0
    if group is not None:
        yield group


class _Files:
    def __init__(self, folder: Path, segment: int) -> None:
        self._protocols: set[str] = set()
        self._token = secrets.token_hex(8)
        self._paths = {table: Path(columns_path(str(folder), table, segment)) for table in TABLES}
        self._hidden = {table: path.with_name(f".{path.stem}.{self._token}.new") for table, path in self._paths.items()}
        self._files: dict[str, Any] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> Self:
        try:
            for table, schema in TABLES.items():
                self._begin(table, schema)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self, table: str, schema: pa.Schema) -> None:
        path = self._hidden[table]
        path.parent.mkdir(mode=0o700, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        lock(number)
        self._files[table] = os.fdopen(number, "wb")
        form: Any = {"use_dictionary": [name for name in schema.names if name not in _ASCENDING]}
        form["column_encoding"] = {name: "DELTA_BINARY_PACKED" for name in schema.names if name in _ASCENDING}
        form |= {"compression": _COMPRESSION[table], "use_compliant_nested_type": False}
        self._writers[table] = pq.ParquetWriter(self._files[table], schema, **form)

    def __exit__(self, *_: object) -> None:
        for path in self._hidden.values():
            path.unlink(missing_ok=True)
        for writer in self._writers.values():
            with suppress(OSError, ValueError):  # a full disk, already reported
                writer.close()
            writer.is_open = False
        for file in self._files.values():
            with suppress(OSError):
                file.close()

    def write(self, batches: _Batches) -> BatchGroup:
        gaps, samples = 0, list[dict[str, Any]]()
        for rows in batches.rows:
            self._protocols.update(pc.unique(rows.column("protocol").drop_null()).to_pylist())
            found, more = gap_rows(rows, _SAMPLES - len(samples))
            gaps, samples = gaps + found, samples + more
        parts = list(decoded(batches.rows))
        sizes = {}
        for table, schema in TABLES.items():
            whole = pa.Table.from_batches([getattr(part, table) for part in parts], schema=schema)
            sizes[table] = whole.num_rows
            if whole.num_rows:
                self._writers[table].write_table(whole, row_group_size=whole.num_rows)
        frames, empty, refused = (sum(getattr(part, name) for part in parts) for name in ("frames", "empty", "refused"))
        counts = sizes["events"], sizes["quarantine"], frames, empty, refused, gaps
        numbers = rows_of(batches.rows) or (batches.ended, batches.seq, batches.seq)
        return BatchGroup(batches.first, batches.after, batches.offset, *counts, samples, batches.ended, numbers)

    def finish(self, groups: Sequence[BatchGroup], identity: SegmentIdentity, segment: Path) -> int:
        stamp = ColumnStamp(identity, {name: decoder_version(name) for name in sorted(self._protocols)}, self._token, groups)
        size: int = 0
        for table, writer in self._writers.items():
            writer.add_key_value_metadata({KEY: msgspec.json.encode(stamp)})
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
