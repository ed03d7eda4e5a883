"""Numbers about a capture, from its tables: what the report shows, and ``metrics.json`` holds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from polybus.capture.schema import OUTCOMES

from ..stages.manifest import Output
from ..stages.results import load_files
from .metric_tables import METRICS

FEW: Final = 100
"""Below so many samples there is no p99."""
MANY: Final = 1000
"""Subjects, errors, peers, sessions and reasons beyond so many are left out of the numbers, the rarest first."""
FIRST: Final = 100
"""Gaps and losses beyond so many are counted only."""
SAMPLES: Final = 20
AT_ONCE: Final = 4
"""Questions that Spark is asked at the same time: a job on few rows is mostly waiting."""
WINDOWS: Final = 120
STEPS_S: Final = (0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, 86_400, 604_800)
STACKED: Final = 8
"""Subjects that a plot of throughput tells apart; the others are one."""
PERCENTILES: Final = (0.5, 0.9, 0.95, 0.99)
_ACCURACY: Final = 10_000
"""Of percentiles: the rank is wrong by at most one in so many."""
_BUCKETS_A_DECADE: Final = 5

Rows = list[dict[str, Any]]


def measure(spark: SparkSession, output: Output) -> dict[str, Any]:
    """The metrics of all that is there; the tables among them also go to ``metrics/`` as Parquet."""

    def table(name: str) -> DataFrame:
        return load_files(spark, output.storage, name, output.files(name))

    events, exchanges = table("events"), table("exchanges")
    kinds = _rows(_kinds(events))
    begin = min((row["first_ns"] for row in kinds), default=0)
    end = max((row["last_ns"] for row in kinds), default=0)
    width = _width_ns(end - begin)
    questions: dict[str, Callable[[], Rows]] = {
        "outcomes": lambda: _rows(_outcomes(exchanges)),
        "latency": lambda: _latency(exchanges),
        "latency_over_time": lambda: _rows(_over_time(exchanges, width)),
        "latency_histogram": lambda: _histogram(exchanges),
        "throughput": lambda: _rows(_throughput(events, width)),
        "errors": lambda: _rows(_errors(exchanges)),
        "slowest": lambda: _rows(_listed(exchanges.where("latency_ns is not null"), F.desc("latency_ns"))),
        "dead_letters": lambda: _rows(_dead_letters(exchanges)),
        "orphans": lambda: _rows(_most(_counted(table("orphans"), "protocol", "subject"))),
        "sessions": lambda: _rows(_sessions(events)),
        "peers": lambda: _rows(_peers(events)),
        "quarantine": lambda: _rows(_most(_counted(table("quarantine"), "protocol", "reason"))),
        "quarantine_samples": lambda: _rows(_quarantine_samples(table("quarantine"))),
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = {name: pool.submit(ask) for name, ask in questions.items()}
        tables: dict[str, Rows] = {"kinds": kinds} | {name: answer.result() for name, answer in answers.items()}
    _write(output, tables)
    last = output.last
    return {
        "capture": last.capture if last is not None else "",
        "runs": len(output.manifests),
        "settings": last.settings if last is not None else {},
        "begin_ns": begin,
        "end_ns": end,
        "window_ns": width,
        "counts": attrs.asdict(output.counts),
        "provisional": output.provisional,
        "totals": _totals(kinds, tables["outcomes"]),
        **tables,
        "gaps": [gap for manifest in output.manifests for gap in manifest.gaps][:FIRST],
        "losses": [loss for manifest in output.manifests for loss in manifest.losses][:FIRST],
    }


def _rows(frame: DataFrame) -> Rows:
    rows: Rows = frame.toArrow().to_pylist()
    return rows


def _counted(frame: DataFrame, *names: str) -> DataFrame:
    return frame.groupBy(*names).agg(F.count("*").alias("n"))


def _most(frame: DataFrame) -> DataFrame:
    return frame.orderBy(F.desc("n"), *[name for name in frame.columns if name != "n"]).limit(MANY)


def _width_ns(span: int) -> int:
    """Of the windows of time, so that there are not too many."""
    fitting = (step for step in STEPS_S if span <= step * 1e9 * WINDOWS)
    return round(next(fitting, STEPS_S[-1]) * 1e9)


def _window(time: str, width: int) -> Column:
    return F.expr(f"({time} div {width}) * {width}").alias("window_ns")


def _kinds(events: DataFrame) -> DataFrame:
    return events.groupBy("protocol", "kind", "direction").agg(
        F.count("*").alias("n"),
        F.sum("nbytes").alias("nbytes"),
        F.min("time_ns").alias("first_ns"),
        F.max("time_ns").alias("last_ns"),
    )


def _outcomes(exchanges: DataFrame) -> DataFrame:
    return exchanges.groupBy("protocol", "outcome", "match_quality").agg(
        F.count("*").alias("n"), F.sum("duplicates").alias("duplicates"), F.sum(F.col("attempts") - 1).alias("repeats")
    )


def _totals(kinds: Rows, outcomes: Rows) -> dict[str, Any]:
    def sums(rows: Rows, key: str, value: str = "n") -> dict[str, int]:
        found: dict[str, int] = {}
        for row in rows:
            found[row[key]] = found.get(row[key], 0) + row[value]
        return dict(sorted(found.items()))

    found = sums(outcomes, "outcome")
    return {
        "events": sum(row["n"] for row in kinds),
        "bytes": sum(row["nbytes"] for row in kinds),
        "by_kind": sums(kinds, "kind"),
        "by_protocol": sums(kinds, "protocol"),
        "exchanges": sum(row["n"] for row in outcomes),
        "outcomes": {name: found.get(name, 0) for name in OUTCOMES},
        "match_quality": sums(outcomes, "match_quality"),
        "duplicates": sum(row["duplicates"] for row in outcomes),
        "repeats": sum(row["repeats"] for row in outcomes),
    }


def _latency(exchanges: DataFrame) -> Rows:
    """By subject; ``n`` is the number of requests, ``answered`` that of latencies."""
    percentiles = F.percentile_approx("latency_ns", list(PERCENTILES), _ACCURACY)

    def count(outcome: str) -> Column:
        return F.count_if(F.col("outcome") == outcome).alias(outcome.replace("-", "_"))

    rows = _rows(
        _most(
            exchanges.groupBy("protocol", "subject").agg(
                F.count("*").alias("n"),
                F.count("latency_ns").alias("answered"),
                percentiles.alias("percentiles"),
                F.max("latency_ns").alias("max_ns"),
                F.avg("latency_ns").alias("mean_ns"),
                *[count(outcome) for outcome in OUTCOMES],
                F.sum("duplicates").alias("duplicates"),
            )
        )
    )
    for row in rows:
        values = row.pop("percentiles") or [None] * len(PERCENTILES)
        for share, value in zip(PERCENTILES, values, strict=True):
            row[f"p{round(share * 100)}_ns"] = None if share == 0.99 and row["answered"] < FEW else value
    return rows


def _over_time(exchanges: DataFrame, width: int) -> DataFrame:
    values = F.percentile_approx("latency_ns", [0.5, 0.95], _ACCURACY)
    grouped = exchanges.groupBy(_window("request_time_ns", width)).agg(
        F.count("*").alias("n"), F.count_if(F.col("outcome") != "ok").alias("not_ok"), values.alias("values")
    )
    return grouped.select(
        "window_ns", "n", "not_ok", F.col("values")[0].alias("p50_ns"), F.col("values")[1].alias("p95_ns")
    ).orderBy("window_ns")


def _histogram(exchanges: DataFrame) -> Rows:
    """Counts by latency, five buckets a decade; ``from_ns`` is where a bucket begins."""
    bucket = F.floor(F.log10(F.greatest("latency_ns", F.lit(1))) * _BUCKETS_A_DECADE).cast("int")
    counted = exchanges.where("latency_ns is not null").groupBy(bucket.alias("bucket")).agg(F.count("*").alias("n"))
    found = _rows(counted.orderBy("bucket"))
    return [{"from_ns": 10 ** (row["bucket"] / _BUCKETS_A_DECADE), "n": row["n"]} for row in found]


def _throughput(events: DataFrame, width: int) -> DataFrame:
    """Messages and bytes by window and subject; the busiest by name, the others together."""
    named = F.coalesce("subject", F.lit(""))
    counted = _counted(events.where("subject is not null"), "subject")
    busiest = [row["subject"] for row in _rows(counted.orderBy(F.desc("n"), "subject").limit(STACKED))]
    shown = F.when(named.isin(busiest), named) if busiest else F.lit(None).cast("string")
    grouped = events.groupBy(_window("time_ns", width), shown.alias("subject"))
    return grouped.agg(F.count("*").alias("n"), F.sum("nbytes").alias("nbytes")).orderBy("window_ns", "subject")


def _errors(exchanges: DataFrame) -> DataFrame:
    return _most(_counted(exchanges.where("code is not null and code != 0"), "protocol", "subject", "code", "code_name"))


def _listed(exchanges: DataFrame, order: Column) -> DataFrame:
    return exchanges.orderBy(order, "capture_id", "request_seq").limit(SAMPLES).select(*METRICS["slowest"][1].names)


def _dead_letters(exchanges: DataFrame) -> DataFrame:
    # By the clock of the wall: each recording of a folder counts its frames from 0.
    return _listed(exchanges.where("latency_ns is null"), F.asc("request_time_ns"))


def _sessions(events: DataFrame) -> DataFrame:
    opens, closes = F.col("kind") == "open", F.col("kind") == "close"
    handshake = F.max(F.when(opens, F.col("mono_ns"))) - F.min(F.when(opens, F.col("mono_ns")))
    grouped = events.groupBy("capture_id", "conn_id", "protocol").agg(
        F.first("transport", ignorenulls=True).alias("transport"),
        F.first("peer", ignorenulls=True).alias("peer"),
        F.count("*").alias("n"),
        F.sum("nbytes").alias("nbytes"),
        F.min("time_ns").alias("first_ns"),
        F.max("time_ns").alias("last_ns"),
        (F.max("mono_ns") - F.min("mono_ns")).alias("length_ns"),
        F.when(F.count_if(opens) > 1, handshake).alias("handshake_ns"),
        F.count_if(F.col("kind") == "heartbeat").alias("heartbeats"),
        F.max(F.when(closes, F.coalesce("code_name", F.lit("closed")))).alias("closed"),
    )
    return _most(grouped)


def _peers(events: DataFrame) -> DataFrame:
    return _most(events.groupBy("peer", "protocol", "direction").agg(F.count("*").alias("n"), F.sum("nbytes").alias("nbytes")))


def _quarantine_samples(quarantine: DataFrame) -> DataFrame:
    more = {"raw_hex": F.hex(F.substring("raw", 1, 48)), "size": F.length("raw")}
    samples = quarantine.orderBy("capture_id", "seq").limit(SAMPLES).withColumns(more)
    return samples.select(*METRICS["quarantine_samples"][1].names)


def _write(output: Output, tables: dict[str, Rows]) -> None:
    for name, rows in tables.items():
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, METRICS[name][1]), buffer)
        output.storage.write(f"metrics/{name}.parquet", buffer.getvalue().to_pybytes())
