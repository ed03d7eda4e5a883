"""Storage for tables, in a local folder or any location that `pyarrow.fs` supports, and the writer of table files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from polybus.capture.columns.sizes import check_file
from polybus.capture.errors import CaptureError
from polybus.capture.paths import folder_path
from polybus.capture.store.filesystems import AnyPath, find_filesystem, naming
from polybus.capture.store.segments import lock

from ..capture.store.compute import pc

ROWS_AT_ONCE: Final = 50_000
"""Maximum rows per row group, and maximum rows that a task keeps in memory per date and protocol."""
BYTES_AT_ONCE: Final = 64 << 20
"""Maximum bytes per row group, plus one batch. A single row may have megabytes."""
BY_DATE: Final = ("date", "protocol")
_OF_ROWS: Final = ("id", "correlation_id", "reply_to", "data")
"""Columns with a different value in each row. A dictionary would make them larger and slow down file checks."""
_EMPTY: Final = "__HIVE_DEFAULT_PARTITION__"
"""Replacement for null or empty values."""


def absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _within(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise CaptureError(f"{path!r:.200} is outside the results folder")
    return path


class TableStorage:
    """A local folder, or a folder at a URI (``hdfs://...``, ``s3://...``, ``s3a://...``).

    Raises:
        CaptureError: If the URI is invalid or the server does not respond.
        OSError: Raised by the methods if an operation fails.
    """

    def __init__(self, path: AnyPath) -> None:
        given = folder_path(path, "out")
        self.filesystem: Any
        self.filesystem, self._root = find_filesystem(given)
        self.local: bool = isinstance(self.filesystem, pafs.LocalFileSystem)
        # Hadoop's name for pyarrow's s3, which has its options after a question mark.
        plain = given.partition("?")[0].rstrip("/").replace("s3://", "s3a://", 1)
        self._for_spark = f"file://{self._root}" if self.local else plain
        self._uri = urlsplit(given)
        self._checked = set[str]()

    def inside(self, path: str) -> str:
        """Return a path for `pyarrow`. Raises `CaptureError` if the path leads out of the storage."""
        return f"{self._root}/{_within(path)}" if path else self._root

    def for_spark(self, path: str) -> str:
        return f"{self._for_spark}/{_within(path)}" if path else self._for_spark

    def to_read(self, path: str) -> str:
        """Return a path for Spark functions that accept patterns, with pattern characters escaped."""
        return re.sub(r"([\\\[\]{}*?])", r"\\\1", self.for_spark(path))

    def for_delta(self, path: str) -> tuple[str, dict[str, str]]:
        """Return a path for `deltalake`, with the URI's options under the names that `deltalake` uses."""
        if self.local:
            return self.inside(path), {}
        said, options = dict(parse_qsl(self._uri.query)), dict[str, str]()
        if self._uri.scheme in ("s3", "s3a"):
            scheme = said.get("scheme", "https")
            options |= {"AWS_REGION": self.filesystem.region, "AWS_ALLOW_HTTP": str(scheme == "http").lower()}
            if place := said.get("endpoint_override"):
                options["AWS_ENDPOINT_URL"] = f"{scheme}://{place}"
            if self._uri.username and self._uri.password:
                options |= {"AWS_ACCESS_KEY_ID": unquote(self._uri.username)}
                options |= {"AWS_SECRET_ACCESS_KEY": unquote(self._uri.password)}
        host = self._uri.netloc.rpartition("@")[2]
        return f"{self._uri.scheme}://{host}{self._uri.path.rstrip('/')}/{_within(path)}", options

    @contextmanager
    def alone(self, waits: Callable[[], None]) -> Iterator[None]:
        """Keep other runs out of a local folder (not on Windows). `waits` is called if this run has to wait."""
        with naming(self._root), ExitStack() as stack:
            if self.local:
                try:
                    os.makedirs(self._root, 0o700, exist_ok=True)  # captures contain private data
                except OSError as error:  # names the root, not the part that failed
                    raise OSError(error.errno, os.strerror(error.errno or 0), self._root) from error
            if self.local and os.name != "nt":
                folder = os.open(self._root, os.O_RDONLY)
                stack.callback(os.close, folder)
                if lock(folder) is False:
                    waits()
                    lock(folder, wait=True)
            yield

    def files(self, path: str) -> list[str]:
        found = self.filesystem.get_file_info(pafs.FileSelector(self.inside(path), allow_not_found=True, recursive=True))
        prefix = len(self._root) + 1
        return sorted(info.path[prefix:] for info in found if info.type == pafs.FileType.File)

    def check(self, path: str) -> None:
        """Raise `CaptureError` if a Parquet file is corrupt, or larger when unpacked than any file that polybus writes."""
        if path not in self._checked:
            check_file(self.filesystem, self.inside(path))
            self._checked.add(path)

    def rows(self, path: str) -> int:
        return int(pq.read_metadata(self.inside(path), filesystem=self.filesystem).num_rows)

    def span(self, path: str, column: str) -> tuple[int, int]:
        """Return the minimum and maximum of an integer column from the statistics of a checked file."""
        self.check(path)
        file = pads.ParquetFileFormat().make_fragment(self.inside(path), self.filesystem)
        if column not in file.physical_schema.names:
            raise CaptureError(f"{self.inside(path)} has no column {column}: polybus analyse did not write it")
        found = [group.statistics[column] for group in file.row_groups if column in group.statistics]
        return min((one["min"] for one in found), default=0), max((one["max"] for one in found), default=0)

    def values(self, path: str, column: str) -> set[Any]:
        with pq.ParquetFile(self.inside(path), filesystem=self.filesystem) as file:
            return {value for rows in file.iter_batches(columns=[column]) for value in pc.unique(rows.column(0)).to_pylist()}

    def names(self) -> list[str]:
        if self.filesystem.get_file_info(self._root).type == pafs.FileType.File:
            raise CaptureError(f"{self._root} is a file, and results need a folder: choose another path")
        found = self.filesystem.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def read(self, path: str) -> bytes:
        with self.filesystem.open_input_stream(self.inside(path)) as file:
            return bytes(file.read())

    def write(self, path: str, data: bytes) -> None:
        place = self.inside(path)
        self.filesystem.create_dir(place.rpartition("/")[0], recursive=True)
        if self.local:
            with open(place + ".new", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        else:
            with self.filesystem.open_output_stream(place + ".new") as stream:
                stream.write(data)
        self.filesystem.move(place + ".new", place)

    def move(self, old: str, new: str) -> None:
        self.filesystem.create_dir(self.inside(new).rpartition("/")[0], recursive=True)
        self.filesystem.move(self.inside(old), self.inside(new))

    def remove(self, path: str) -> None:
        kind = self.filesystem.get_file_info(self.inside(path)).type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.inside(path))
        elif kind == pafs.FileType.File:
            self.filesystem.delete_file(self.inside(path))


def rows_of(storage: TableStorage, folder: str, files: Sequence[str], schema: pa.Schema) -> Any:
    if not files:
        return schema.empty_table()
    folders = [part.partition("=")[0] for part in files[0].split("/") if "=" in part]
    partitions = pads.partitioning(pa.schema([schema.field(name) for name in folders if name in schema.names]), flavor="hive")
    paths, root = [storage.inside(name) for name in files], storage.inside(folder)
    form: dict[str, Any] = {"schema": schema, "format": "parquet", "filesystem": storage.filesystem}
    return pads.dataset(paths, **form, partitioning=partitions, partition_base_dir=root)


class PartitionWriter:
    def __init__(self, storage: TableStorage, staging: str) -> None:
        self.files: list[list[Any]] = []
        """The partition, path and number of rows of each file."""
        self._storage = storage
        self._staging = staging
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._room: dict[str, list[int]] = {}  # rows and bytes that may still wait
        self._writers: dict[str, tuple[Any, list[Any]]] = {}

    def add(self, table: str, rows: pa.RecordBatch, parts: Sequence[str]) -> None:
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
        if place not in self._writers:
            name, files = f"{self._staging}/{place}/part.parquet", self._storage.filesystem
            files.create_dir(self._storage.inside(f"{self._staging}/{place}"), recursive=True)
            alike: Any = [name for name in table.schema.names if name not in _OF_ROWS]
            form: dict[str, Any] = {"filesystem": files, "compression": "zstd", "use_dictionary": alike}
            writer = pq.ParquetWriter(self._storage.inside(name), table.schema, **form)
            self._writers[place] = writer, [place, name, 0]
            self.files.append(self._writers[place][1])
        writer, told = self._writers[place]
        writer.write_table(table)
        told[2] += table.num_rows

    def close(self) -> None:
        for place in list(self._waiting):
            self._flush(place)
        for writer, _ in self._writers.values():
            writer.close()


def _parts(rows: pa.RecordBatch, parts: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows grouped by folder, without the columns that are in the folder's name."""
    if not rows.num_rows:
        return
    if not parts:
        yield "", rows
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
    """Encode a value for a folder name as Spark does, because a capture may contain any text."""
    return quote(value, safe="") or _EMPTY


def values_of(name: str) -> dict[str, str | None]:
    parts = (folder.partition("=") for folder in name.split("/")[:-1] if "=" in folder)
    return {column: None if value == _EMPTY else unquote(value) for column, _, value in parts}
