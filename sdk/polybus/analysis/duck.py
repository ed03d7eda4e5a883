"""The engine of one machine: DuckDB, within this process and without Java."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads

from polybus.capture.store.filesystems import AnyPath
from polybus.capture.store.reader import Capture

from .ingest import IngestResult
from .manifest import TABLES, Output
from .partitions import PartitionWriter
from .ranges import Range, ReadWindow
from .storage import Storage
from .tables import SCHEMAS
from .workers import take_all

MUCH: Final = 16 << 20
"""Bytes of segments, two seconds of decoding, from which on it is worth while to start processes for it."""
BATCH: Final = 50_000
"""Rows of a result that are taken from DuckDB at a time."""
_AS_SPARK: Final = (
    "create macro div(whole, part) as whole // part",
    "create macro timestamp_micros(micros) as make_timestamp(micros)",
    "set default_null_order = 'nulls_first_on_asc_last_on_desc'",
)
"""Names and an order that are those of Spark."""


class DuckEngine:
    """Runs the pipeline by DuckDB, on all cores of this machine: what does not fit memory goes to a folder meanwhile.

    A context manager, at whose end that folder is removed. Nothing is downloaded, and nothing listens.

    Args:
        memory: At most so much of it, ``4GB``; when None 80 % of what there is.
        threads: At most so many; all cores when None.
        spill: The folder for what does not fit; when None a new one among the temporary files, of this user alone.
    """

    at_once: int = 1

    def __init__(self, *, memory: str | None = None, threads: int | None = None, spill: str | None = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="polybus-duckdb-") if spill is None else spill
        self._cores = (os.cpu_count() or 1) if threads is None else threads
        given: dict[str, Any] = {"memory_limit": memory, "threads": threads}
        settings = {name: value for name, value in given.items() if value is not None}
        fixed: dict[str, Any] = {
            "temp_directory": self._folder,
            "autoinstall_known_extensions": False,
            "preserve_insertion_order": False,
        }
        self._connection: Any = duckdb.connect(config={**fixed, **settings})
        for text in _AS_SPARK:
            self._connection.execute(text)
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Forget all tables, and remove what DuckDB has put aside."""
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def take(self, capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow) -> list[IngestResult]:
        """Decode ranges of a capture into files of the staging folder."""
        numbers = {piece.start.segment for piece in ranges}
        size = sum(one.size for one in Capture(capture).segments(complete=False) if one.number in numbers)
        count = min(self._cores, len(ranges)) if size >= MUCH else 1
        return take_all(capture, out, staging, ranges, window, count)

    def read(self, storage: Storage, folder: str, files: Sequence[str], schema: pa.Schema) -> str:
        """Parquet files of a folder, whose names hold values of columns, as a table."""
        return self._named(rows_of(storage, folder, files, schema))

    def hand(self, rows: pa.Table | pa.RecordBatchReader) -> str:
        """Some rows as a table; those of a reader can be read once."""
        return self._named(rows)

    @contextmanager
    def kept(self, table: str) -> Iterator[str]:
        """A table as it is now, worked out once for several queries."""
        name = self._name()
        self._connection.execute(f"create table {name} as from {table}")
        yield name
        self._connection.execute(f"drop table {name}")

    def sql(self, text: str, **tables: str) -> str:
        """The answer of a query as a table, which is worked out when it is read."""
        name = self._name()
        # The one word that stands elsewhere in Spark.
        text = text.replace(") ignore nulls over", " ignore nulls) over")
        self._connection.execute(f"create view {name} as {text.format(**tables)}")
        return name

    def rows(self, table: str) -> pa.Table:
        """The rows of a table."""
        return self._connection.sql(f"from {table}").to_arrow_table()

    def write(self, table: str, storage: Storage, folder: str, schema: pa.Schema, parts: Sequence[str]) -> None:
        """Write a table as Parquet beneath a folder, by the columns `parts`."""
        writer = PartitionWriter(storage, folder)
        for rows in self.batches(table, schema):
            writer.add("", rows, parts)
        writer.close()

    def batches(self, table: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a table piece by piece, with the columns of a schema."""
        for rows in self._connection.sql(f"select {', '.join(schema.names)} from {table}").to_arrow_reader(BATCH):
            yield rows.cast(schema)

    def _named(self, rows: Any) -> str:
        name = self._name()
        self._connection.register(name, rows)
        return name

    def _name(self) -> str:
        return f"table_{next(self._numbers)}"


def open_tables(out: AnyPath) -> duckdb.DuckDBPyConnection:
    """A connection of DuckDB that has the tables of results: ``events``, ``exchanges``, ``orphans`` and ``quarantine``.

    They are made of the files that the manifests name: what a killed run has left is not among them.

    Args:
        out: The folder of results.

    Raises:
        CaptureError: `out` is no such folder.
    """
    output = Output.of(out)
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    for name in TABLES:
        connection.register(name, rows_of(output.storage, name, output.files(name), SCHEMAS[name]))
    return connection


def rows_of(storage: Storage, folder: str, files: Sequence[str], schema: pa.Schema) -> Any:
    """Parquet files of a folder, whose names hold values of columns, to be read when somebody asks."""
    if not files:
        return schema.empty_table()
    folders = [part.partition("=")[0] for part in files[0].split("/") if "=" in part]
    partitions = pads.partitioning(pa.schema([schema.field(name) for name in folders if name in schema.names]), flavor="hive")
    paths, root = [storage.inside(name) for name in files], storage.inside(folder)
    form: dict[str, Any] = {"schema": schema, "format": "parquet", "filesystem": storage.filesystem}
    return pads.dataset(paths, **form, partitioning=partitions, partition_base_dir=root)
