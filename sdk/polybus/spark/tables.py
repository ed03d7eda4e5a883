"""The tables of a capture as Spark knows them."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from polybus.analysis.manifest import TABLES, Output
from polybus.analysis.tables import SCHEMAS, arrow_schema
from polybus.capture.store.filesystems import AnyPath

from .engine import SparkEngine


def spark_schema(table: str, columns: list[str] | None = None) -> StructType:
    """The columns of a table, or some of them in that order.

    Raises:
        ValueError: There is no such table or no such column.
    """
    return from_arrow_schema(arrow_schema(table, columns), prefer_timestamp_ntz=False)


def load(spark: SparkSession, out: AnyPath, table: str) -> DataFrame:
    """A table of results, of the files that its manifests name: what a killed run has left is not among them.

    Args:
        spark: The session.
        out: The folder of results.
        table: events, exchanges, orphans or quarantine.

    Raises:
        CaptureError: `out` is no such folder.
        ValueError: There is no such table.
    """
    output = Output.of(out)
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r} of results; there are {', '.join(TABLES)}")
    return SparkEngine(spark).read(output.storage, table, output.files(table), SCHEMAS[table])
