"""What `bench.spark` measures, each part in a process of its own."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from attrs import asdict, frozen

from bench.spark_data import decoded, truth_of

__all__ = ["PARTS", "PROTOCOLS", "TRAFFIC", "Measured", "Sizes", "cpu_now", "median_of"]

PROTOCOLS: Final = ("ubre", "csb", "jrep", "uprotocol", "up")
TRAFFIC: Final = (*PROTOCOLS, *(f"{name}-alike" for name in PROTOCOLS))
"""Captures of one protocol: as applications speak it, and of frames that are alike but for an id and a number."""
SLIM: Final = "kind,subject,correlation_id,code,seq,mono_ns"
ROUNDS: Final = 3


@frozen
class Sizes:
    """How much is read."""

    frames: int
    times: int

    @property
    def both(self) -> tuple[int, int]:
        """Frames of the smaller and of the larger capture."""
        return self.frames, self.frames * self.times


@frozen
class Measured:
    """One row of the result."""

    name: str
    rows: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        """Thousand rows a second of the clock."""
        return self.rows / self.seconds / 1000

    def to_json(self) -> str:
        """As a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Measured:
        """From a line."""
        return cls(**json.loads(line))


def median_of(rows: Sequence[Measured]) -> Measured:
    """The one in the middle, by time of the clock."""
    return sorted(rows, key=lambda row: row.seconds)[len(rows) // 2]


def cpu_now() -> float:
    """Seconds of the processor of this process and those that it has started."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def measured(name: str, rows: int, work: Callable[[], Any]) -> Measured:
    """Do something."""
    cpu, begin = cpu_now(), time.perf_counter()
    work()
    return Measured(name, rows, time.perf_counter() - begin, cpu_now() - cpu)


Case = tuple[str, int, Callable[[], Any]]
"""Name, rows, work."""


def in_turns(cases: Sequence[Case], rounds: int = ROUNDS) -> Iterator[Measured]:
    """Some works that are compared: once for nothing, then in turns, each time another one first."""
    for _, _, work in cases:
        work()
    for number in range(rounds):
        first = number % len(cases)
        for name, rows, work in (*cases[first:], *cases[:first]):
            yield measured(name, rows, work)


def _session(cores: int) -> Any:
    from polybus.spark import BusDataSource, start_session
    from polybus.spark.session import sockets

    settings = {"spark.sql.shuffle.partitions": str(2 * cores), "spark.driver.memory": "6g", **sockets()}
    spark = start_session(f"local[{cores}]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(BusDataSource)
    # The first Python worker takes seconds to start.
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    return spark


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _by_expressions(frames: Any) -> Any:
    """Five columns of CSB by Spark's own expressions, which check nothing: no bodies, no names, no lengths."""
    from pyspark.sql import functions as F

    def hexadecimal(first: int, size: int) -> Any:
        return F.substring("head", 2 * first + 1, 2 * size)

    answers = hexadecimal(0, 1).startswith("2")
    return frames.select(F.hex(F.substring("frame", 1, 8)).alias("head"), F.octet_length("frame").alias("nbytes")).select(
        F.when(answers, "response").when(hexadecimal(4, 4) == "FFFF0006", "publish").otherwise("request").alias("kind"),
        F.concat(F.lit("0x"), hexadecimal(4, 4)).alias("subject"),
        F.conv(hexadecimal(2, 2), 16, 10).alias("correlation_id"),
        F.when(answers, 0).alias("code"),
        "nbytes",
    )


def decode_part(folder: Path, sizes: Sizes) -> Iterator[Measured]:
    """Scan and decode, one task slot, each protocol."""
    from polybus.spark import scan

    spark = _session(1)
    for name in TRAFFIC:
        truth, path = truth_of(folder / name), str(folder / name)
        columns, six = str(decoded(folder / name)), SLIM.split(",")
        frames = {
            "scan of frames, native Parquet": spark.read.parquet(str(folder / f"{name}-frames")).select("frame"),
            "scan of frames, our source": spark.read.format("polybus").options(table="raw", columns="frame").load(path),
            "decode, 6 columns": spark.read.format("polybus").options(columns=SLIM).load(path),
            "decode, all columns": spark.read.format("polybus").load(path),
            "decoded before, 6 columns, Spark's scan": scan(spark, columns).select(*six),
            "decoded before, 6 columns, our source": spark.read.format("polybus").options(columns=SLIM).load(columns),
            "decoded before, all columns, Spark's scan": scan(spark, columns),
            "decoded before, all columns, our source": spark.read.format("polybus").load(columns),
        }
        assert [frame.count() for frame in frames.values()] == [truth.rows] * 2 + [truth.events] * 6
        if name == "csb-alike":
            frames["5 columns, Spark's own expressions"] = _by_expressions(frames["scan of frames, native Parquet"])
        yield from in_turns([(f"{name}: {what}", truth.rows, partial(_noop, frame)) for what, frame in frames.items()])


def columns_part(folder: Path, sizes: Sizes) -> Iterator[Measured]:
    """Decoding once: `polybus capture decode`, one process, all columns written."""
    from polybus.capture import write_columns

    def anew(capture: Path) -> None:
        for table in ("events", "quarantine"):
            shutil.rmtree(capture / table, ignore_errors=True)
        write_columns(capture)

    for name in TRAFFIC:
        yield from in_turns([(f"{name}: decode once", truth_of(folder / name).rows, partial(anew, decoded(folder / name)))])


def _pipeline_part(cores: int) -> Callable[[Path, Sizes], Iterator[Measured]]:
    def part(folder: Path, sizes: Sizes) -> Iterator[Measured]:
        spark = _session(cores)
        name = f"pipeline, {cores} core{'s' if cores > 1 else ''}"
        small, large = sizes.both
        yield from _pipeline(spark, f"{name}, {small:,} frames, first run", folder / f"all-{small}", folder / f"out-{cores}")
        # The larger one between two of the smaller: what the machine does meanwhile happens to both.
        for frames in (small, large, small) if cores > 1 else (small, small):
            out = folder / f"out-{cores}-{frames}"
            yield from _pipeline(spark, f"{name}, {frames:,} frames", folder / f"all-{frames}", out)

    return part


def _pipeline(spark: Any, name: str, capture: Path, out: Path) -> Iterator[Measured]:
    from polybus.spark import Pipeline

    truth = truth_of(capture)
    shutil.rmtree(out, ignore_errors=True)
    stages: list[tuple[str, float, float]] = []

    def note(stage: str) -> None:
        stages.append((stage, time.perf_counter(), cpu_now()))

    note("")
    done = Pipeline(spark, progress=note).run(capture, out)
    note("")
    assert (done.total.events, done.total.exchanges) == (truth.events, truth.exchanges)
    assert done.total.frames == done.total.rowed + done.total.quarantined + done.total.empty == truth.rows - done.total.gaps
    for (_, begin, cpu), (_, end, cpu_end) in ((stages[0], stages[-1]),):
        yield Measured(name, truth.rows, end - begin, cpu_end - cpu)
    for (stage, begin, cpu), (_, end, cpu_end) in zip(stages[1:], stages[2:], strict=False):
        yield Measured(f"{name}: {stage}", truth.rows, end - begin, cpu_end - cpu)


def correlation_part(folder: Path, sizes: Sizes) -> Iterator[Measured]:
    """Which answer belongs to which request, from events to a sink that writes nothing."""
    from polybus.spark import correlate, load

    spark = _session(2)
    cases: list[Case] = []
    for frames in sizes.both:
        truth = truth_of(folder / f"all-{frames}")
        events = load(spark, str(folder / f"out-2-{frames}"), "events")
        pairs = correlate(events).exchanges
        assert (events.count(), pairs.count()) == (truth.events, truth.exchanges)
        cases.append((f"correlation, {frames:,} frames", truth.events, partial(_noop, pairs)))
    yield from in_turns(cases)


def aggregation_part(folder: Path, sizes: Sizes) -> Iterator[Measured]:
    """Latency by subject over the exchanges of the larger capture: Spark, and DuckDB over the same files."""
    import duckdb

    from polybus.analysis.manifest import Output
    from polybus.analysis.storage import Storage
    from polybus.spark import load

    spark = _session(2)
    out = folder / f"out-2-{sizes.both[1]}"
    rows = truth_of(folder / f"all-{sizes.both[1]}").exchanges
    files = [str(out / name) for name in Output(Storage(out)).files("exchanges")]
    load(spark, str(out), "exchanges").createOrReplaceTempView("exchanges")
    query = (
        "select subject, count(*) n, count(latency_ns) answered, {median}(latency_ns, 0.5) p50, max(latency_ns) longest "
        "from {table} group by subject order by subject"
    )
    asked = query.format(median="percentile_approx", table="exchanges")
    native = query.format(median="quantile_disc", table=f"read_parquet({files!r})")

    def duck(threads: int) -> list[Any]:
        duckdb.sql(f"set threads = {threads}")
        made: Any = duckdb.sql(native)
        return [(row[0], row[1], row[4]) for row in made.fetchall()]

    found = [(row["subject"], row["n"], row["longest"]) for row in spark.sql(asked).collect()]
    assert duck(1) == found and sum(row[1] for row in found) == rows
    cases: list[Case] = [("aggregation, Spark 2 cores", rows, lambda: spark.sql(asked).collect())]
    cases += [(f"aggregation, DuckDB {threads}", rows, partial(duck, threads)) for threads in (1, 2)]
    yield from in_turns(cases)


PARTS: Final[dict[str, Callable[[Path, Sizes], Iterator[Measured]]]] = {
    "columns": columns_part,
    "decode": decode_part,
    "pipeline-2": _pipeline_part(2),
    "pipeline-1": _pipeline_part(1),
    "correlation": correlation_part,
    "aggregation": aggregation_part,
}
