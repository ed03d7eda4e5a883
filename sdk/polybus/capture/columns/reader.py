"""Reads the columns of segments: all or some columns, and all or some rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..store.reader import Capture, Segment
from .sizes import check_groups, check_size, unpacked_size
from .stamp import KEY, TABLES, BatchGroup, ColumnStamp, SegmentIdentity, columns_path

_ROWS: Final = 32_768


class SegmentColumns:
    def __init__(self, filesystem: pafs.FileSystem, paths: dict[str, str], stamp: ColumnStamp) -> None:
        self.paths: dict[str, str] = paths
        self.groups: Sequence[BatchGroup] = stamp.groups
        self._filesystem = filesystem
        self._stamp = stamp

    @classmethod
    def of(cls, capture: Capture, segment: Segment) -> Self | None:
        """Return the columns of a segment. Returns `None` if they do not exist or are out of date."""
        if not segment.sealed:
            return None
        files = capture.filesystem
        folder = segment.path.rpartition("/")[0]
        paths = {table: columns_path(folder, table, segment.number) for table in TABLES}
        stamps = [_stamp(files, path) for path in paths.values()]
        last = stamps[-1]
        if last is None or any(stamp is None or stamp.token != last.token for stamp in stamps):
            return None
        try:
            return cls(files, paths, last) if last.is_fresh(SegmentIdentity.of(files, segment.path)) else None
        except OSError:  # removed by retention: the segment's reader reports it
            return None

    def within(self, first: int, stop: int | None) -> list[BatchGroup]:
        """Return the groups within a range of batches, from `first` up to, but not including, `stop`."""
        return [group for group in self.groups if group.first >= first and (stop is None or group.after <= stop)]

    def following(self, group: BatchGroup) -> BatchGroup | None:
        place = self.groups.index(group) + 1
        return self.groups[place] if place < len(self.groups) else None

    def read(
        self, table: str, groups: Sequence[BatchGroup], columns: Sequence[str] | None = None, condition: Any = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of a table for the rows that match. Raises `CaptureError` if they are too large when unpacked."""
        schema, here = TABLES[table], self._stamp.row_groups(table, groups)
        schema = schema if columns is None else pa.schema([schema.field(name) for name in columns], schema.metadata)
        if not here:
            return
        path = self.paths[table]
        # A value that a file holds once, for all its rows, stays one until its size is known.
        form = pads.ParquetFileFormat(read_options=pads.ParquetReadOptions(dictionary_columns=_texts(schema)))
        fragment = form.make_fragment(path, self._filesystem, row_groups=here)
        check_groups(self._filesystem, path, fragment.metadata, here, set(schema.names))
        scanner = pads.Scanner.from_fragment(
            fragment, columns=schema.names, filter=condition, batch_size=_ROWS, use_threads=False
        )
        size = 0
        for batch in scanner.to_batches():
            if batch.num_rows:
                taken = sum(map(unpacked_size, batch.columns))
                size += taken
                check_size(taken, 1, path)
                check_size(size, len(here), path)
                unpacked = [column.cast(kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(unpacked, schema=schema)


def _texts(schema: pa.Schema) -> list[str]:
    lists = {field.name: field.type.value_type for field in schema if pa.types.is_list(field.type)}
    kinds = {field.name: field.type for field in schema}
    kinds |= {f"{name}.list.{inner}": kind for name, kind in lists.items() for inner in ("item", "element")}
    return [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_binary(kind)]


def _stamp(files: pafs.FileSystem, path: str) -> ColumnStamp | None:
    try:
        metadata = pq.read_metadata(path, filesystem=files).metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return ColumnStamp.from_json(metadata.get(KEY, b""))
