"""A program that follows a capture until it is killed with its JVM, and the tables that it must leave.

``python -m tests.integration.spark.kills CAPTURE OUT --rows 1000``: the tables must have the events of the capture, each once,
by content, and the pairs of an undisturbed run.
"""

import argparse
import os
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
from pyspark.errors import StreamingQueryException

from polybus.analysis import open_tables
from polybus.analysis.engine import exchanges
from polybus.analysis.ranges import ReadWindow
from polybus.capture import Capture, decode
from polybus.capture.schema import EXCHANGES

from .support import QUICK

ROOT = Path(__file__).parents[3]


def end_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the program, its JVM and its workers: they are a process group of their own."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def check(capture: Path, out: Path) -> int:
    """Compare the tables with the capture; the number of events."""
    read, tables = Capture(capture), open_tables(out)
    true = pa.Table.from_batches([decode(batch.rows).events for batch in read.batches()])
    order = [("seq", "ascending"), ("sub", "ascending")]
    found = tables.sql("from events").to_arrow_table().select(true.column_names).sort_by(order)
    assert found.num_rows == true.num_rows, f"{found.num_rows} events of {true.num_rows}"
    assert found.cast(true.schema).equals(true.sort_by(order)), "the events are not those of the capture"
    pairs = tables.sql("from exchanges").to_arrow_table().select(EXCHANGES.names).sort_by("request_seq")
    wanted = pa.Table.from_batches(list(exchanges(read, ReadWindow(), 30.0)), schema=EXCHANGES).sort_by("request_seq")
    assert pairs.cast(EXCHANGES).equals(wanted), "the pairs differ"
    return int(found.num_rows)


def main() -> None:
    """The program: it follows a capture for good where it looks `every` so often, else to its end."""
    from polybus.spark import Pipeline, start_session

    parser = argparse.ArgumentParser()
    parser.add_argument("capture")
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--every")
    given = parser.parse_args()
    spark = start_session(given.master, settings=QUICK)
    spark.sparkContext.setLogLevel("ERROR")
    while True:
        query = Pipeline(spark).stream(given.capture, given.out, max_rows=given.rows, every=given.every)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            # Spark gives a source's Python process 10 s to start, which a busy machine may exceed.
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return


if __name__ == "__main__":
    main()
