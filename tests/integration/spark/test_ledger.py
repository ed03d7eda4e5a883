"""The tables of a world of six protocols, compared with its ledger to the row; then with a hole, by every engine."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql import SparkSession

from polybus.analysis import DuckEngine, Engine, Names, Pipeline, open_tables
from polybus.analysis.pipeline import Done
from polybus.analysis.results import TABLES
from polybus.capture import Capture
from polybus.spark.engine import SparkEngine
from tests.support import eventually

from .world import IN, OUT, PROTOCOLS, ROOT, SUBJECTS, Ledger, World

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

EACH = 1_650
LONGEST = 900
"""Seconds until a JVM has begun with a batch."""
NAMES = Names(SUBJECTS)
NUMBER = re.compile(rb"no-(\d+)\.")
"""In bodies of every format."""
USERS = "coalesce(exchanges.subject not like '%_polybus.%', true)"
FOUND = f"""
    select exchanges.*, events.data from exchanges join events
    on exchanges.capture_id = events.capture_id and exchanges.request_seq = events.seq
        and exchanges.correlation_id = events.correlation_id and events.kind in ('request', 'stream')
    where {USERS}
"""
Row = dict[str, Any]


def _analysed(engine: Engine, capture: Path, out: Path) -> tuple[Done, list[Row]]:
    done = Pipeline(engine, names=NAMES).run(capture, out)
    rows = open_tables(out).sql(FOUND).to_arrow_table().to_pylist()
    assert len(rows) == open_tables(out).sql(f"select 1 from exchanges where {USERS}").to_arrow_table().num_rows
    return done, rows


def _ledger(rows: list[Row]) -> Ledger:
    return Ledger(
        (row["direction"], row["protocol"], NAMES.of(row["subject"]), int(NUMBER.findall(row["data"])[0]), row["outcome"])
        for row in rows
    )


def _with_hole(capture: Path, damaged: Path, recording: str) -> set[int]:
    """Copy a capture, and flip a bit in the largest batch of a recording; the numbers of the rows that are lost."""
    shutil.copytree(capture, damaged)
    read, found = Capture(damaged), []
    for segment in read.segments():
        reader = read.reader(segment)
        if reader.schema_metadata().get("capture_id") == recording:
            rows = ((message, reader.rows(message, ["seq"])) for message in reader.messages() if message.rows)
            found += [(len(seqs), segment, message, seqs["seq"].to_pylist()) for message, seqs in rows]
    _, segment, message, lost = max(found, key=lambda one: one[0])
    with Path(segment.path).open("r+b") as file:
        file.seek(message.offset + message.size // 2)
        octet = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([octet ^ 4]))
    return set(lost)


def _tables(out: Path) -> dict[str, list[str]]:
    tables = open_tables(out)
    return {name: sorted(map(str, tables.sql(f"from {name}").to_arrow_table().to_pylist())) for name in TABLES}


def _streamed(capture: Path, out: Path) -> None:
    """Follow a capture with a stream whose driver is killed in its first batch, and with another one to the end."""
    command = [sys.executable, "-m", "tests.integration.spark.kills", str(capture), str(out)]
    written = out.with_name("stream.log")
    with written.open("w") as log:
        killed = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, text=True, start_new_session=True)
        try:
            anyio.run(eventually, lambda: killed.poll() is not None or list(out.glob("_staging/*")), LONGEST)
            assert killed.poll() is None, written.read_text()
        finally:
            if killed.poll() is None:  # with its JVM and workers, which are in its group
                os.killpg(killed.pid, signal.SIGKILL)
                killed.wait(30)
        print("-- the first driver was killed --", file=log, flush=True)
        following = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=2 * LONGEST)
    assert following.returncode == 0, written.read_text()


def test_every_request_of_the_ledger_is_in_the_tables_with_its_outcome_whoever_makes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path / "capture", EACH)
    anyio.run(world.run)
    asked = sum(1 for way, _, subject, *_ in world.ledger if way == OUT and subject != "count")
    assert asked > 10_000 and {protocol for _, protocol, *_ in world.ledger} == set(PROTOCOLS)
    assert {ending for *_, ending in world.ledger} == {"ok", "error", "timeout", "cancelled", "lost"}
    with DuckEngine(memory="1GB") as engine:
        done, rows = _analysed(engine, tmp_path / "capture", tmp_path / "out")
        assert _ledger(rows) == world.ledger
        assert done.metrics["totals"]["exchanges"] == asked, "each counts once, wherever it is recorded"
        assert all(row["items"] == 3 for row in rows if row["kind"] == "stream")
        lost = _with_hole(tmp_path / "capture", tmp_path / "damaged", world.bulk)
        assert lost
        left: list[Row] = []
        for row in rows:
            if row["capture_id"] == world.bulk and row["request_seq"] in lost:
                continue
            unseen = row["capture_id"] == world.bulk and row["response_seq"] in lost
            left.append({**row, "outcome": "unseen"} if unseen else row)
        done, rows = _analysed(engine, tmp_path / "damaged", tmp_path / "by-duckdb")
        assert _ledger(rows) == _ledger(left)
        assert done.metrics["totals"]["exchanges"] == asked, "the server has seen what the client's recording lacks"
        assert done.total.lost == 1
    wanted = _tables(tmp_path / "by-duckdb")
    by_spark, _ = _analysed(SparkEngine(spark), tmp_path / "damaged", tmp_path / "by-spark")
    assert _tables(tmp_path / "by-spark") == wanted
    assert by_spark.metrics == done.metrics
    _streamed(tmp_path / "damaged", tmp_path / "by-stream")
    assert _tables(tmp_path / "by-stream") == wanted
    assert {row[0] for row in world.ledger} == {IN, OUT}
