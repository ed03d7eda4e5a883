"""The ``polybus`` data source. It reads captures as batch or streaming DataFrames and publishes DataFrames on a bus.

A DataFrame to publish needs a ``subject`` column and either a ``body`` column (any type) or a ``data`` column. ``data``
contains bytes, as in the events, or JSON if ``datacontenttype`` is JSON. Each publication has an id header, so that receivers
can drop duplicates from a retried task. The id is taken from the ``id`` column. Without that column, it consists of run,
partition and row.
"""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, Filter, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from polybus import sync
from polybus.analysis.correlation import LONGEST_MS
from polybus.analysis.engine import exchanges, recordings
from polybus.analysis.ranges import (
    ROWS_PER_RANGE,
    Range,
    RangeReader,
    ReadPosition,
    ReadWindow,
    nanoseconds,
    plan,
    reach,
    together,
)
from polybus.analysis.storage import TableStorage, absolute
from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.columns.stamp import columns_path
from polybus.capture.errors import CaptureError
from polybus.capture.paths import folder_path
from polybus.capture.schema import FRAMES
from polybus.capture.store.filesystems import AnyPath
from polybus.capture.store.reader import Capture
from polybus.plugins.tools import check_choice

from ..capture.store.compute import pc
from .engine import arrow_schema, settle, spark_schema

T = TypeVar("T")
U = TypeVar("U")
READABLE: Final = ("events", "exchanges", "quarantine", "raw")
STREAMED: Final = ("events", "raw")
PLACES: Final = "places"
"""The table that `Pipeline.stream` reads. It contains the end of each batch of the stream."""
KNOWN: Final = "path table columns start end connection segments rowsperpartition maxrowspertrigger timeout".split()


@attrs.frozen
class Options:
    path: str
    table: str = "events"
    names: list[str] | None = None
    window: ReadWindow = attrs.Factory(ReadWindow)
    rows_per_partition: int = ROWS_PER_RANGE
    max_rows: int | None = None
    timeout: float = 30.0
    segments: frozenset[int] | None = None
    filters: tuple[Filter, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        _check_names(given, KNOWN, "")
        given = {name.lower(): value for name, value in given.items()}
        if not (path := given.get("path")):
            raise ValueError("no capture given: pass one path, .load(path)")
        table = given.get("table", "events")
        if table not in (*READABLE, PLACES):
            raise ValueError(f"table={table!r} must be one of {', '.join(READABLE)}")
        columns = given.get("columns")
        names = [name.strip() for name in columns.split(",")] if columns else None
        arrow_schema(table, names)
        if names and len(set(names)) < len(names):
            raise ValueError(f"columns={columns!r}: a column is repeated")
        start, end = (option(given, name, nanoseconds, None) for name in ("start", "end"))
        window = ReadWindow(start, end, given.get("connection"))
        window.check()
        rows, most = option(given, "rowsPerPartition", _count, ROWS_PER_RANGE), option(given, "maxRowsPerTrigger", _count, None)
        timeout, segments = option(given, "timeout", seconds, 30.0), option(given, "segments", _numbers, None)
        return cls(path, table, names, window, rows, most, timeout, segments)

    def as_asked(self, schema: StructType) -> Options:
        """Select the columns of ``spark.read.schema(...)``. Raises `ValueError` if one does not exist or has another type."""
        if schema.names == spark_schema(self.table, self.names).names:
            return self
        for wanted, there in zip(schema, spark_schema(self.table, schema.names), strict=True):
            if wanted.dataType != there.dataType:
                have, asked = there.dataType.simpleString(), wanted.dataType.simpleString()
                raise ValueError(f"{wanted.name} is {have}, not {asked}: cast it after reading")
        return attrs.evolve(self, names=list(schema.names))


def _check_names(given: Iterable[str], known: Sequence[str], what: str) -> None:
    names = [name.lower() for name in known]
    # When a table uses the source, Spark adds options with dots in their names.
    unknown = [name for name in given if name.lower() not in names and "." not in name]
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}{what}; use one of {', '.join(known)}")


