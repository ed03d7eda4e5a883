"""Storage of tables: a folder on this machine, or any place that `pyarrow.fs` reaches; and the writer of their files."""

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
from polybus.capture.store.filesystems import AnyPath, find_filesystem, naming
from polybus.capture.store.segments import lock

from ..capture.store.compute import pc

ROWS_AT_ONCE: Final = 50_000
"""Of a row group; so many at most are held in memory for each date and protocol of a task."""
BYTES_AT_ONCE: Final = 64 << 20
"""A row group is not larger, but for one batch: a row may have megabytes."""
BY_DATE: Final = ("date", "protocol")
"""Of the tables that a run makes."""
_OF_ROWS: Final = ("id", "correlation_id", "reply_to", "data")
"""Columns of which rows have values of their own: a dictionary would make them larger, and the check of a file read them."""
_EMPTY: Final = "__HIVE_DEFAULT_PARTITION__"
"""In place of a value that is null, or has no letters."""


def absolute(path: str) -> str:
    """As a worker, whose folder may be another, finds it."""
    return path if "://" in path else os.path.abspath(path)


def _within(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise CaptureError(f"{path!r:.200} leads out of the folder of results")
    return path


class TableStorage:
    """A folder here, or at a URI (``hdfs://...``, ``s3://...``, ``s3a://...``).

    Raises:
        CaptureError: The URI is not understood, or nothing there answers.
        OSError: Of its methods: that was not possible.
    """

    def __init__(self, path: AnyPath) -> None:
        given = os.fspath(path)
        self.filesystem: Any
        self.filesystem, self._root = find_filesystem(given)
        self.local: bool = isinstance(self.filesystem, pafs.LocalFileSystem)
        # Hadoop's name for what pyarrow knows as s3, whose options come after a question mark.
        plain = given.partition("?")[0].rstrip("/").replace("s3://", "s3a://", 1)
        self._for_spark = f"file://{self._root}" if self.local else plain
        self._uri = urlsplit(given)
        self._checked = set[str]()

    def inside(self, path: str) -> str:
        """A path of this storage for `pyarrow`.

        Raises:
            CaptureError: It leads out of it.
        """
        return f"{self._root}/{_within(path)}" if path else self._root

    def for_spark(self, path: str) -> str:
        """The same for Spark."""
        return f"{self._for_spark}/{_within(path)}" if path else self._for_spark

    def to_read(self, path: str) -> str:
        """The same where Spark takes patterns: what would be one in the name of a folder is none."""
        return re.sub(r"([\\\[\]{}*?])", r"\\\1", self.for_spark(path))

    def for_delta(self, path: str) -> tuple[str, dict[str, str]]:
        """The same for `deltalake`, with the options of the URI as it calls them."""
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
        """Keep other runs out that ask for it, while this process lives; `waits` is called where another one holds it.

        Only of folders on this machine, and not on Windows.
        """
        with naming(self._root), ExitStack() as stack:
            if self.local:
                self._make_root()
            if self.local and os.name != "nt":
                folder = os.open(self._root, os.O_RDONLY)
                stack.callback(os.close, folder)
                if lock(folder) is False:
                    waits()
                    lock(folder, wait=True)
            yield

    def _make_root(self) -> None:
        try:
            os.makedirs(self._root, 0o700, exist_ok=True)  # what is in captures is private
        except OSError as error:  # of the part that could not be made: nobody has named that one
            raise OSError(error.errno, os.strerror(error.errno or 0), self._root) from error

    def files(self, path: str) -> list[str]:
        """All files beneath a folder, relative to the root; none where there is no such folder."""
        found = self.filesystem.get_file_info(pafs.FileSelector(self.inside(path), allow_not_found=True, recursive=True))
        prefix = len(self._root) + 1
        return sorted(info.path[prefix:] for info in found if info.type == pafs.FileType.File)

    def check(self, path: str) -> None:
        """Check a Parquet file that anybody may have written, before it is read for the first time.

        Raises:
            CaptureError: It unpacks to more than any file of ours; it is damaged.
        """
        if path not in self._checked:
            check_file(self.filesystem, self.inside(path))
            self._checked.add(path)

    def rows(self, path: str) -> int:
        """Number of rows of a Parquet file."""
        return int(pq.read_metadata(self.inside(path), filesystem=self.filesystem).num_rows)

    def span(self, path: str, column: str) -> tuple[int, int]:
        """The least and the most of a column of whole numbers of a Parquet file, by what the file says itself.

        Raises:
            CaptureError: It unpacks to more than any file of ours; it is damaged, or has no such column.
        """
        self.check(path)
        found, file = list[int](), pq.read_metadata(self.inside(path), filesystem=self.filesystem)
        columns = [leaf.path for leaf in map(file.schema.column, range(len(file.schema)))]
        if column not in columns:
            raise CaptureError(f"{self.inside(path)} has no column {column}: polybus analyse has not made it")
        place = columns.index(column)
        for number in range(file.num_row_groups):
            statistics = file.row_group(number).column(place).statistics
            if statistics is not None and statistics.has_min_max:
                found += (int(statistics.min), int(statistics.max))
        return min(found, default=0), max(found, default=0)

    def values(self, path: str, column: str) -> set[Any]:
        """Values of a column of a Parquet file."""
        with pq.ParquetFile(self.inside(path), filesystem=self.filesystem) as file:
            return {value for rows in file.iter_batches(columns=[column]) for value in pc.unique(rows.column(0)).to_pylist()}

    def names(self) -> list[str]:
        """Names at the root.

        Raises:
            CaptureError: It is a file.
        """
        if self.filesystem.get_file_info(self._root).type == pafs.FileType.File:
            raise CaptureError(f"{self._root} is a file, and results need a folder: choose another place")
        found = self.filesystem.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def read(self, path: str) -> bytes:
        """A file as a whole."""
        with self.filesystem.open_input_stream(self.inside(path)) as file:
            return bytes(file.read())

    def write(self, path: str, data: bytes) -> None:
        """A file as a whole, under its name only when all of it is there."""
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
        """Give a file another place."""
        self.filesystem.create_dir(self.inside(new).rpartition("/")[0], recursive=True)
        self.filesystem.move(self.inside(old), self.inside(new))

    def remove(self, path: str) -> None:
        """A file or a folder, if it is there."""
        kind = self.filesystem.get_file_info(self.inside(path)).type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.inside(path))
        elif kind == pafs.FileType.File:
            self.filesystem.delete_file(self.inside(path))


