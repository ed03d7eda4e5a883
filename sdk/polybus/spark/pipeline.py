"""Runs the pipeline on Spark, either once, like `polybus.analysis.Pipeline`, or as a stream."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from polybus.analysis.pipeline import Pipeline as AnyPipeline
from polybus.analysis.pipeline import Progress
from polybus.analysis.ranges import ReadPosition, ReadWindow
from polybus.analysis.report.names import Names
from polybus.capture.store.filesystems import AnyPath

from .engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


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
