"""The pipeline by Spark: at once as `polybus.analysis.Pipeline`, and as a stream."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from polybus.analysis.pipeline import Done
from polybus.analysis.pipeline import Pipeline as AnyPipeline
from polybus.analysis.ranges import ReadPosition, ReadWindow
from polybus.analysis.run import Progress
from polybus.capture.store.filesystems import AnyPath

from .engine import SparkEngine

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Pipeline:
    """`polybus.analysis.Pipeline` with Spark as its engine, and as a stream.

    Args:
        spark: The session, on any master. Other masters than local ones need paths that all machines reach.
        timeout: Seconds after which an answer is late, where a request says nothing itself.
        horizon: Seconds for which an id is remembered; ten timeouts when None. See `MatchTimeouts`.
        strict: Fail where a part of the capture cannot be read, instead of counting it.
        progress: Told the name of each stage when it begins.

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
        progress: Progress | None = None,
    ) -> None:
        self._spark = spark
        self._pipeline = AnyPipeline(SparkEngine(spark), timeout=timeout, horizon=horizon, strict=strict, progress=progress)

    def run(
        self,
        capture: AnyPath,
        out: AnyPath,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        connection: str | None = None,
        before: AnyPath | None = None,
        report: bool = True,
    ) -> Done:
        """Take what is new, and write metrics and report anew; where nothing is new, they stay as they are.

        Args:
            capture: The folder of segments; a path, or a URI that `pyarrow.fs` knows.
            out: The folder of results.
            start_ns: Only frames from here on, ns since 1970 UTC.
            end_ns: Only frames before.
            connection: Only this connection's.
            before: The folder of results of an earlier capture: the report says what has changed since.
            report: False leaves metrics and report as they are, for runs that follow each other closely.

        Raises:
            CaptureError: It is no capture, or a segment is missing, or it is not the one any more that `out` holds the results
                of; `out` holds something else; with `strict`, a part of the capture cannot be read. `before` holds no
                results, or those of another version.
            ValueError: `end_ns` is not after `start_ns`.
            OSError: Files cannot be written.
        """
        window = {"start_ns": start_ns, "end_ns": end_ns}
        return self._pipeline.run(capture, out, **window, connection=connection, before=before, report=report)

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
        from .source.data_source import BusDataSource

        step = self._pipeline.step(capture, out, ReadWindow())
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

    def report(self, capture: AnyPath, out: AnyPath, *, before: AnyPath | None = None) -> Done:
        """Metrics and report of what is there, without taking anything.

        Args:
            capture: As for `run`.
            out: As for `run`.
            before: As for `run`.

        Raises:
            CaptureError: `out` holds something else, or nothing; `before` as for `run`.
        """
        return self._pipeline.report(capture, out, before=before)
