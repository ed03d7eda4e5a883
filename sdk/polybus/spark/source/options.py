"""Options of ``spark.read.format("polybus")``, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import attrs
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from polybus.analysis.moments import nanoseconds
from polybus.analysis.ranges import ROWS_PER_RANGE, ReadWindow
from polybus.analysis.tables import arrow_schema
from polybus.analysis.timeouts import LONGEST_MS

from ..tables import spark_schema

T = TypeVar("T")
U = TypeVar("U")
READABLE: Final = ("events", "exchanges", "quarantine", "raw")
STREAMED: Final = ("events", "raw")
PLACES: Final = "places"
"""The table that `Pipeline.stream` reads: one row a batch of the stream, with its end."""
KNOWN: Final = "path table columns start end connection segments rowsperpartition maxrowspertrigger timeout".split()


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
