"""How fast the pipeline is on Spark: ``python -m bench.spark [--frames 1000000 --times 5 --large 10000000]``.

Everything is measured in one run, so that the ratios mean something on a machine that others use too; seconds of the processor
(of the driver, its JVM and the Python workers together) stand beside those of the clock. What is compared takes turns, in
another order each round, after a round that does not count; the first run of a session is a row of its own. The number of rows
of each measurement is asserted: a reader that loses rows is fast. The rows where DuckDB is better are printed like the others.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.spark_data import make
from bench.spark_parts import PARTS, TRAFFIC, Measured, Sizes, median_of


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--frames", type=int, default=1_000_000, help="of the smaller capture")
    parser.add_argument("--times", type=int, default=5, help="how many times as large the larger one is")
    parser.add_argument("--large", type=int, default=10_000_000, help="rows that are read in partitions; 0 for none")
    parser.add_argument("--only", help=f"some parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--folder", type=Path, help="where captures are, or are made and stay")
    parser.add_argument("--part", help="(of the program itself)")
    given = parser.parse_args()
    sizes = Sizes(given.frames, given.times)
    if given.part:
        for row in PARTS[given.part](given.folder, sizes):
            print(row.to_json(), flush=True)
        return
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-spark-"))
    try:
        prepare(folder, sizes)
        rows = [row for part in (given.only.split(",") if given.only else PARTS) for row in run_part(part, folder, sizes)]
    finally:
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    show(rows, sizes)
    if given.large and not given.only:
        subprocess.run([sys.executable, "-m", "bench.spark_large", "--rows", str(given.large)], check=True)


def prepare(folder: Path, sizes: Sizes) -> None:
    """Captures of each protocol, of both kinds of traffic, and of all protocols together; and the frames as Parquet."""
    for name in TRAFFIC:
        protocol, _, alike = name.partition("-")
        make(folder / name, sizes.frames, (protocol,), also_parquet=True, alike=bool(alike))
    for frames in sizes.both:
        make(folder / f"all-{frames}", frames)


def run_part(part: str, folder: Path, sizes: Sizes) -> Iterator[Measured]:
    """In a process of its own: there is one session a process, and it has its cores."""
    command = [sys.executable, "-m", "bench.spark", "--part", part, "--folder", str(folder)]
    command += ["--frames", str(sizes.frames), "--times", str(sizes.times)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            row = Measured.from_json(line)
            print(
                f"  {row.name:52} {row.rows:>10,} rows {row.seconds:8.2f} s {row.rate:8.0f} krow/s {row.cpu:8.2f} s cpu",
                flush=True,
            )
            yield row
        said = process.stderr.read()
    if process.returncode:
        raise RuntimeError(said[-3000:])


def show(rows: list[Measured], sizes: Sizes) -> None:
    """The ratios that we hold ourselves to."""
    found = {name: median_of([row for row in rows if row.name == name]) for name in {row.name for row in rows}}

    def ratio(said: str, over: str, under: str, digits: int = 2) -> None:
        if over in found and under in found:
            clock = found[over].seconds / found[under].seconds
            processor = found[over].cpu / max(found[under].cpu, 0.01)
            print(f"{said}: {clock:.{digits}f} (clock), {processor:.{digits}f} (processor)")

    print()
    for name in TRAFFIC:
        once = found.get(f"{name}: decode once")
        if once is not None:
            print(f"{name}: decode once, frames for each second of the processor: {once.rows / once.cpu:,.0f}")
        native, ours = f"{name}: scan of frames, native Parquet", f"{name}: scan of frames, our source"
        for what in ("6 columns", "all columns"):
            ratio(f"{name}: rate of decode, {what} / native scan", native, f"{name}: decode, {what}")
            ratio(f"{name}: rate of decode, {what} / scan by our source", ours, f"{name}: decode, {what}")
            for reader in ("Spark's scan", "our source"):
                before = f"{name}: decoded before, {what}, {reader}"
                ratio(f"{name}: rate of {what} decoded before, {reader} / native scan", native, before)
    own = "csb-alike: 5 columns, Spark's own expressions"
    ratio("csb: rate of Spark's own expressions / native scan", "csb-alike: scan of frames, native Parquet", own)
    ratio("csb: rate of decode, 6 columns / Spark's own expressions", own, "csb-alike: decode, 6 columns")
    small, large = sizes.both
    for stage in dict.fromkeys(row.name.partition(": ")[2] for row in rows if row.name.startswith("pipeline, 2 cores")):
        what = f": {stage}" if stage else ""
        over, under = (f"pipeline, 2 cores, {size:,} frames{what}" for size in (large, small))
        ratio(f"pipeline{what}, {sizes.times} times as many frames", over, under)
    one, two = (f"pipeline, {cores}, {small:,} frames" for cores in ("1 core", "2 cores"))
    ratio("pipeline, time on one core / on two", one, two)
    ratio("pipeline, first run of a session / a later one", f"{two}, first run", two)
    ratio(
        f"correlation, {sizes.times} times as many events", f"correlation, {large:,} frames", f"correlation, {small:,} frames"
    )
    for threads in (1, 2):
        ratio(
            f"aggregation, time in Spark / in DuckDB with {threads}",
            "aggregation, Spark 2 cores",
            f"aggregation, DuckDB {threads}",
            0,
        )


if __name__ == "__main__":
    main()
