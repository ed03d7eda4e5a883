"""The data source ``polybus``: captures as DataFrames, at once and as a stream, and DataFrames as publications on a bus."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from ..tables import spark_schema
from .options import PLACES, READABLE, STREAMED, Options
from .readers import CaptureReader, CaptureStreamReader, FilteringReader
from .sink import BusStreamWriter, BusWriter

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class BusDataSource(ds.DataSource):
    """The format ``polybus``: ``spark.dataSource.register(BusDataSource)``, then ``spark.read.format("polybus").load(path)``.

    Options of a reader: ``table`` (events, exchanges, quarantine, raw), ``columns`` (some of them, with commas: Spark cannot
    tell a Python source which ones it needs), ``start`` and ``end`` (ISO 8601 or ns since 1970), ``connection``, ``segments``
    (their numbers, with commas), ``rowsPerPartition``, ``timeout`` (of exchanges, seconds); of a stream (events, raw) also
    ``maxRowsPerTrigger``. A writer takes the URL of a bus as its path, see `polybus.spark.source.sink`.

    Raises:
        ValueError: Of its methods: an option is not understood; one, or a column to publish, is missing.
    """

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "polybus"

    def schema(self) -> StructType:
        """The columns of the table."""
        options = Options.of(self.options)
        return spark_schema(options.table, options.names)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Reads what is there."""
        options = Options.of(self.options).as_asked(schema)
        if options.table not in READABLE:
            raise ValueError(f"table={options.table!r}: one of {', '.join(READABLE)}")
        # A reader that knows of filters is refused altogether while Spark's setting is off, which it is by default.
        session = SparkSession.getActiveSession()
        pushes = session is not None and session.conf.get(PUSHDOWN, "false") == "true"
        return FilteringReader(options) if pushes else CaptureReader(options)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        """Follows a capture."""
        options = Options.of(self.options).as_asked(schema)
        if options.table not in (*STREAMED, PLACES):
            raise ValueError(f"table={options.table!r} cannot be read as a stream; {' and '.join(STREAMED)} can")
        return CaptureStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceArrowWriter:
        """Publishes."""
        if overwrite:
            raise ValueError("mode('overwrite'): what was published cannot be taken back, so there is only mode('append')")
        return BusWriter(dict(self.options), schema.names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamArrowWriter:
        """Publishes each batch of a stream."""
        return BusStreamWriter(dict(self.options), schema.names)
