"""How fast the pipeline is on Spark: ``python -m bench.spark [--frames 1000000]``.

Everything is measured in one run, so that the ratios mean something on a machine that others use too; seconds of the processor
(of the driver, its JVM and the Python workers together) stand beside those of the clock. The number of rows of each
measurement is asserted: a reader that loses rows is fast. The rows where DuckDB is better are printed like the others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from attrs import asdict, frozen

from tests.capture.generator import traffic

PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")
SLIM = "kind,subject,correlation_id,code,seq,mono_ns"


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


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--part", help="(of the program itself)")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.part:
        for row in PARTS[given.part](given.folder, given.frames):
            print(json.dumps(asdict(row)), flush=True)
        return
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        prepare(folder, given.frames)
        rows = [row for part in PARTS for row in run_part(part, folder, given.frames)]
    finally:
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    show(rows)


def prepare(folder: Path, frames: int) -> None:
    """Captures of each protocol and of all together, and the frames as Parquet."""
    for name in (*PROTOCOLS, "all"):
        if (folder / name).exists():
            continue
        made = traffic(frames if name == "all" else frames // 2, protocols=PROTOCOLS if name == "all" else (name,))
        made.write(folder / name)
        (folder / f"{name}-frames").mkdir()
        half = made.table.num_rows // 2 + 1
        for number in range(2):
            pq.write_table(made.table.slice(number * half, half), folder / f"{name}-frames" / f"{number}.parquet")
        truth = {"rows": made.table.num_rows, "events": sum(made.events.values()), "exchanges": made.exchanges.num_rows}
        (folder / f"{name}.json").write_text(json.dumps(truth))


def truth_of(folder: Path, name: str) -> dict[str, int]:
    truth: dict[str, int] = json.loads((folder / f"{name}.json").read_text())
    return truth


def run_part(part: str, folder: Path, frames: int) -> Iterator[Measured]:
    """In a process of its own: there is one session a process, and it has its cores."""
    command = [sys.executable, "-m", "bench.spark", "--part", part, "--folder", str(folder), "--frames", str(frames)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    for line in done.stdout.splitlines():
        row = Measured(**json.loads(line))
        print(
            f"  {row.name:44} {row.rows:>10,} rows {row.seconds:8.2f} s {row.rate:8.0f} krow/s {row.cpu:8.2f} s cpu", flush=True
        )
        yield row


# -- parts -------------------------------------------------------------------------------------------------------------------


def _session(cores: int) -> Any:
    from polybus.spark import BusDataSource, start_session

    settings = {"spark.sql.shuffle.partitions": str(2 * cores), "spark.driver.memory": "6g"}
    spark = start_session(f"local[{cores}]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(BusDataSource)
    # The first Python worker takes seconds to start.
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    return spark


def _cpu() -> float:
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
    cpu, begin = _cpu(), time.perf_counter()
    work()
    return Measured(name, rows, time.perf_counter() - begin, _cpu() - cpu)


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def decode_part(folder: Path, frames: int) -> Iterator[Measured]:
    """Scan and decode, one task slot, each protocol; interleaved, so that they share the machine's moods."""
    spark = _session(1)
    for name in PROTOCOLS:
        truth = truth_of(folder, name)
        path = str(folder / name)
        scan = spark.read.parquet(str(folder / f"{name}-frames")).select("frame")
        raw = spark.read.format("polybus").options(table="raw", columns="frame").load(path)
        slim = spark.read.format("polybus").options(columns=SLIM).load(path)
        full = spark.read.format("polybus").load(path)
        assert scan.count() == raw.count() == truth["rows"]
        assert slim.count() == full.count() == truth["events"]
        yield measured(f"{name}: scan of frames, native Parquet", truth["rows"], lambda frame=scan: _noop(frame))
        yield measured(f"{name}: scan of frames, our source", truth["rows"], lambda frame=raw: _noop(frame))
        yield measured(f"{name}: decode, 6 columns", truth["rows"], lambda frame=slim: _noop(frame))
        yield measured(f"{name}: decode, all columns", truth["rows"], lambda frame=full: _noop(frame))


def _pipeline_part(cores: int) -> Callable[[Path, int], Iterator[Measured]]:
    def part(folder: Path, frames: int) -> Iterator[Measured]:
        from polybus.spark import Pipeline

        truth = truth_of(folder, "all")
        out = folder / f"out-{cores}"
        shutil.rmtree(out, ignore_errors=True)
        stages: list[tuple[str, float]] = []
        spark = _session(cores)
        pipeline = Pipeline(spark, progress=lambda stage: stages.append((stage, time.perf_counter())))
        done: list[Any] = []
        whole = measured(f"pipeline, {cores} core(s)", truth["rows"], lambda: done.append(pipeline.run(folder / "all", out)))
        assert done[0].total.events == truth["events"]
        assert done[0].total.exchanges == truth["exchanges"]
        yield whole
        ends = [*[begin for _, begin in stages[1:]], stages[0][1] + whole.seconds]
        for (stage, begin), end in zip(stages, ends, strict=True):
            yield Measured(f"pipeline, {cores} core(s): {stage}", truth["rows"], end - begin, 0.0)

    return part