def rows_of(storage: TableStorage, folder: str, files: Sequence[str], schema: pa.Schema) -> Any:
    """The rows of files of a table, whose folders say values of columns, for Arrow."""
    if not files:
        return schema.empty_table()
    folders = [part.partition("=")[0] for part in files[0].split("/") if "=" in part]
    partitions = pads.partitioning(pa.schema([schema.field(name) for name in folders if name in schema.names]), flavor="hive")
    paths, root = [storage.inside(name) for name in files], storage.inside(folder)
    form: dict[str, Any] = {"schema": schema, "format": "parquet", "filesystem": storage.filesystem}
    return pads.dataset(paths, **form, partitioning=partitions, partition_base_dir=root)


class PartitionWriter:
    """Writes rows of tables beneath a folder, a file for each partition."""

    def __init__(self, storage: TableStorage, staging: str) -> None:
        self.files: list[list[Any]] = []
        """Partition, path and number of rows, of each file."""
        self._storage = storage
        self._staging = staging
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._room: dict[str, list[int]] = {}  # rows and bytes that may still wait
        self._writers: dict[str, tuple[Any, list[Any]]] = {}

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
        """Write what waits, and close the files."""
        for place in list(self._waiting):
            self._flush(place)
        for writer, _ in self._writers.values():
            writer.close()


def _parts(rows: pa.RecordBatch, parts: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by folder, without the columns that the folder says."""
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
    """A value as Spark writes such a name, and reads it: a capture may have been made by anybody."""
    return quote(value, safe="") or _EMPTY


def values_of(name: str) -> dict[str, str | None]:
    """The values of columns that the folders of a file say."""
    parts = (folder.partition("=") for folder in name.split("/")[:-1] if "=" in folder)
    return {column: None if value == _EMPTY else unquote(value) for column, _, value in parts}
