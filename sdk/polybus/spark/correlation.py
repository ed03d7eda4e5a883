"""Correlation of a table of events that is at hand, by Spark."""

from __future__ import annotations

import attrs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from polybus.analysis.correlation import closes_of, exchanges_of, fold, orphans_of, turns_of
from polybus.analysis.ranges import LAST_NS
from polybus.analysis.timeouts import MatchTimeouts

from .engine import SparkEngine


@attrs.frozen
class Correlated:
    """Result of the correlation of events."""

    exchanges: DataFrame
    """A row for each request, see `polybus.capture.schema.EXCHANGES`."""
    orphans: DataFrame
    """The responses to which there is no request."""


def correlate(events: DataFrame, timeouts: MatchTimeouts | None = None) -> Correlated:
    """Pair requests and responses of a table of events, at once.

    Args:
        events: Rows as in `polybus.capture.schema.EVENTS`.
        timeouts: 30 s for an answer when None.
    """
    engine, timeouts = SparkEngine(events.sparkSession), timeouts if timeouts is not None else MatchTimeouts()
    # A table of events does not say where frames are missing.
    now = {"silent_ns": F.lit(0), "ended": F.lit(True), "from_seq": F.lit(-LAST_NS), "until_seq": F.lit(LAST_NS)}
    clocks = events.groupBy("capture_id").agg(F.max("mono_ns").alias("end_ns")).withColumns(now)
    clocks = clocks.withColumn("hole_ns", F.lit(None).cast("bigint"))
    folded = fold(engine, [turns_of(engine, events, timeouts)], timeouts, clocks, closes_of(engine, events))
    lost = folded.where("request_seq is null")
    return Correlated(exchanges_of(engine, folded), orphans_of(engine, events, lost))
