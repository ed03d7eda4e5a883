"""The pipeline by Spark: at once as `polybus.analysis.Pipeline`, and as a stream."""

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
    """`polybus.analysis.Pipeline` with Spark as its engine, and as a stream.

    Args:
        spark: The session, on any master. Other masters than local ones need paths that all machines reach.
        timeout: Seconds after which an answer is late, where a request says nothing itself.
        horizon: Seconds for which an id is remembered; ten timeouts when None. See `MatchTimeouts`.
        strict: Fail where a part of the capture cannot be read, instead of counting it.
        delta: Keep a log of Delta Lake beside each table; where one was begun before, it is kept in any case.
        progress: Told the name of each stage when it begins.
        names: What subjects are called in metrics and report, beside what wires call them.

    Raises:
        ValueError: The timeout is not above zero, or the horizon is shorter.
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
        """Follow a capture: each batch of the stream goes through the same stages as `run`, but for metrics and report.

        Args:
            capture: As for `run`.
            out: As for `run`; the checkpoint is in it too.
            every: How often there is a batch, ``10 seconds``; when None, what is there is taken and the query ends.
            max_rows: Of a batch, about.

        Returns:
            The running query; call `report` whenever a report is wanted.

        Raises:
            CaptureError: As `run`.
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
                # What a killed run had done already is not done again: the manifest knows where it ended.
                with step.alone():
                    step.advance(max(reached))

        writer = reader.load(os.fspath(capture)).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", step.storage.for_spark("_checkpoint"))
        writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
        return writer.start()


Pipeline = SparkPipeline
"""The name by which it takes the place of `polybus.analysis.Pipeline`."""
