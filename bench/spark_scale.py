"""How the pipeline grows: ``python -m bench.spark_scale [--frames 1000000,5000000,20000000] [--only growth,skew,workers]``.

Each run is a process of its own: captures of growing size by DuckDB and by Spark, with the most memory that was resident; one
connection that has 95 % of the frames beside twenty that share them; and one and two workers, each with a JVM and Python of its
own. Events and exchanges of each run are asserted. Traffic is that of applications: no two frames are alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.spark_data import BATCHES, ROWS, make, truth_of
from bench.spark_large import Watch
from bench.spark_parts import cpu_now
from polybus.capture.store.segments import SegmentWriter
from tests.unit.capture.generator import Traffic, traffic

HEAP: Final = "4g"
WORKERS: Final = "local-cluster[{},1,3072]"
PART: Final = 0.95
"""Of the frames, on the connection that has most of them."""
CONNECTIONS: Final = 20


def run(engine: str, capture: Path, out: Path) -> dict[str, Any]:
    """Analyse a capture, by DuckDB or by Spark on a master."""
    with ExitStack() as stack:
        if engine == "duckdb":
            from polybus.analysis import DuckEngine, Pipeline

            pipeline = Pipeline(stack.enter_context(DuckEngine()))
        else:
            from polybus.spark import Pipeline as SparkPipeline
            from polybus.spark import start_session
            from polybus.spark.session import sockets

            # Each worker binds to the loopback too, and so many parts of a shuffle keep both of them busy.
            settings = {
                "spark.driver.memory": HEAP,
                "spark.executor.memory": "2g",
                "spark.sql.shuffle.partitions": "8",
                **sockets(),
            }
            spark = start_session(engine, settings=settings)
            stack.callback(spark.stop)
            spark.sparkContext.setLogLevel("ERROR")
            pipeline = SparkPipeline(spark)
        watch = stack.enter_context(Watch())
        cpu, begin = cpu_now(), time.perf_counter()
        done = pipeline.run(capture, out)
        seconds, cpu = time.perf_counter() - begin, cpu_now() - cpu
    truth = truth_of(capture)
    assert (done.total.events, done.total.exchanges) == (truth.events, truth.exchanges), (done.total, truth)
    return {"rows": truth.rows, "seconds": seconds, "cpu": cpu, "most": watch.most}


def measured(engine: str, capture: Path) -> dict[str, Any]:
    """The same in a process of its own."""
    out = capture.with_name(f"{capture.name}-out")
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "bench.spark_scale", "--run", engine, str(capture), str(out)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    shutil.rmtree(out, ignore_errors=True)
    if said.returncode:
        raise RuntimeError(said.stderr[-3000:])
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    most = ", ".join(f"{kind} {size >> 20:,} MiB" for kind, size in found["most"].items())
    took = f"{found['rows']:>10,} rows {found['seconds']:8.1f} s {found['cpu']:8.1f} s cpu"
    print(f"  {engine:24} {capture.name:16} {took}; {most}", flush=True)
    return found


def growth(folder: Path, sizes: Sequence[int], engines: Sequence[str]) -> None:
    """Captures of each size, by each engine."""
    for engine in engines:
        found = []
        for size in sizes:
            make(folder / f"varied-{size}", size)
            found.append(measured(engine, folder / f"varied-{size}"))
        for one in found[1:]:
            times = one["rows"] / found[0]["rows"]
            print(f"{engine}, {times:.1f} times as many frames: {_ratio(one, found[0])}", flush=True)


def skew(folder: Path, frames: int, engines: Sequence[str]) -> None:
    """A capture most of which is one connection, beside one in which twenty have as much each."""
    most = traffic(round(frames * PART), protocols=("jrep",), connections=1, alike=False)
    rest = traffic(
        round(frames * (1 - PART)),
        protocols=("jrep",),
        connections=CONNECTIONS - 1,
        alike=False,
        capture_id="20231114T221320-rest",
    )
    _write(folder / "uneven", [most, rest])
    _write(folder / "even", [traffic(frames, protocols=("jrep",), connections=CONNECTIONS, alike=False)])
    for engine in engines:
        turns = [[measured(engine, folder / name) for name in ("even", "uneven")] for _ in range(2)]
        even, uneven = (min((turn[place] for turn in turns), key=lambda one: one["seconds"]) for place in (0, 1))
        print(f"{engine}, {PART:.0%} of the frames on one connection: {_ratio(uneven, even)}", flush=True)


def workers(folder: Path, frames: int) -> None:
    """One worker and two, in turns."""
    make(folder / f"varied-{frames}", frames)
    turns = [[measured(WORKERS.format(count), folder / f"varied-{frames}") for count in (1, 2)] for _ in range(2)]
    one, two = (min((turn[place] for turn in turns), key=lambda run: run["seconds"]) for place in (0, 1))
    print(f"one worker / two: {_ratio(one, two)}", flush=True)


def _ratio(one: dict[str, Any], other: dict[str, Any]) -> str:
    return f"{one['seconds'] / other['seconds']:.2f} (clock), {one['cpu'] / other['cpu']:.2f} (processor)"


def _write(folder: Path, parts: Sequence[Traffic]) -> None:
    """Write recordings into one capture, one after the other, and beside it what must be found."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    number = 0
    for part in parts:
        batches = list(part.batches(ROWS))
        for begin in range(0, len(batches), BATCHES):
            writer = SegmentWriter(folder, number)
            for batch in batches[begin : begin + BATCHES]:
                writer.write(batch, batch.column("seq")[0].as_py())
            writer.seal()
            number += 1
    truth = [sum(numbers) for numbers in zip(*((*_counts(part),) for part in parts), strict=True)]
    folder.with_name(f"{folder.name}.json").write_text(
        json.dumps(dict(zip(("rows", "size", "events", "exchanges"), truth, strict=True)))
    )


def _counts(made: Traffic) -> tuple[int, int, int, int]:
    return made.table.num_rows, made.table["frame"].nbytes, sum(made.events.values()), made.exchanges.num_rows


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--frames", default="1000000,5000000,20000000", help="of the captures, with commas")
    parser.add_argument("--engines", nargs="*", default=["duckdb", "local[2]"], help="duckdb, or masters of Spark")
    parser.add_argument("--only", default="growth,skew,workers", help="some parts, with commas")
    parser.add_argument("--folder", type=Path, help="where captures are, or are made and stay")
    parser.add_argument("--run", nargs=3, help="(of the program itself)")
    given = parser.parse_args()
    if given.run:
        engine, capture, out = given.run
        print(json.dumps(run(engine, Path(capture), Path(out))))
        return
    sizes = [int(size) for size in given.frames.split(",")]
    parts = {
        "growth": lambda at: growth(at, sizes, given.engines),
        "skew": lambda at: skew(at, sizes[0], given.engines),
        "workers": lambda at: workers(at, sizes[0]),
    }
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-scale-")))
        for name in given.only.split(","):
            parts[name](folder)


if __name__ == "__main__":
    main()
