"""Reads a capture that is larger than what any process holds: ``python -m bench.spark_large [--rows 10000000] [--decode]``.

Prints the most memory that the driver, its JVM and all Python workers had resident, together and each. The rows are asserted.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from polybus.capture.segments import SegmentWriter
from tests.capture.generator import traffic

AT_ONCE = 1_000_000
BATCHES = 4096
HEAP = "1g"


def write(folder: Path, rows: int) -> tuple[int, int]:
    """A capture of so many rows: one recording after the other. Gives the rows and the bytes of all frames."""
    folder.mkdir(parents=True)
    made = traffic(min(rows, AT_ONCE))
    batches = list(made.batches())
    number = done = size = 0
    writer = SegmentWriter(folder, number)
    for recording in range(-(-rows // made.table.num_rows)):
        for batch in batches:
            batch = batch.slice(0, rows - done)
            if not batch.num_rows:
                break
            if writer.batches >= BATCHES:
                writer.seal()
                number += 1
                writer = SegmentWriter(folder, number)
            name = pa.repeat(pa.scalar(f"recording-{recording:02d}"), batch.num_rows)
            place = batch.schema.get_field_index("capture_id")
            batch = batch.set_column(place, batch.schema.field(place), name)
            writer.write(batch, batch.column("seq")[0].as_py())
            done += batch.num_rows
            size += sum(len(frame) for frame in batch.column("frame").to_pylist() if frame is not None)
    writer.seal()
    return done, size


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


def read(folder: Path, decode: bool) -> dict[str, Any]:
    """Count the rows and the bytes, in partitions."""
    from pyspark.sql import functions as F

    from polybus.spark import BusDataSource, start_session

    spark = start_session("local[2]", settings={"spark.driver.memory": HEAP})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(BusDataSource)
    with Watch() as watch:
        begin = time.perf_counter()
        reader = spark.read.format("polybus")
        raw = reader.options(table="raw", columns="frame").load(str(folder))
        partitions = raw.rdd.getNumPartitions()
        found = raw.agg(F.count("*").alias("rows"), F.sum(F.length("frame")).alias("size")).collect()[0]
        seconds = time.perf_counter() - begin
        events = reader.options(table="events", columns="kind").load(str(folder)).count() if decode else None
    spark.stop()
    return {
        "rows": found["rows"],
        "size": found["size"],
        "events": events,
        "partitions": partitions,
        "seconds": seconds,
        "most": watch.most,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--decode", action="store_true", help="also decode all of it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "capture")
        rows, size = write(folder, given.rows)
        files = sorted(folder.iterdir())
        stored = sum(file.stat().st_size for file in files) >> 20
        print(f"{rows:,} rows, {size >> 20:,} MiB of frames in {len(files)} segments, {stored} MiB")
        found = read(folder, given.decode)
    assert (found["rows"], found["size"]) == (rows, size), found
    print(f"read in {found['partitions']} partitions, {found['seconds']:.1f} s; events: {found['events']}")
    for kind, most in found["most"].items():
        print(f"  most resident, {kind}: {most >> 20} MiB")


if __name__ == "__main__":
    main()
