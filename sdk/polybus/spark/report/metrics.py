"""Numbers about a capture, from its tables: what the report shows, and ``metrics.json`` holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from polybus.capture.schema import OUTCOMES

from ..stages.manifest import Output, load_files
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
    times = {"first_ns": F.min("time_ns"), "last_ns": F.max("time_ns")}
    kinds = _rows(_counted(events, "protocol", "kind", "direction", nbytes=F.sum("nbytes"), **times))
    begin = min((row["first_ns"] for row in kinds), default=0)
    end = max((row["last_ns"] for row in kinds), default=0)
    # Windows of time so wide that there are not too many.
    width = round(next((step for step in STEPS_S if end - begin <= step * 1e9 * WINDOWS), STEPS_S[-1]) * 1e9)
    repeats = {"duplicates": F.sum("duplicates"), "repeats": F.sum(F.col("attempts") - 1)}
    questions: dict[str, Callable[[], Rows | DataFrame]] = {
        "outcomes": lambda: _counted(exchanges, "protocol", "outcome", "match_quality", **repeats),
        "latency": lambda: _latency(exchanges),
        "latency_over_time": lambda: _over_time(exchanges, width),
        "latency_histogram": lambda: _histogram(exchanges),
        "throughput": lambda: _throughput(events, width),
        "errors": lambda: _most(exchanges.where("code is not null and code != 0"), "protocol", "subject", "code", "code_name"),
        "slowest": lambda: _listed(exchanges.where("latency_ns is not null"), F.desc("latency_ns")),
        "dead_letters": lambda: _dead_letters(exchanges),
        "orphans": lambda: _most(table("orphans"), "protocol", "subject"),
        "sessions": lambda: _sessions(events),
        "peers": lambda: _most(events, "peer", "protocol", "direction", nbytes=F.sum("nbytes")),
        "quarantine": lambda: _most(table("quarantine"), "protocol", "reason"),
        "quarantine_samples": lambda: _quarantine_samples(table("quarantine")),
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = {name: pool.submit(lambda ask: _rows(ask()), ask) for name, ask in questions.items()}
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


def _rows(found: DataFrame | Rows) -> Rows:
    rows: Rows = found if isinstance(found, list) else found.toArrow().to_pylist()
    return rows


def _counted(frame: DataFrame, *keys: str | Column, **more: Column) -> DataFrame:
    """The number of rows by some keys, and more about them."""
    return frame.groupBy(*keys).agg(F.count("*").alias("n"), *(column.alias(name) for name, column in more.items()))


def _most(frame: DataFrame, *keys: str, **more: Column) -> DataFrame:
    """The same of the keys that have the most rows."""
    counted = _counted(frame, *keys, **more)
    return counted.orderBy(F.desc("n"), *[name for name in counted.columns if name != "n"]).limit(MANY)


def _window(time: str, width: int) -> Column:
    return F.expr(f"({time} div {width}) * {width}").alias("window_ns")


def _totals(kinds: Rows, outcomes: Rows) -> dict[str, Any]:
    def sums(rows: Rows, key: str) -> dict[str, int]:
        found = Counter[str]()
        for row in rows:
            found[row[key]] += row["n"]
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
    rows = _rows(
        _most(
            exchanges,
            "protocol",
            "subject",
            answered=F.count("latency_ns"),
            percentiles=F.percentile_approx("latency_ns", list(PERCENTILES), _ACCURACY),
            max_ns=F.max("latency_ns"),
            mean_ns=F.avg("latency_ns"),
            **{name.replace("-", "_"): F.count_if(F.col("outcome") == name) for name in OUTCOMES},
            duplicates=F.sum("duplicates"),
        )
    )
    for row in rows:
        values = row.pop("percentiles") or [None] * len(PERCENTILES)
        for share, value in zip(PERCENTILES, values, strict=True):
            row[f"p{round(share * 100)}_ns"] = None if share == 0.99 and row["answered"] < FEW else value
    return rows


def _over_time(exchanges: DataFrame, width: int) -> DataFrame:
    values = F.percentile_approx("latency_ns", [0.5, 0.95], _ACCURACY)
    not_ok = F.count_if(F.col("outcome") != "ok")
    grouped = _counted(exchanges, _window("request_time_ns", width), not_ok=not_ok, values=values).orderBy("window_ns")
    return grouped.select("*", F.col("values")[0].alias("p50_ns"), F.col("values")[1].alias("p95_ns")).drop("values")


def _histogram(exchanges: DataFrame) -> Rows:
    """Counts by latency, five buckets a decade; ``from_ns`` is where a bucket begins."""
    bucket = F.floor(F.log10(F.greatest("latency_ns", F.lit(1))) * _BUCKETS_A_DECADE).cast("int")
    counted = _counted(exchanges.where("latency_ns is not null"), bucket.alias("bucket")).orderBy("bucket")
    return [{"from_ns": 10 ** (row["bucket"] / _BUCKETS_A_DECADE), "n": row["n"]} for row in _rows(counted)]


def _throughput(events: DataFrame, width: int) -> DataFrame:
    """Messages and bytes by window and subject; the busiest by name, the others together."""
    named = F.coalesce("subject", F.lit(""))
    counted = _counted(events.where("subject is not null"), "subject")
    busiest = [row["subject"] for row in _rows(counted.orderBy(F.desc("n"), "subject").limit(STACKED))]
    shown = F.when(named.isin(busiest), named) if busiest else F.lit(None).cast("string")
    grouped = _counted(events, _window("time_ns", width), shown.alias("subject"), nbytes=F.sum("nbytes"))
    return grouped.orderBy("window_ns", "subject")


def _listed(exchanges: DataFrame, order: Column) -> DataFrame:
    return exchanges.orderBy(order, "capture_id", "request_seq").limit(SAMPLES).select(*METRICS["slowest"][1].names)


def _dead_letters(exchanges: DataFrame) -> DataFrame:
    # By the clock of the wall: each recording of a folder counts its frames from 0.
    return _listed(exchanges.where("latency_ns is null"), F.asc("request_time_ns"))


def _sessions(events: DataFrame) -> DataFrame:
    opens, closes = F.col("kind") == "open", F.col("kind") == "close"
    handshake = F.max(F.when(opens, F.col("mono_ns"))) - F.min(F.when(opens, F.col("mono_ns")))
    return _most(
        events,
        "capture_id",
        "conn_id",
        "protocol",
        transport=F.first("transport", ignorenulls=True),
        peer=F.first("peer", ignorenulls=True),
        nbytes=F.sum("nbytes"),
        first_ns=F.min("time_ns"),
        last_ns=F.max("time_ns"),
        length_ns=F.max("mono_ns") - F.min("mono_ns"),
        handshake_ns=F.when(F.count_if(opens) > 1, handshake),
        heartbeats=F.count_if(F.col("kind") == "heartbeat"),
        closed=F.max(F.when(closes, F.coalesce("code_name", F.lit("closed")))),
    )


def _quarantine_samples(quarantine: DataFrame) -> DataFrame:
    more = {"raw_hex": F.hex(F.substring("raw", 1, 48)), "size": F.length("raw")}
    samples = quarantine.orderBy("capture_id", "seq").limit(SAMPLES).withColumns(more)
    return samples.select(*METRICS["quarantine_samples"][1].names)


def _write(output: Output, tables: dict[str, Rows]) -> None:
    for name, rows in tables.items():
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, METRICS[name][1]), buffer)
        output.storage.write(f"metrics/{name}.parquet", buffer.getvalue().to_pybytes())
