"""Whoever records, decodes or analyses is killed at random moments, again and again: no table is another one for it.

``POLYBUS_KILL_ROUNDS=20`` is for those who have the time; the seed is printed, ``POLYBUS_FAULT_SEED=`` takes it.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from polybus.analysis import DuckEngine, Pipeline, open_tables
from polybus.analysis import engine as engines
from polybus.capture import Capture
from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.decoding import decoded
from polybus.capture.schema import EVENTS
from tests.support import until

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
ROUNDS = int(os.environ.get("POLYBUS_KILL_ROUNDS", "2"))
SEED = int(os.environ.get("POLYBUS_FAULT_SEED", random.SystemRandom().randrange(1 << 32)))
RECORDERS = ("application", "decoder")
READERS = ("driver", "worker", "decoder")


def _begin(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def _children(process: int) -> list[psutil.Process]:
    try:
        return psutil.Process(process).children()
    except psutil.Error:
        return []


def _kill(processes: Sequence[psutil.Process]) -> bool:
    """Kill them; True where one of them was there to be killed."""
    found = False
    for process in processes:
        try:
            process.kill()
            found = True
        except psutil.Error:
            continue
    return found


def _record(folder: Path, victim: str, chance: random.Random) -> bool:
    """Record for a while, with decoding beside it, and kill one of those at work; True where it was there."""
    before = len(list(folder.glob("events/*.parquet")))
    child = _begin("tests.unit.capture.sealing_process", str(folder))
    assert child.stdout is not None
    child.stdout.readline()
    try:
        until(lambda: len(list(folder.glob("events/*.parquet"))) > before)
        if victim == "decoder":
            until(lambda: _children(child.pid))
        time.sleep(chance.uniform(0, 0.3))  # at any moment: that is what is tried
        victims = {"application": [child.pid], "decoder": [one.pid for one in _children(child.pid)]}
        hit = _kill([psutil.Process(number) for number in victims[victim] if psutil.pid_exists(number)])
        if victim != "application":
            until(lambda: list(folder.glob("*.open")))  # it goes on
    finally:
        child.kill()
        child.communicate()
    return hit


def _analyse(folder: Path, out: Path, victim: str, chance: random.Random) -> bool:
    """Analyse what is new, with a decoder beside it, and kill one of those at work; True where it was there."""
    decoder = _begin("tests.integration.processes.test_decoding_kills", "decode", str(folder))
    driver = _begin("tests.integration.processes.test_decoding_kills", "analyse", str(folder), str(out))
    try:
        assert driver.stdout is not None
        driver.stdout.readline()
        if victim == "worker":
            until(lambda: _children(driver.pid) or driver.poll() is not None)
        time.sleep(chance.uniform(0, 0.4))
        victims = {"driver": [driver.pid], "worker": [one.pid for one in _children(driver.pid)][:1], "decoder": [decoder.pid]}
        return _kill([psutil.Process(number) for number in victims[victim] if psutil.pid_exists(number)])
    finally:
        if victim == "driver":
            driver.kill()
        driver.communicate(timeout=120)
        decoder.communicate(timeout=120)


def test_tables_are_those_of_the_capture_whoever_is_killed(tmp_path: Path) -> None:
    print(f"POLYBUS_FAULT_SEED={SEED}")
    chance, folder, out = random.Random(SEED), tmp_path / "capture", tmp_path / "out"
    hits: list[str] = []
    for number in range(ROUNDS):
        recorder, reader = RECORDERS[number % 2], READERS[number // 2 % 3]
        if _record(folder, recorder, chance):
            hits.append(recorder)
        if _analyse(folder, out, reader, chance):
            hits.append(reader)
    assert len(hits) >= ROUNDS
    _seal(folder)
    before = len(list(folder.glob("events/*.parquet")))
    with DuckEngine() as engine:
        done = Pipeline(engine).run(folder, out)
    truth = pa.Table.from_batches([one.events for one in decoded(batch.rows for batch in Capture(folder).batches())], EVENTS)
    order = [(name, "ascending") for name in ("capture_id", "seq", "sub")]
    found = open_tables(out).sql(f"select {', '.join(EVENTS.names)} from events").to_arrow_table().cast(EVENTS)
    assert found.sort_by(order).equals(truth.sort_by(order))
    keys = found.select(["capture_id", "seq", "sub"]).to_pylist()
    assert len({tuple(key.values()) for key in keys}) == len(keys) == done.total.events
    for segment in Capture(folder).segments():
        columns = SegmentColumns.of(Capture(folder), segment)
        if columns is not None:
            rows = (one.rows for one in Capture(folder).batches((segment.number, 0), (segment.number + 1, 0)))
            made = pa.Table.from_batches([one.events for one in decoded(rows)], EVENTS)
            assert pa.Table.from_batches(columns.read("events", columns.groups), EVENTS).equals(made)
    # A run over the same frames that nobody has disturbed, and that finds no columns, makes the same pairs.
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in folder.glob("*.arrows"):
        shutil.copy(path, plain)
    with DuckEngine() as engine:
        alone = Pipeline(engine).run(plain, tmp_path / "alone")
    assert alone.total == done.total
    pairs = [
        open_tables(one).sql("from exchanges order by capture_id, conn_id, request_seq").to_arrow_table()
        for one in (out, tmp_path / "alone")
    ]
    assert pairs[0].equals(pairs[1])
    print(f"{done.total.events} events, {before} of {len(list(folder.glob('*.arrows')))} segments decoded, killed: {hits}")


def _seal(folder: Path) -> None:
    """Seal what killed writers have left, as the next recorder does."""
    from polybus.capture import make_recorder

    recorder = make_recorder(folder)
    recorder.open()
    recorder.close()


def _analysing(folder: str, out: str) -> None:
    engines.MUCH = 1  # type: ignore[misc]  # processes decode, however small it is
    with DuckEngine(threads=2) as engine:
        print("begun", flush=True)
        Pipeline(engine).run(folder, out)


if __name__ == "__main__":
    if sys.argv[1] == "decode":
        from polybus.capture.columns.process import main

        sys.argv = ["-c", "[]", str(os.getppid()), sys.argv[2]]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        main()
    else:
        _analysing(sys.argv[2], sys.argv[3])