def option(given: Mapping[str, str], name: str, read: Callable[[str, str], T], usual: U) -> T | U:
    """Parse an option. Returns `usual` if it is not set."""
    text = given.get(name.lower())
    return usual if text is None else read(text, name)


def seconds(text: str, name: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < LONGEST_MS / 1000:
        raise ValueError(f"{name}={text!r} must be a number of seconds above 0 and below {LONGEST_MS // 1000:,} (100 years)")
    return seconds


def _numbers(text: str, name: str) -> frozenset[int]:
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"{name}={text!r} must be segment numbers, separated by commas")
    return frozenset(map(int, numbers))


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}={text!r} must be an integer of at least 1")
    return int(text)


_COMPARED: Final[Mapping[type, Callable[[Any, Any], Any]]] = MappingProxyType(
    {
        ds.EqualTo: operator.eq,
        ds.GreaterThan: operator.gt,
        ds.GreaterThanOrEqual: operator.ge,
        ds.LessThan: operator.lt,
        ds.LessThanOrEqual: operator.le,
    }
)
_PLAIN: Final = (str, int, float, bytes)


def conditions(filters: Iterable[ds.Filter]) -> Any:
    """Combine the filters that Arrow can apply. Returns `None` if Arrow can apply no filter."""
    return together(map(_condition, filters))


def _condition(given: ds.Filter) -> Any:
    """Return a filter as an expression, or `None` if Arrow cannot apply it."""
    column: Sequence[str] = getattr(given, "attribute", ())
    if len(column) != 1:
        return None
    field, value = pc.field(column[0]), getattr(given, "value", None)
    if isinstance(given, ds.IsNotNull):
        return field.is_valid()
    if isinstance(given, ds.IsNull):
        return field.is_null()
    if isinstance(given, ds.In):
        return field.isin(list(value)) if value and all(isinstance(one, _PLAIN) for one in value) else None
    compared = _COMPARED.get(type(given))
    return compared(field, value) if compared is not None and isinstance(value, _PLAIN) else None


def narrowed(window: ReadWindow, given: ds.Filter) -> ReadWindow:
    """Narrow a window using a filter on connection or time."""
    column, value = getattr(given, "attribute", ()), getattr(given, "value", None)
    if column == ("conn_id",) and isinstance(given, ds.EqualTo):
        return attrs.evolve(window, connection=value) if window.connection is None and isinstance(value, str) else window
    if column in (("time_ns",), ("ts_ns",)) and isinstance(value, int):
        if isinstance(given, (ds.GreaterThan, ds.GreaterThanOrEqual)):
            return attrs.evolve(window, start_ns=max(value, window.start_ns or 0))
        if isinstance(given, (ds.LessThan, ds.LessThanOrEqual)):
            end = value + 1
            return attrs.evolve(window, end_ns=end if window.end_ns is None else min(end, window.end_ns))
    return window


class CapturePartition(ds.InputPartition):
    def __init__(self, piece: Range | frozenset[int]) -> None:
        super().__init__(None)
        self.piece = piece


def read_piece(options: Options, piece: Range) -> Iterator[pa.RecordBatch]:
    reader = RangeReader(options.path, piece)
    if options.table != "raw":
        yield from reader.table(options.table, options.names, options.window, conditions(options.filters))
        return
    needed = {*(options.names or FRAMES.names), *options.window.columns}
    for rows in map(options.window.of, reader.frames([name for name in FRAMES.names if name in needed])):
        if rows.num_rows:
            yield rows.select(options.names) if options.names is not None else rows


class CaptureReader(ds.DataSourceReader):
    """Reads a capture in its current state, using one task per range of batches."""

    def __init__(self, options: Options) -> None:
        self.options: Options = options

    def partitions(self) -> Sequence[ds.InputPartition]:
        capture = Capture(self.options.path)
        if self.options.table == "exchanges":
            return [CapturePartition(segments) for segments in recordings(capture)]
        pieces = plan(capture, ReadPosition(), reach(capture, ReadPosition()), self.options.rows_per_partition)
        only = self.options.segments
        return [CapturePartition(piece) for piece in pieces if only is None or piece.start.segment in only]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, CapturePartition):  # Spark's own, if there is nothing to read
            return
        settle()
        if isinstance(partition.piece, Range):
            yield from read_piece(self.options, partition.piece)
            return
        options = self.options
        for batch in exchanges(Capture(options.path), options.window, options.timeout, partition.piece):
            yield batch.select(self.options.names) if self.options.names is not None else batch


