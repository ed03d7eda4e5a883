"""The pipeline on Spark. Spark workers decode frames, and Spark SQL does the rest. Tables are DataFrames."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from polybus.analysis.engine import Engine
from polybus.analysis.ingest import IngestResult, take
from polybus.analysis.pipeline import Pipeline as AnyPipeline
from polybus.analysis.pipeline import Progress
from polybus.analysis.ranges import Range, ReadPosition, ReadWindow
from polybus.analysis.report.names import Names
from polybus.analysis.results import TABLES, Output
from polybus.analysis.storage import TableStorage
from polybus.capture.schema import FRAMES
from polybus.capture.store.filesystems import AnyPath

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class SparkEngine(Engine):
    """Runs the pipeline on Spark.

    Args:
        spark: The session, on any master. If the master is remote, use paths that all machines can access.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def take(self, capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow) -> list[IngestResult]:
        """Decode each range in a separate task. The JVM only sees one row per task."""
        numbers = self._spark.range(0, len(ranges), 1, max(1, len(ranges)))
        task = partial(ingest_task, capture, out, staging, list(ranges), window)
        rows = numbers.mapInArrow(task, "taken string").collect()
        return [msgspec.json.decode(row["taken"], type=IngestResult) for row in rows]

    def read(self, storage: TableStorage, folder: str, files: Sequence[str], schema: pa.Schema) -> DataFrame:
        columns = from_arrow_schema(schema, prefer_timestamp_ntz=False)
        if not files:
            return self._spark.createDataFrame([], columns)
        reader = self._spark.read.schema(columns).option("basePath", storage.for_spark(folder))
        return reader.parquet(*(storage.to_read(name) for name in files)).select(*columns.names)

    def hand(self, rows: pa.Table) -> DataFrame:
        return self._spark.createDataFrame(rows)

    def sql(self, text: str, **tables: DataFrame) -> DataFrame:
        named: dict[str, Any] = dict(tables)
        return self._spark.sql(text, **named)

    @contextmanager
    def kept(self, table: DataFrame) -> Iterator[DataFrame]:
        kept = table.persist()
        try:
            yield kept
        finally:
            kept.unpersist()

    def rows(self, table: DataFrame) -> pa.Table:
        return table.toArrow()

    def write(self, table: DataFrame, storage: TableStorage, folder: str, schema: pa.Schema, parts: Sequence[str]) -> None:
        table.write.partitionBy(*parts).parquet(storage.for_spark(folder))


def ingest_task(
    capture: str, out: str, staging: str, ranges: list[Range], window: ReadWindow, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Decode the ranges with these numbers. Each attempt uses new file names. Spark accepts the files of one attempt."""
    settle()
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        done = take(capture, TableStorage(out), f"{staging}/{number:06d}-{uuid.uuid4().hex[:12]}", ranges[number], window)
        yield pa.RecordBatch.from_pydict({"taken": [msgspec.json.encode(done).decode()]})


def settle() -> None:
    """Exclude all imports so far from garbage collection, which takes PySpark's daemon (4.3) 40 ms after each task."""
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()  # otherwise garbage would stay forever
    gc.freeze()


_PLACES: Final = pa.schema([("segment", pa.int64()), ("batch", pa.int64()), ("offset", pa.int64())])
"""Schema of the stream's progress, one row per batch, for `Pipeline.stream`."""
_SCHEMAS: Final = {**TABLES, "raw": FRAMES, "places": _PLACES}


def arrow_schema(table: str, columns: list[str] | None = None) -> pa.Schema:
    """Return a table's schema, or some of its columns. Raises `ValueError` for an unknown table or column."""
    schema = _SCHEMAS.get(table)
    if schema is None:
        raise ValueError(f"unknown table {table!r}; use one of {', '.join(_SCHEMAS)}")
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ValueError(f"{table} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


def spark_schema(table: str, columns: list[str] | None = None) -> StructType:
    return from_arrow_schema(arrow_schema(table, columns), prefer_timestamp_ntz=False)


def load(spark: SparkSession, out: AnyPath, table: str) -> DataFrame:
    """Load a result table from the files in its log, ignoring leftovers from a killed run.

    Args:
        spark: The session.
        out: The results folder.
        table: ``events``, ``exchanges``, ``orphans`` or ``quarantine``.

    Raises:
        CaptureError: If `out` is not a results folder.
        ValueError: If the table does not exist.
    """
    output = Output.of(out)
    if table not in TABLES:
        raise ValueError(f"unknown table of results {table!r}; use one of {', '.join(TABLES)}")
    return SparkEngine(spark).read(output.storage, table, output.files(table), TABLES[table])


class SparkPipeline(AnyPipeline):
    """`polybus.analysis.Pipeline` with Spark as its engine. It can also run as a stream.

    Args:
        spark: The session, on any master. If the master is remote, use paths that all machines can access.
        timeout, horizon, strict, delta, progress, names: Same as for `polybus.analysis.Pipeline`.

    Raises:
        ValueError: If the timeout is not positive, or the horizon is shorter than the timeout.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        timeout: float = 30.0,
        horizon: float | None = None,
        strict: bool = False,
        delta: bool = False,
        progress: Progress | None = None,
        names: Names | None = None,
    ) -> None:
        given: dict[str, Any] = {"strict": strict, "delta": delta, "progress": progress, "names": names}
        super().__init__(SparkEngine(spark), timeout=timeout, horizon=horizon, **given)
        self._spark = spark

    def stream(
        self, capture: AnyPath, out: AnyPath, *, every: str | None = None, max_rows: int | None = None
    ) -> StreamingQuery:
        """Follow a capture as it grows. Each batch passes through the same stages as in `run`, except metrics and report.

        Args:
            capture: The capture, as in `run`.
            out: The results folder, as in `run`. The checkpoint is stored there too.
            every: Interval between batches, for example ``10 seconds``. If `None`, process the existing records, then end the
                query.
            max_rows: Approximate number of rows in a batch.

        Returns:
            The running query. Call `report` at any time to create a report.

        Raises:
            CaptureError: Same as `run`.
        """
        from .source import BusDataSource

        step = self.step(capture, out, ReadWindow())
        self._spark.dataSource.register(BusDataSource)
        reader = self._spark.readStream.format("polybus").option("table", "places")
        if max_rows is not None:
            reader = reader.option("maxRowsPerTrigger", max_rows)

        def take(places: DataFrame, number: int) -> None:
            reached = [ReadPosition(row["segment"], row["batch"], row["offset"]) for row in places.collect()]
            if reached:
                # The manifest shows how far a killed run got.
                with step.alone():
                    step.advance(max(reached))

        writer = reader.load(os.fspath(capture)).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", step.storage.for_spark("_checkpoint"))
        writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
        return writer.start()


Pipeline = SparkPipeline
"""Alias of `SparkPipeline`, to make switching from `polybus.analysis.Pipeline` easy."""
