"""Engines, which run the pipeline's SQL, and the DuckDB engine, which runs in this process and without Java."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import attrs
import pyarrow as pa

from polybus.capture.paths import folder_path
from polybus.capture.schema import EVENTS, EXCHANGES
from polybus.capture.store.filesystems import AnyPath
from polybus.capture.store.reader import Capture

from ..capture.store.compute import pc
from ..plugins.tools import check_count, check_type, shown
from .clocks import LAST_NS, Holes, Watermarks, joined
from .correlation import MatchTimeouts, closes_of, exchanges_of, fold, turns_of
from .ingest import IngestResult, take_all
from .ranges import Range, RangeReader, ReadPosition, ReadWindow, plan
from .results import TABLES, Output
from .storage import PartitionWriter, TableStorage, rows_of

if TYPE_CHECKING:
    import duckdb


class Engine(Protocol):
    """Runs the SQL of `polybus.analysis`, and decodes ranges of captures."""

    def take(self, capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow) -> list[IngestResult]:
        """Decode ranges of a capture into files of the staging folder."""
        ...

    def read(self, storage: TableStorage, folder: str, files: Sequence[str], schema: pa.Schema) -> Any:
        """Return Parquet files in a folder as a table, with additional columns from the folder names."""

    def hand(self, rows: pa.Table) -> Any: ...

    def sql(self, text: str, **tables: Any) -> Any:
        """Return the result of a query as a table. Table names in the query are in braces."""

    def kept(self, table: Any) -> AbstractContextManager[Any]:
        """Compute a table once, for use in several queries."""
        ...

    def rows(self, table: Any) -> pa.Table: ...

    def write(self, table: Any, storage: TableStorage, folder: str, schema: pa.Schema, parts: Sequence[str]) -> None:
        """Write a table as Parquet to a folder, partitioned by the columns in `parts`."""


_CONFIG: Final[dict[str, Any]] = {"autoinstall_known_extensions": False, "TimeZone": "UTC"}
MUCH: Final = 16 << 20
"""From this size of segments in bytes on, processes are started. Decoding this much takes about two seconds."""
BATCH: Final = 50_000
_AS_SPARK: Final = (
    "create macro div(whole, part) as whole // part",
    "create macro sequence(first, last) as generate_series(first, last)",
    "create macro explode(list) as unnest(list)",
    "create macro timestamp_micros(micros) as make_timestamp(micros)",
    "set default_null_order = 'nulls_first_on_asc_last_on_desc'",
)
"""Settings for names and sort order that behave as in Spark."""


class DuckEngine(Engine):
    """Runs the pipeline on DuckDB, using all cores of this machine. Data that does not fit into memory is written to a folder.

    As a context manager, the engine closes on exit. It makes no network connections.

    Args:
        memory: Memory limit, for example ``4GB``. Defaults to 80 % of the machine's memory.
        threads: Maximum number of threads. Defaults to the number of cores.
        spill: Folder for data that does not fit into memory. The engine writes to a new folder in it, and removes only that
            one. Defaults to the folder for temporary files.

    Raises:
        TypeError, ValueError: If an argument is invalid.
        OSError: If the folder cannot be created.
    """

    def __init__(self, *, memory: str | None = None, threads: int | None = None, spill: str | None = None) -> None:
        import duckdb

        check_type(memory, str, "memory", "memory='4GB'")
        if threads is not None:
            check_count(threads, "threads")
        if spill is not None:
            os.makedirs(spill := folder_path(spill, "spill"), exist_ok=True)
        self._folder = tempfile.mkdtemp(prefix="polybus-duckdb-", dir=spill)
        self._cores = (os.cpu_count() or 1) if threads is None else threads
        given: dict[str, Any] = {"memory_limit": memory, "threads": threads, "temp_directory": self._folder, **_CONFIG}
        given["preserve_insertion_order"] = False
        settings = {name: value for name, value in given.items() if value is not None}
        try:
            self._connection: Any = duckdb.connect(config=settings)
        except duckdb.Error as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ValueError(f"memory={shown(memory)}, threads={shown(threads)}: {error}") from error
        # It is on in `python -c` and in notebooks, and printed into the answer of a program.
        self._connection.execute("set enable_progress_bar = false")
        for text in _AS_SPARK:
            self._connection.execute(text)
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release all tables and remove spilled data."""
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def take(self, capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow) -> list[IngestResult]:
        numbers = {piece.start.segment for piece in ranges}
        size = sum(one.size for one in Capture(capture).segments(complete=False) if one.number in numbers)
        count = min(self._cores, len(ranges)) if size >= MUCH else 1
        return take_all(capture, out, staging, ranges, window, count)

    def read(self, storage: TableStorage, folder: str, files: Sequence[str], schema: pa.Schema) -> str:
        name = self._name()
        add_table(self._connection, name, storage, folder, files, schema)
        return name

    def hand(self, rows: pa.Table | pa.RecordBatchReader) -> str:
        name = self._name()
        self._connection.register(name, rows)
        return name

    @contextmanager
    def kept(self, table: str) -> Iterator[str]:
        name = self._name()
        self._connection.execute(f"create table {name} as from {table}")
        yield name
        self._connection.execute(f"drop table {name}")

    def sql(self, text: str, **tables: str) -> str:
        """Return the result of a query as a table. The query runs when the table is read."""
        name = self._name()
        # The one construct that Spark writes in another order.
        text = text.replace(") ignore nulls over", " ignore nulls) over")
        self._connection.execute(f"create view {name} as {text.format(**tables)}")
        return name

    def rows(self, table: str) -> pa.Table:
        return self._connection.sql(f"from {table}").to_arrow_table()

    def write(self, table: str, storage: TableStorage, folder: str, schema: pa.Schema, parts: Sequence[str]) -> None:
        writer = PartitionWriter(storage, folder)
        for rows in self.batches(table, schema):
            writer.add("", rows, parts)
        writer.close()

    def batches(self, table: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows in batches with the columns of a schema."""
        for rows in self._connection.sql(f"select {', '.join(schema.names)} from {table}").to_arrow_reader(BATCH):
            yield rows.cast(schema)

    def _name(self) -> str:
        return f"table_{next(self._numbers)}"


def on_driver(engine: Engine) -> AbstractContextManager[Engine]:
    """Return the DuckDB engine, because a cluster would need ten jobs for a few rows."""
    return nullcontext(engine) if isinstance(engine, DuckEngine) else DuckEngine()


def open_tables(out: AnyPath) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with the result tables: ``events``, ``exchanges``, ``orphans`` and ``quarantine``.

    Only files in the log are read, so leftovers of a killed run are ignored.

    Args:
        out: The results folder.

    Raises:
        CaptureError: If `out` is not a results folder.
    """
    import duckdb

    output = Output.of(out)
    connection = duckdb.connect(config={**_CONFIG})
    for name, schema in TABLES.items():
        add_table(connection, name, output.storage, name, output.files(name), schema)
    return connection


def add_table(connection: Any, name: str, storage: TableStorage, folder: str, files: Sequence[str], schema: pa.Schema) -> None:
    """Register Parquet files in a folder as a table that is read on demand, with additional columns from the folder names."""
    paths = [storage.inside(file) for file in files]
    # Paths that DuckDB would take for patterns, and remote ones, are left to Arrow.
    if not files or not storage.local or any(letter in path for path in paths for letter in "*?[]{}"):
        connection.register(name, rows_of(storage, folder, files, schema))
        return
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    kinds = {"date32[day]": "date", "timestamp[us, tz=UTC]": "timestamptz"}  # of which a folder, or Spark, says less
    columns = ", ".join(
        f'cast("{field.name}" as {kinds[str(field.type)]}) as "{field.name}"' if str(field.type) in kinds else f'"{field.name}"'
        for field in schema
    )
    read = f"read_parquet([{listed}], hive_partitioning=true, hive_types_autocast=false)"
    connection.execute(f"create view {name} as select {columns} from {read}")


MEMORY: Final = "1GB"
"""Memory limit of a task. Further data is written to disk."""
_NEEDED: Final = (
    "capture_id conn_id client direction protocol subject correlation_id seq sub kind time_ns mono_ns deadline_ns ttl_ms data "
    "source peer code code_name stored store store_seq durable attempt reason"
).split()
_EVENTS: Final = pa.schema([EVENTS.field(name) for name in _NEEDED])


def recordings(capture: Capture) -> list[frozenset[int]]:
    """Return the segment numbers of each recording, which contains all answers to its requests."""
    found: dict[str | None, set[int]] = {}
    for segment in capture.segments():
        found.setdefault(capture.reader(segment).schema_metadata().get("capture_id"), set()).add(segment.number)
    # A segment without a name may belong to any recording.
    return [frozenset().union(*found.values())] if None in found else [frozenset(numbers) for numbers in found.values()]


def exchanges(
    capture: Capture, window: ReadWindow, timeout: float, segments: Collection[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the exchanges of all or some `recordings`, if their requests are in a window."""
    timeouts = MatchTimeouts(timeout)
    asked_before = LAST_NS if window.end_ns is None else window.end_ns
    if window.end_ns is not None:  # an answer, or the id again, may come later
        window = attrs.evolve(window, end_ns=min(window.end_ns + timeouts.horizon_ns, LAST_NS))
    reading = _Reading()
    with DuckEngine(memory=MEMORY, threads=1) as engine:
        events = pa.RecordBatchReader.from_batches(_EVENTS, reading.events(capture, window, segments))
        # The ends of recordings, and their holes, are known once all events are read.
        with engine.kept(turns_of(engine, engine.hand(events), timeouts)) as turns:
            closes = closes_of(engine, engine.hand(pa.Table.from_batches(reading.closes, _EVENTS)))
            found = exchanges_of(engine, fold(engine, [turns], timeouts, engine.hand(reading.clocks()), closes))
            asked = engine.sql(f"select * from {{found}} where request_time_ns < {asked_before}", found=found)
            yield from engine.batches(asked, EXCHANGES)


@attrs.define
class _Reading:
    closes: list[pa.RecordBatch] = attrs.Factory(list)
    _watermarks: Watermarks = attrs.Factory(Watermarks)
    _holes: Holes = attrs.Factory(lambda self: Holes(ends=self._watermarks.ends), takes_self=True)

    def events(self, capture: Capture, window: ReadWindow, segments: Collection[int] | None) -> Iterator[pa.RecordBatch]:
        for piece in plan(capture, ReadPosition()):
            if segments is not None and piece.start.segment not in segments:
                continue
            for events in RangeReader(capture.path, piece, self._holes).table("events", _NEEDED, window, None):
                self._watermarks.note(events)
                self._holes.note(events)
                self.closes.append(events.filter(pc.equal(events.column("kind"), "close")))
                yield events

    def clocks(self) -> pa.Table:
        return self._watermarks.table(all_read=True, ended=self._watermarks.ends, holes=joined([self._holes]))
