"""The tables of results, read through their manifests."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

from polybus.capture.errors import CaptureError

from ..source.tables import spark_schema
from .manifest import Output
from .storage import Storage


def load(spark: SparkSession, out: str | os.PathLike[str], table: str) -> DataFrame:
    """A table of results, of the files that its manifests name: what a killed run has left is not among them.

    Args:
        spark: The session.
        out: The folder of results.
        table: events, exchanges, orphans or quarantine.

    Raises:
        CaptureError: `out` is no such folder.
        ValueError: There is no such table.
    """
    output = Output(Storage(out))
    if output.last is None:
        raise CaptureError(f"{os.fspath(out)} holds no results: `polybus analyse` makes them, or Pipeline.run")
    return load_files(spark, output.storage, table, output.files(table))


def load_files(spark: SparkSession, storage: Storage, table: str, files: list[str]) -> DataFrame:
    """Some files of a table, with its columns.

    Raises:
        ValueError: There is no such table.
    """
    schema = spark_schema(table)
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", storage.for_spark(table))
    return reader.parquet(*(storage.to_read(name) for name in files)).select(*schema.names)
