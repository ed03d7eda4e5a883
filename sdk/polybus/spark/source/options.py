"""Options of ``spark.read.format("polybus")``, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

import attrs
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from ..stages.matching import LONGEST_MS
from .ranges import LAST_NS, ROWS_PER_RANGE, ReadWindow
from .tables import arrow_schema, spark_schema

T = TypeVar("T")
U = TypeVar("U")
READABLE: Final = ("events", "exchanges", "quarantine", "raw")
STREAMED: Final = ("events", "raw")
PLACES: Final = "places"
"""The table that `Pipeline.stream` reads: one row a batch of the stream, with its end."""
KNOWN: Final = "path table columns start end connection segments rowsperpartition maxrowspertrigger timeout".split()
FIRST_NS: Final = 10**17
"""In 1973: a smaller number is one of seconds, of milliseconds or of microseconds, or a date without its dashes."""


@attrs.frozen
class Options:
    """Options of ``spark.read``."""

    path: str
    table: str = "events"
    names: list[str] | None = None
    """The columns that are wanted, None for all."""
    window: ReadWindow = attrs.Factory(ReadWindow)
    rows_per_partition: int = ROWS_PER_RANGE
    max_rows: int | None = None
    timeout: float = 30.0
    segments: frozenset[int] | None = None
    """The numbers of those that are read, None for all."""
    filters: tuple[Filter, ...] = ()
    """Filters that Spark has handed down."""

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
        names = [name.strip() for name in columns.split(",")] if columns else None
        arrow_schema(table, names)
        if names and len(set(names)) < len(names):
            raise ValueError(f"columns={columns!r}: one of them is there twice")
        start, end = (option(given, name, nanoseconds, None) for name in ("start", "end"))
        window = ReadWindow(start, end, given.get("connection"))
        window.check()
        return cls(
            path,
            table,
            names,
            window,
            option(given, "rowsPerPartition", _count, ROWS_PER_RANGE),
            option(given, "maxRowsPerTrigger", _count, None),
            option(given, "timeout", seconds, 30.0),
            option(given, "segments", _numbers, None),
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
        return attrs.evolve(self, names=list(schema.names))


def option(given: Mapping[str, str], name: str, read: Callable[[str, str], T], usual: U) -> T | U:
    """An option, by its name in small letters; what is usual where it is not given."""
    text = given.get(name.lower())
    return usual if text is None else read(text, name)


def seconds(text: str, name: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < LONGEST_MS / 1000:
        raise ValueError(f"{name}={text!r}: seconds, more than 0")
    return seconds


def _numbers(text: str, name: str) -> frozenset[int]:
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"{name}={text!r}: numbers of segments, with commas")
    return frozenset(map(int, numbers))


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}={text!r}: a whole number, 1 or more")
    return int(text)


def nanoseconds(text: str, name: str = "time") -> int:
    """A time as text, ISO 8601 (UTC where it names no zone), or nanoseconds since 1970 as they are.

    Returns:
        Nanoseconds since 1970; what is too early or too late for 64 bits (the year 2262) becomes the first or last of them.

    Raises:
        ValueError: It is neither.
    """
    if text.isdecimal():
        if 0 < int(text) < FIRST_NS:
            raise ValueError(f"{name}={text!r}: nanoseconds since 1970 have 19 digits; or say a time as 2026-11-21T08:00:00Z")
        return min(int(text), LAST_NS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}: a time as 2026-11-21T08:00:00Z, or nanoseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    return max(-LAST_NS, min(int(whole.timestamp()) * 1_000_000_000 + moment.microsecond * 1000, LAST_NS))
