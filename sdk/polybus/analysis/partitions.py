"""Parquet files by date, protocol and the values of other columns, which are in the names of their folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from ..capture.store.compute import pc
from .storage import Storage

ROWS_AT_ONCE: Final = 50_000
"""Of a row group; so many at most are held in memory for each date and protocol of a task."""
BYTES_AT_ONCE: Final = 64 << 20
"""A row group is not larger, but for one batch: a row may have megabytes."""
BY_DATE: Final = ("date", "protocol")
"""Of the tables that a run makes."""
EMPTY: Final = "__HIVE_DEFAULT_PARTITION__"
"""In place of a value that is null, or has no letters."""


class PartitionWriter:
    """Writes rows of tables beneath a folder, a file for each partition."""

    def __init__(self, storage: Storage, staging: str) -> None:
        self.files: list[list[str]] = []
        """Partition and path, of each file."""
        self._storage = storage
        self._staging = staging
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._room: dict[str, list[int]] = {}  # rows and bytes that may still wait
        self._writers: dict[str, Any] = {}

    def add(self, table: str, rows: pa.RecordBatch, parts: Sequence[str]) -> None:
        """Some rows, by the columns `parts`."""
        for folder, part in _parts(rows, parts):
            place = "/".join(name for name in (table, folder) if name)
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
        """Write what waits, and close the files."""
        for place in list(self._waiting):
            self._flush(place)
        for writer in self._writers.values():
            writer.close()


def _parts(rows: pa.RecordBatch, parts: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by folder, without the columns that the folder says."""
    if not rows.num_rows:
        return
    keys = {name: pc.fill_null(rows.column(name).cast(pa.string()), "") for name in parts}
    plain = rows.drop_columns(list(parts))
    found = pa.table(keys).group_by(list(parts)).aggregate([])
    for key in found.to_pylist():
        folder = "/".join(f"{name}={_name(value)}" for name, value in key.items())
        if len(found) == 1:
            yield folder, plain
            return
        mask = pa.array([True] * rows.num_rows)
        for name, value in key.items():
            mask = pc.and_(mask, pc.equal(keys[name], value))
        yield folder, plain.filter(mask)


def _name(value: str) -> str:
    """A value as Spark writes such a name, and reads it: a capture may have been made by anybody."""
    return quote(value, safe="") or EMPTY