def correlation_part(folder: Path, frames: int) -> Iterator[Measured]:
    """The same events once and five times (with other capture ids), twice each in turn; the second time counts."""
    from pyspark.sql import functions as F

    from polybus.spark import correlate, load

    spark = _session(2)
    truth = truth_of(folder, "all")
    wide = load(spark, str(folder / "out-2"), "events").drop("tunnel")
    five = folder / "five"
    if not five.exists():
        copies = wide.crossJoin(spark.range(5).withColumnRenamed("id", "copy"))
        copies.withColumn("capture_id", F.concat("capture_id", F.lit("-"), "copy")).drop("copy").write.parquet(str(five))
        wide.write.parquet(str(folder / "one"))
    sources = [(1, spark.read.parquet(str(folder / "one"))), (5, spark.read.parquet(str(five)))]
    for times, events in sources:
        assert events.count() == times * truth["events"]
        assert correlate(events).exchanges.count() == times * truth["exchanges"]
    for times, events in (*sources, *sources):
        name = f"correlation, {times} x"
        yield measured(name, times * truth["events"], lambda frame=events: _noop(correlate(frame).exchanges))


def aggregation_part(folder: Path, frames: int) -> Iterator[Measured]:
    """Latency by subject over the exchanges: Spark, and DuckDB with one and two threads over the same files."""
    import duckdb

    from polybus.spark.manifest import Output
    from polybus.spark.storage import Storage

    spark = _session(2)
    truth = truth_of(folder, "all")
    output = Output(Storage(folder / "out-2"))
    files = [str(folder / "out-2" / name) for name in output.files("exchanges")]
    query = (
        "select subject, count(*) n, count(latency_ns) answered, {median}(latency_ns, 0.5) p50, max(latency_ns) longest "
        "from {table} group by subject order by subject"
    )
    spark.read.parquet(*files).createOrReplaceTempView("exchanges")
    asked = query.format(median="percentile_approx", table="exchanges")
    native = query.format(median="quantile_disc", table=f"read_parquet({files!r})")
    found = [(row["subject"], row["n"], row["longest"]) for row in spark.sql(asked).collect()]
    for _ in range(2):
        yield measured("aggregation, Spark 2 cores", truth["exchanges"], lambda: spark.sql(asked).collect())
        for threads in (1, 2):
            duckdb.sql(f"set threads = {threads}")
            rows = duckdb.sql(native).fetchall()
            assert [(row[0], row[1], row[4]) for row in rows] == found
            yield measured(
                f"aggregation, DuckDB {threads} thread(s)", truth["exchanges"], lambda: duckdb.sql(native).fetchall()
            )


PARTS: dict[str, Callable[[Path, int], Iterator[Measured]]] = {
    "decode": decode_part,
    "pipeline-2": _pipeline_part(2),
    "pipeline-1": _pipeline_part(1),
    "correlation": correlation_part,
    "aggregation": aggregation_part,
}


def show(rows: list[Measured]) -> None:
    """The ratios that we hold ourselves to."""
    best: dict[str, Measured] = {}
    for row in rows:
        if row.name not in best or row.seconds < best[row.name].seconds:
            best[row.name] = row
    print()
    for name in PROTOCOLS:
        limit = best[f"{name}: scan of frames, native Parquet"].rate
        slim, full = best[f"{name}: decode, 6 columns"].rate, best[f"{name}: decode, all columns"].rate
        print(f"{name:10} decode / scan limit: {slim / limit:.2f} (6 columns), {full / limit:.2f} (all)")
    grown = best["correlation, 5 x"], best["correlation, 1 x"]
    clock, processor = grown[0].seconds / grown[1].seconds, grown[0].cpu / grown[1].cpu
    print(f"correlation 5 x / 1 x: {clock:.2f} (clock), {processor:.2f} (processor)")
    one, two = best["pipeline, 1 core(s)"], best["pipeline, 2 core(s)"]
    print(f"pipeline, one core / two cores: {one.seconds / two.seconds:.2f}")
    ducks = best["aggregation, Spark 2 cores"].seconds / best["aggregation, DuckDB 2 thread(s)"].seconds
    print(f"aggregation: DuckDB is {ducks:.0f} times as fast as Spark on this machine")


if __name__ == "__main__":
    main()