class FilteringReader(CaptureReader):
    """A `CaptureReader` with filter pushdown, which skips frames before decoding them. Spark reapplies every filter."""

    def pushFilters(self, filters: list[ds.Filter]) -> Iterator[ds.Filter]:
        """Store the filters on window and columns. Returns all filters, because Spark has to reapply them."""
        for given in filters:
            if self.options.table != "exchanges":
                window, taken = narrowed(self.options.window, given), (*self.options.filters, given)
                self.options: Options = attrs.evolve(self.options, window=window, filters=taken)
            yield given


class CaptureStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a capture as it grows. Offsets consist of segment, batch and byte, and do not depend on file times."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._until: ReadPosition | None = None

    def initialOffset(self) -> dict[str, int]:
        """Return the first available position. Retention may have removed earlier segments."""
        return attrs.asdict(ReadPosition(Capture(self.options.path).segments()[0].number))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.options.max_rows is None else ReadMaxRows(self.options.max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the latest readable position, exceeding the row limit by at most one batch."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = reach(Capture(self.options.path), ReadPosition(**start), rows)
        return attrs.asdict(found if self._until is None else min(found, self._until))

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the current end. Later records belong to the next run."""
        capture = Capture(self.options.path)
        self._until = reach(capture, ReadPosition(capture.segments()[0].number))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[ds.InputPartition]:
        capture, begin = Capture(self.options.path), ReadPosition(**start)
        if self.options.table == PLACES:  # the pipeline counts removed segments
            return [CapturePartition(Range(ReadPosition(**end), None))] if ReadPosition(**end) > begin else []
        if begin.segment < (first := capture.segments()[0].number):
            raise CaptureError(
                f"{capture.path}: the stream stopped in segment {begin.segment}, and retention has removed all before {first}: "
                "use a new checkpoint, and record with a larger max_bytes and max_age"
            )
        return [CapturePartition(piece) for piece in plan(capture, begin, ReadPosition(**end), self.options.rows_per_partition)]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, CapturePartition) and isinstance(partition.piece, Range)
        settle()
        if self.options.table == PLACES:
            place = attrs.asdict(partition.piece.start)
            yield pa.RecordBatch.from_pylist([place], schema=arrow_schema(PLACES))
            return
        yield from read_piece(self.options, partition.piece)


ID_HEADER: Final = "idempotency-key"
_PUBLISHED: Final = ("path", "url", "idHeader", "run", "timeout")


@attrs.define
class PublishResult(WriterCommitMessage):
    publications: int


def _body(row: Mapping[str, Any]) -> Any:
    if "body" in row:
        return row["body"]
    data = row["data"]
    if data is not None and "json" in (row.get("datacontenttype") or ""):
        return json.loads(data)
    return data


class _Publishing:
    def __init__(self, given: Mapping[str, str], columns: Sequence[str], run: str) -> None:
        options = {name.lower(): value for name, value in given.items()}
        url = options.get("path") or options.get("url")
        if not url:
            raise ValueError("no URL given: .save('ubre+tcp://host:port')")
        if "subject" not in columns or not {"body", "data"} & set(columns):
            raise ValueError(f"publishing needs the columns subject, and body or data; given are {', '.join(columns)}")
        self._url = url
        self._id_header = options.get("idheader", ID_HEADER)
        self._run = options.get("run", run)
        self._timeout = option(options, "timeout", seconds, 30.0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishResult:
        """Publish a partition or a part of a streaming batch. Raises `BusError` if the bus rejects it."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        epoch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        prefix = "-".join(part for part in (self._run, epoch, str(partition)) if part)
        count = 0
        with sync.connect(self._url, wait=self._timeout) as bus:
            for batch in iterator:
                for row in batch.to_pylist():
                    headers = {self._id_header: row.get("id") or f"{prefix}-{count}"} if self._id_header else None
                    bus.publish(row["subject"], _body(row), headers=headers, timeout=self._timeout)
                    count += 1
        return PublishResult(count)


class BusWriter(_Publishing, DataSourceArrowWriter):
    """Publishes a DataFrame."""


class BusStreamWriter(_Publishing, DataSourceStreamArrowWriter):
    """Publishes the batches of a stream."""


PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class BusDataSource(ds.DataSource):
    """The ``polybus`` format: ``spark.dataSource.register(BusDataSource)``, then ``spark.read.format("polybus").load(path)``.

    Reader options are ``table`` (events, exchanges, quarantine, raw), ``columns`` (comma-separated, because Spark does not tell
    a Python source which columns a query needs), ``start`` and ``end`` (ISO 8601 or ns since 1970), ``connection``,
    ``segments`` (comma-separated numbers), ``rowsPerPartition``, and ``timeout`` (of exchanges, in seconds). Streams (events,
    raw) also support ``maxRowsPerTrigger``. For a writer, pass a bus URL as the path.

    Raises:
        ValueError: Raised by the methods if an option is invalid, or if an option or a column to publish is missing.
    """

    @classmethod
    def name(cls) -> str:
        return "polybus"

    def schema(self) -> StructType:
        """Return the table's schema."""
        options = Options.of(self.options)
        return spark_schema(options.table, options.names)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return a reader for the capture in its current state."""
        options = Options.of(self.options).as_asked(schema)
        check_choice(options.table, READABLE, "table")
        # Spark rejects a reader with pushdown unless its pushdown setting is on. It is off by default.
        session = SparkSession.getActiveSession()
        pushes = session is not None and session.conf.get(PUSHDOWN, "false") == "true"
        return FilteringReader(options) if pushes else CaptureReader(options)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        """Return a reader that follows the capture."""
        options = Options.of(self.options).as_asked(schema)
        if options.table not in (*STREAMED, PLACES):
            raise ValueError(f"table={options.table!r} cannot be read as a stream; {' and '.join(STREAMED)} can")
        return CaptureStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceArrowWriter:
        if overwrite:
            raise ValueError("mode('overwrite'): a publication cannot be replaced; use mode('append')")
        _check_names(self.options, _PUBLISHED, " for publishing")
        # All tasks get this object, so a retried task keeps its run id, and each write gets a new one.
        return BusWriter(dict(self.options), schema.names, uuid.uuid4().hex[:12])

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamArrowWriter:
        return BusStreamWriter(dict(self.options), schema.names, "run")


SCANNED: Final = ("events", "quarantine")


def scan(spark: SparkSession, capture: AnyPath, table: str = "events") -> DataFrame:
    """Return a table from a capture in its current state. Spark only reads the columns and rows that a query needs.

    Segments decoded by `polybus capture decode` are read with Spark's Parquet scan. The data source reads all other segments,
    including the one still being written.

    Args:
        spark: The session.
        capture: The capture folder, at a path that all machines of the session can access.
        table: ``events`` or ``quarantine``.

    Raises:
        CaptureError: If `capture` is not a capture, a segment is missing, or columns are larger when unpacked than a decoded
            segment can be.
        ValueError: If the table does not exist.
    """
    check_choice(table, SCANNED, "table")
    path = absolute(folder_path(capture, "capture"))
    source, storage, schema = Capture(path), TableStorage(path), spark_schema(table)
    segments = source.segments()
    decoded = {segment.number for segment in segments if SegmentColumns.of(source, segment) is not None}
    files = [columns_path("", table, number).lstrip("/") for number in sorted(decoded)]
    for name in files:
        storage.check(name)
    native = spark.read.schema(schema).parquet(*map(storage.to_read, files)) if files else None
    rest = [segment.number for segment in segments if segment.number not in decoded]
    if native is not None and not rest:
        return native
    spark.dataSource.register(BusDataSource)
    numbers = ",".join(map(str, rest))
    others = spark.read.format("polybus").options(table=table, segments=numbers).load(path)
    return others if native is None else native.unionByName(others)
