"""Events of a capture as Spark itself reads them: its own scan of the columns, and the data source for what has none."""

from __future__ import annotations

import os
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from polybus.analysis.storage import Storage, absolute
from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.columns.stamp import columns_path
from polybus.capture.store.filesystems import AnyPath
from polybus.capture.store.reader import Capture

from ..tables import spark_schema
from .data_source import BusDataSource

SCANNED: Final = ("events", "quarantine")


def scan(spark: SparkSession, capture: AnyPath, table: str = "events") -> DataFrame:
    """A table of a capture as it is now: Spark reads the columns and rows that a query needs, and no others.

    Segments that `polybus capture decode` has decoded are read by Spark's scan of Parquet; the others, as that which is still
    written, by the data source.

    Args:
        spark: The session.
        capture: The folder of segments, where all machines of the session reach it.
        table: events or quarantine.

    Raises:
        CaptureError: It is no capture, or a segment is missing.
        ValueError: There is no such table.
    """
    if table not in SCANNED:
        raise ValueError(f"table={table!r}: one of {', '.join(SCANNED)}")
    path = absolute(os.fspath(capture))
    source, storage, schema = Capture(path), Storage(path), spark_schema(table)
    segments = source.segments()
    decoded = {segment.number for segment in segments if SegmentColumns.of(source, segment) is not None}
    files = [storage.to_read(columns_path("", table, number).lstrip("/")) for number in sorted(decoded)]
    native = spark.read.schema(schema).parquet(*files) if files else None
    rest = [segment.number for segment in segments if segment.number not in decoded]
    if native is not None and not rest:
        return native
    spark.dataSource.register(BusDataSource)
    numbers = ",".join(map(str, rest))
    others = spark.read.format("polybus").options(table=table, segments=numbers).load(path)
    return others if native is None else native.unionByName(others)
