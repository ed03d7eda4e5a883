"""The data source ``polybus``: captures as DataFrames, at once and as a stream, and DataFrames as publications on a bus.

What a task reads it also decodes, so frames never go through the JVM; whole Arrow batches are handed over, never rows
(measured: 2 to 3 times the speed of rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from polybus.capture.errors import CaptureError
from polybus.capture.event_columns import frame_columns
from polybus.capture.joining import decoded
from polybus.capture.reading import Capture
from polybus.capture.schema import EVENTS, FRAMES, QUARANTINE

from .matching import exchanges
from .patience import LONGEST_MS
from .publishing import BusStreamWriter, BusWriter
from .ranges import ROWS_PER_RANGE, Place, Range, RangeReader, Window, plan, reach
from .tables import arrow_schema, spark_schema
from .workers import settle

__all__ = ["BusDataSource", "Options"]

READABLE: Final = ("events", "exchanges", "quarantine", "raw")
STREAMED: Final = ("events", "raw")
PLACES: Final = "places"
"""What `Pipeline.stream` reads: how far each batch of the stream goes, in one row."""
KNOWN: Final = ("path", "table", "columns", "start", "end", "connection", "rowsperpartition", "maxrowspertrigger", "timeout")
LAST_NS: Final = 2**63 - 1
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


@attrs.frozen
class Options:
    """What was said to ``spark.read``."""

    path: str
    table: str = "events"
    columns: tuple[str, ...] | None = None
    window: Window = attrs.Factory(Window)
    rows_per_partition: int = ROWS_PER_RANGE
    max_rows: int | None = None
    timeout: float = 30.0

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """From the options of a reader.

        Raises:
            ValueError: One of them is unknown or not understood.
        """
        given = {name.lower(): value for name, value in given.items()}
        # Spark's own, where a table is made of the source, have dots in their names.
        unknown = [name for name in given if name not in KNOWN and "." not in name]
        if unknown:
            raise ValueError(f"there is no option {unknown[0]!r}; there are {', '.join(KNOWN)}")
        path = given.get("path")
        if not path:
            raise ValueError("where is the capture? .load(path), of one path")
        table = given.get("table", "events")
        if table not in (*READABLE, PLACES):
            raise ValueError(f"table={table!r}: one of {', '.join(READABLE)}")
        columns = given.get("columns")
        names = tuple(name.strip() for name in columns.split(",")) if columns else None
        arrow_schema(table, list(names) if names else None)
        if names and len(set(names)) < len(names):
            raise ValueError(f"columns={columns!r}: one of them is there twice")
        return cls(
            path,
            table,
            names,
            Window(_nanoseconds(given, "start"), _nanoseconds(given, "end"), given.get("connection")),
            _count(given, "rowsPerPartition") or ROWS_PER_RANGE,
            _count(given, "maxRowsPerTrigger"),
            _seconds(given, "timeout", 30.0),
        )

    def as_asked(self, schema: StructType) -> Options:
        """With the columns of ``spark.read.schema(...)``.

        Raises:
            ValueError: There is no such column, or it is of another type.
        """
        if schema.names == spark_schema(self.table, self.names).names:
            return self
        for wanted, there in zip(schema, spark_schema(self.table, schema.names), strict=True):
            if wanted.dataType != there.dataType:
                have, asked = there.dataType.simpleString(), wanted.dataType.simpleString()
                raise ValueError(f"{wanted.name} is {have}, not {asked}: cast it after reading")
        return attrs.evolve(self, columns=tuple(schema.names))

    @property
    def names(self) -> list[str] | None:
        """The columns that are wanted, None for all."""
        return list(self.columns) if self.columns is not None else None


def _seconds(given: Mapping[str, str], name: str, usual: float) -> float:
    text = given.get(name)
    if text is None:
        return usual
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < LONGEST_MS / 1000:
        raise ValueError(f"{name}={text!r}: seconds, more than 0")
    return seconds


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}={text!r}: a whole number, 1 or more")
    return int(text)


def _nanoseconds(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    return None if text is None else nanoseconds(text, name)


def nanoseconds(text: str, name: str = "time") -> int:
    """A time as text, ISO 8601 (UTC where it names no zone), or nanoseconds since 1970 as they are.

    Returns:
        Nanoseconds since 1970; what is too early or too late for 64 bits (the year 2262) becomes the first or last of them.

    Raises:
        ValueError: It is neither.
    """
    if text.isdecimal():
        return min(int(text), LAST_NS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}: a time as 2026-11-21T08:00:00Z, or nanoseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    return max(-LAST_NS, min(int(whole.timestamp()) * 1_000_000_000 + moment.microsecond * 1000, LAST_NS))


class BusDataSource(DataSource):
    """The format ``polybus``: ``spark.dataSource.register(BusDataSource)``, then ``spark.read.format("polybus").load(path)``.

    Options of a reader: ``table`` (events, exchanges, quarantine, raw), ``columns`` (some of them, with commas: Spark cannot
    tell a Python source which ones it needs), ``start`` and ``end`` (ISO 8601 or ns since 1970), ``connection``,
    ``rowsPerPartition``, ``timeout`` (of exchanges, seconds); of a stream (events, raw) also ``maxRowsPerTrigger``. A writer
    takes the URL of a bus as its path, see `polybus.spark.publishing`.
    """

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "polybus"

    def schema(self) -> StructType:
        """The columns of the table.

        Raises:
            ValueError: An option is not understood.
        """
        options = Options.of(self.options)
        return spark_schema(options.table, options.names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there.

        Raises:
            ValueError: An option is not understood.
        """
        options = Options.of(self.options).as_asked(schema)
        if options.table not in READABLE:
            raise ValueError(f"table={options.table!r}: one of {', '.join(READABLE)}")
        # A reader that knows of filters is refused altogether while Spark's setting is off, which it is unless somebody asks.
        return FilteringReader(options) if _pushes_filters() else CaptureReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follows a capture.

        Raises:
            ValueError: An option is not understood.
        """
        options = Options.of(self.options).as_asked(schema)
        if options.table not in (*STREAMED, PLACES):
            raise ValueError(f"table={options.table!r} cannot be read as a stream; {' and '.join(STREAMED)} can")
        return CaptureStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Publishes.

        Raises:
            ValueError: An option or a column is missing.
        """
        return BusWriter(dict(self.options), schema.names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Publishes each batch of a stream.

        Raises:
            ValueError: An option or a column is missing.
        """
        return BusStreamWriter(dict(self.options), schema.names)


def _pushes_filters() -> bool:
    session = SparkSession.getActiveSession()
    return session is not None and session.conf.get(PUSHDOWN, "false") == "true"


class Piece(InputPartition):
    """What one task reads; None for the whole capture."""

    def __init__(self, piece: Range | None) -> None:
        super().__init__(None)
        self.piece = piece


def read_piece(options: Options, piece: Range) -> Iterator[pa.RecordBatch]:
    """The rows of a table that a range of the capture holds."""
    settle()
    found = (options.window.of(rows) for rows in RangeReader(options.path, piece, _needed(options)).batches())
    if options.table == "raw":
        tables = (rows for rows in found if rows.num_rows)
    elif options.table == "events":
        tables = (made.events for made in decoded(found, options.names))
    else:
        tables = (made.quarantine for made in decoded(found, ("seq",)))
    for rows in tables:
        yield rows.select(options.names) if options.names is not None else rows


def _needed(options: Options) -> list[str]:
    """The columns of frames that the table and its columns are made of; the others need not be decompressed."""
    if options.table == "events":
        needed = set(frame_columns(options.names or EVENTS.names))
    elif options.table == "raw":
        needed = set(options.names or FRAMES.names)
    else:
        needed = set(frame_columns(QUARANTINE.names))
    needed |= options.window.columns
    return [name for name in FRAMES.names if name in needed]


class CaptureReader(DataSourceReader):
    """Reads a capture as it is now, a task for each range of its batches."""

    def __init__(self, options: Options) -> None:
        self.options: Options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges; a single one for exchanges, whose answers may be anywhere.

        Raises:
            CaptureError: It is no capture, or a segment is missing.
        """
        capture = Capture(self.options.path)
        if self.options.table == "exchanges":
            return [Piece(None)]
        return [Piece(piece) for piece in plan(capture, Place(), reach(capture, Place()), self.options.rows_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range.

        Raises:
            CaptureError: A segment is gone.
        """
        assert isinstance(partition, Piece)
        if partition.piece is not None:
            yield from read_piece(self.options, partition.piece)
            return
        for batch in exchanges(Capture(self.options.path), self.options.window, self.options.timeout):
            yield batch.select(self.options.names) if self.options.names is not None else batch


class FilteringReader(CaptureReader):
    """The same where Spark hands filters down: those on time and connection leave frames undecoded.

    Spark applies every filter once more to what comes out, so narrowing to whole microseconds loses nothing.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Takes what narrows the window; all are handed back, since `time` is coarser than `ts_ns`."""
        for given in filters:
            if self.options.table in ("events", "raw"):
                self._narrow(given)
            yield given

    def _narrow(self, given: Filter) -> None:
        window = self.options.window
        column, value = getattr(given, "attribute", ()), getattr(given, "value", None)
        if column == ("conn_id",) and isinstance(given, EqualTo):
            if window.connection is None and isinstance(value, str):
                window = attrs.evolve(window, connection=value)
        elif column in (("time_ns",), ("ts_ns",)) and isinstance(value, int):
            if isinstance(given, (GreaterThan, GreaterThanOrEqual)):
                window = attrs.evolve(window, start_ns=max(value, window.start_ns or 0))
            elif isinstance(given, (LessThan, LessThanOrEqual)):
                end = value + 1
                window = attrs.evolve(window, end_ns=end if window.end_ns is None else min(end, window.end_ns))
        options: Options = attrs.evolve(self.options, window=window)
        self.options = options


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a capture. Offsets name a segment, a batch in it and its byte, never the time of a file."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._until: Place | None = None

    def initialOffset(self) -> dict[str, int]:
        """The begin of what is there: retention may have removed the first segments.

        Raises:
            CaptureError: It is no capture.
        """
        return attrs.asdict(Place(Capture(self.options.path).segments()[0].number))

    def getDefaultReadLimit(self) -> ReadLimit:
        """As `maxRowsPerTrigger` says."""
        return ReadAllAvailable() if self.options.max_rows is None else ReadMaxRows(self.options.max_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How far it can be read now, within the limit but for one batch.

        Raises:
            CaptureError: A segment is missing.
        """
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = reach(Capture(self.options.path), Place(**start), rows)
        return attrs.asdict(found if self._until is None else min(found, self._until))

    def prepareForTriggerAvailableNow(self) -> None:
        """Notes where it ends: what is recorded from now on is for the next time."""
        capture = Capture(self.options.path)
        self._until = reach(capture, Place(capture.segments()[0].number))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The ranges between two offsets.

        Raises:
            CaptureError: A segment is missing, perhaps because retention has removed it.
        """
        capture, begin = Capture(self.options.path), Place(**start)
        _check_there(capture, begin)
        if self.options.table == PLACES:
            return [Piece(Range(Place(**end), None))] if Place(**end) > begin else []
        return [Piece(piece) for piece in plan(capture, begin, Place(**end), self.options.rows_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range.

        Raises:
            CaptureError: A segment is gone.
        """
        assert isinstance(partition, Piece) and partition.piece is not None
        if self.options.table == PLACES:
            place = attrs.asdict(partition.piece.start)
            yield pa.RecordBatch.from_pylist([place], schema=arrow_schema(PLACES))
            return
        yield from read_piece(self.options, partition.piece)


def _check_there(capture: Capture, begin: Place) -> None:
    first = capture.segments()[0].number
    if begin.segment < first:
        raise CaptureError(
            f"{capture.path}: the stream was to go on in segment {begin.segment}, and retention has removed all before "
            f"{first}: begin anew with another checkpoint, or record with a larger max_bytes and max_age"
        )
