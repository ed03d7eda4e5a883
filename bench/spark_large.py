"""Reads a capture that is larger than what any process holds: ``python -m bench.spark_large [--rows 10000000]``.

The frames are counted and measured, then decoded and counted. Rows are asserted, and so is the most memory that the driver and
a Python worker had resident; what the JVM had, and all together, is printed.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from bench.spark_data import make

HEAP = "1g"
MOST = {"driver": 512 << 20, "Python worker": 512 << 20}
"""Bytes that a process may hold, whatever the size of the capture. A JVM takes what it is given: its heap and as much again."""


class Watch:
    """The most memory of this process and its children, sampled."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        me = psutil.Process()
        while not self._over.wait(0.1):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    kind = "driver" if process == me else "JVM" if "java" in process.name() else "Python worker"
                    resident = process.memory_info().rss
                except psutil.Error:
                    continue
                self.most[kind] = max(resident, self.most.get(kind, 0))
                total += resident
            self.most["all together"] = max(total, self.most.get("all together", 0))


def read(folder: Path) -> dict[str, Any]:
    """Count the rows and the bytes, and the events, in partitions."""
    from pyspark.sql import functions as F

    from polybus.spark import BusDataSource, start_session

    spark = start_session("local[2]", settings={"spark.driver.memory": HEAP})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(BusDataSource)
    reader = spark.read.format("polybus")
    raw = reader.options(table="raw", columns="frame").load(str(folder))
    with Watch() as watch:
        begin = time.perf_counter()
        found = raw.agg(F.count("*").alias("rows"), F.sum(F.length("frame")).alias("size")).collect()[0]
        middle = time.perf_counter()
        events = reader.options(table="events", columns="kind").load(str(folder)).count()
        end = time.perf_counter()
    partitions = raw.rdd.getNumPartitions()
    spark.stop()
    return {
        "rows": found["rows"],
        "size": found["size"],
        "events": events,
        "partitions": partitions,
        "seconds": (middle - begin, end - middle),
        "most": watch.most,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=10_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "capture")
        # In another process: what making it takes is none of the driver's memory.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            truth = pool.submit(make, folder, given.rows).result()
        files = sorted(folder.iterdir())
        stored = sum(file.stat().st_size for file in files) >> 20
        print(f"{truth.rows:,} rows, {truth.size >> 20:,} MiB of frames in {len(files)} segments, {stored} MiB", flush=True)
        found = read(folder)
    assert (found["rows"], found["size"], found["events"]) == (truth.rows, truth.size, truth.events), found
    scanned, decoded = found["seconds"]
    print(f"{found['partitions']} partitions; read in {scanned:.1f} s, decoded to {truth.events:,} events in {decoded:.1f} s")
    for kind, most in found["most"].items():
        bound = f" (may have {MOST[kind] >> 20})" if kind in MOST else ""
        print(f"  most resident, {kind}: {most >> 20} MiB{bound}")
    assert all(found["most"][kind] <= bound for kind, bound in MOST.items())


if __name__ == "__main__":
    main()
