"""The stream of the pipeline, killed again and again, with its JVM: by
``python -m tests.integration.spark.kills 20 [--sink spark]``.

A child process follows a capture; it is killed with SIGKILL, and its JVM too, at a random moment after it has begun to write.
Whatever happens, the events in the tables must be those of the capture, each once, by their content, and the pairs must be
those of a run that nobody disturbed. With ``--sink spark`` the child writes through Spark's own file sink instead.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from polybus.analysis import open_tables
from polybus.analysis.exchanges import exchanges
from polybus.analysis.ranges import ReadWindow
from polybus.capture import Capture, decode
from polybus.capture.schema import EXCHANGES
from polybus.spark.source.data_source import BusDataSource
from tests.unit.capture.generator import traffic

from .support import QUICK

ROOT = Path(__file__).parents[3]
DONE = "all is read"


def child(capture: str, out: str, rows: int, sink: str, master: str, every: str | None) -> None:
    """Follows the capture to its end, or for good where it looks `every` so often."""
    from polybus.spark import Pipeline, start_session

    spark = start_session(master, settings=QUICK)
    spark.sparkContext.setLogLevel("ERROR")
    if sink == "pipeline":
        query = Pipeline(spark).stream(capture, out, max_rows=rows, every=every)
    else:
        spark.dataSource.register(BusDataSource)
        stream = spark.readStream.format("polybus").option("maxRowsPerTrigger", rows).load(capture)
        writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{out}/_checkpoint")
        query = writer.trigger(availableNow=True).start(f"{out}/events")
    query.awaitTermination()
    print(DONE, flush=True)


def tables(out: Path, sink: str) -> tuple[pa.Table, pa.Table | None]:
    """Events and exchanges, of the files that count."""
    if sink == "spark":
        # Spark's own log of the sink says which files count.
        from polybus.spark import start_session

        spark = start_session("local[2]", settings=QUICK)
        return spark.read.parquet(str(out / "events")).toArrow(), None
    connection = open_tables(out)

    def read(table: str) -> pa.Table:
        return connection.sql(f"from {table}").to_arrow_table()

    return read("events"), read("exchanges")


def committed(out: Path, sink: str) -> int:
    """How many batches are done."""
    if sink == "pipeline":
        return len(list(out.glob("_manifest/*.json")))
    return len(list(out.glob("_checkpoint/commits/[0-9]*")))


def end_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the child, its JVM and its workers: they are a process group of their own."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def disturbed(capture: Path, out: Path, kills: int, rows: int, sink: str, seed: int = 1) -> list[int]:
    """Run the child to its end, and kill it so many times on the way.

    Returns:
        How many batches were done at each kill.
    """
    chance = random.Random(seed)
    seen: list[int] = []
    command = [sys.executable, "-m", "tests.integration.spark.kills", "--child", str(capture), str(out)]
    while True:
        before = committed(out, sink)
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                [*command, "--rows", str(rows), "--sink", sink],
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
            try:
                if len(seen) < kills:
                    # Only after a batch of its own; then anywhere in the next one: the moment of the kill is what is tried.
                    while committed(out, sink) == before and process.poll() is None:
                        time.sleep(0.02)
                    time.sleep(chance.uniform(0, 1))
                    if process.poll() is None:
                        end_group(process)
                        seen.append(committed(out, sink))
                        print(f"kill {len(seen)}: {seen[-1]} batches were done", flush=True)
                        continue
                process.wait(600)
            finally:
                if process.poll() is None:
                    end_group(process)
            log.seek(0)
            said = log.read()
            if DONE not in said:
                raise RuntimeError(said[-3000:])
            return seen


def check(capture: Path, out: Path, sink: str) -> int:
    """Compare the tables with the capture; the number of events."""
    read = Capture(capture)
    true = pa.Table.from_batches([decode(batch.rows).events for batch in read.batches()])
    events, pairs = tables(out, sink)
    order = [("seq", "ascending"), ("sub", "ascending")]
    found = events.select(true.column_names).sort_by(order)
    assert found.num_rows == true.num_rows, f"{found.num_rows} events of {true.num_rows}"
    assert found.cast(true.schema).equals(true.sort_by(order)), "the events are not those of the capture"
    if pairs is not None:
        wanted = pa.Table.from_batches(list(exchanges(read, ReadWindow(), 30.0)), schema=EXCHANGES).sort_by("request_seq")
        assert pairs.select(EXCHANGES.names).sort_by("request_seq").cast(EXCHANGES).equals(wanted), "the pairs differ"
    return int(found.num_rows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kills", nargs="?", type=int, default=20)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--sink", choices=("pipeline", "spark"), default="pipeline")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--every", help="how often a child looks that follows for good")
    given = parser.parse_args()
    if given.child:
        child(given.child[0], given.child[1], given.rows, given.sink, given.master, given.every)
        return
    with tempfile.TemporaryDirectory() as folder:
        capture, out = Path(folder, "capture"), Path(folder, "out")
        traffic(given.frames).write(capture, rows=500, segment_batches=20)
        seen = disturbed(capture, out, given.kills, given.rows, given.sink)
        assert len(seen) == given.kills, f"the capture was read after {len(seen)} kills: take more --frames"
        print(f"{check(capture, out, given.sink)} events, each once, after {len(seen)} kills at batches {seen}")


if __name__ == "__main__":
    main()
