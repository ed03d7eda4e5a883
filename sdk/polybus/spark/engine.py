"""The engine that is Spark: tasks on its workers decode, and its SQL does the rest."""

from __future__ import annotations

import gc
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from polybus.analysis.ingest import IngestResult, take
from polybus.analysis.ranges import Range, ReadWindow
from polybus.analysis.storage import Storage


class SparkEngine:
    """Runs the pipeline by Spark.

    Args:
        spark: The session, on any master. Other masters than local ones need paths that all machines reach.
    """

    at_once: int = 4
    """A job on few rows is mostly waiting."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def take(self, capture: str, out: str, staging: str, ranges: Sequence[Range], window: ReadWindow) -> list[IngestResult]:
        """Decode ranges of a capture into files of the staging folder, a task each.

        Frames and events stay in the Python worker, as Arrow, from one file to the other; the JVM sees one row a task.
        """
        numbers = self._spark.range(0, len(ranges), 1, max(1, len(ranges)))
        task = partial(ingest_task, capture, out, staging, list(ranges), window)
        rows = numbers.mapInArrow(task, "taken string").collect()
        return [IngestResult(**json.loads(row["taken"])) for row in rows]

    def read(self, storage: Storage, folder: str, files: Sequence[str], schema: pa.Schema) -> DataFrame:
        """Parquet files of a folder, whose names hold values of columns, as a table."""
        columns = from_arrow_schema(schema, prefer_timestamp_ntz=False)
        if not files:
            return self._spark.createDataFrame([], columns)
        reader = self._spark.read.schema(columns).option("basePath", storage.for_spark(folder))
        return reader.parquet(*(storage.to_read(name) for name in files)).select(*columns.names)

    def hand(self, rows: pa.Table) -> DataFrame:
        """Some rows as a table."""
        return self._spark.createDataFrame(rows)

    def sql(self, text: str, **tables: DataFrame) -> DataFrame:
        """The answer of a query as a table."""
        named: dict[str, Any] = dict(tables)
        return self._spark.sql(text, **named)

    @contextmanager
    def kept(self, table: DataFrame) -> Iterator[DataFrame]:
        """A table as it is now, worked out once for several queries."""
        kept = table.persist()
        try:
            kept.count()  # queries that are asked at once would each work it out
            yield kept
        finally:
            kept.unpersist()

    def rows(self, table: DataFrame) -> pa.Table:
        """The rows of a table."""
        return table.toArrow()

    def write(self, table: DataFrame, storage: Storage, folder: str, schema: pa.Schema, parts: Sequence[str]) -> None:
        """Write a table as Parquet beneath a folder, by the columns `parts`."""
        table.write.partitionBy(*parts).parquet(storage.for_spark(folder))


def ingest_task(
    capture: str, out: str, staging: str, ranges: list[Range], window: ReadWindow, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The function for ``mapInArrow`` over the numbers of ranges, one a partition, when it knows the rest.

    The names of the files are new with each attempt, and only those of attempts that Spark has accepted are used.
    """
    settle()
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        done = take(capture, Storage(out), f"{staging}/{number:06d}-{uuid.uuid4().hex[:12]}", ranges[number], window)
        yield pa.RecordBatch.from_pydict({"taken": [json.dumps(attrs.asdict(done))]})


def settle() -> None:
    """Take what has been imported by now out of the sight of the garbage collector, where this is a worker.

    PySpark's daemon calls `gc.collect` after each task (4.3, ``pyspark/daemon.py``). With all our modules that is 40 ms of the
    processor, measured: as much as it takes to decode 100,000 frames of CSB.
    """
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    gc.collect()  # what is garbage already shall not stay for ever
    gc.freeze()
