"""Metrics add up: however many runs have taken a capture, and in whatever pieces, they are those of a single run."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from polybus.analysis import DuckEngine, Pipeline, results
from polybus.analysis.pipeline import Done
from polybus.analysis.report.metrics import measure
from polybus.analysis.report.sums import Sums
from polybus.analysis.results import Output
from polybus.analysis.storage import TableStorage
from polybus.capture.schema import FRAMES
from tests.loops import FULL
from tests.unit.capture.folders import write_segment
from tests.unit.capture.generator import traffic

from .days import BAD, GOOD, Day, analyse
from .test_views import Folder

Piece = tuple[pa.RecordBatch, str]
"""Rows of a segment, and their recording."""


def _measured(capture: Path, out: Path) -> dict[str, Any]:
    analyse(capture, out, timeout=1, horizon=15)
    with DuckEngine(threads=1) as engine:
        metrics = measure(engine, Output.of(out))
    return {name: value for name, value in metrics.items() if name not in ("runs", "capture")}


def _added(folder: Path, pieces: Sequence[Piece], runs: Sequence[int], *, number: int = 0) -> dict[str, Any]:
    """What the last one of several runs says, each of which finds so many segments more."""
    segments, metrics = list(pieces), dict[str, Any]()
    for more in runs:
        for _ in range(more):
            rows, recording = segments.pop(0)
            ends = all(other != recording for _, other in segments)
            write_segment(folder / "capture", rows, number=number, recording=recording, ends=ends)
            number += 1
        metrics = _measured(folder / "capture", folder / "out")
    assert not segments
    return metrics


def _runs(chance: random.Random, whole: int) -> list[int]:
    cuts = sorted(chance.sample(range(1, whole), min(whole - 1, chance.randint(2, 5))))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, whole], strict=True)]


def _cut(rows: Sequence[dict[str, Any]], recording: str, pieces: int) -> list[tuple[int, Piece]]:
    each = -(-len(rows) // pieces)
    parts = [list(rows[first : first + each]) for first in range(0, len(rows), each)]
    return [(part[0]["mono_ns"], (pa.RecordBatch.from_pylist(part, FRAMES), recording)) for part in parts]


def _pieces(count: int, protocols: tuple[str, ...], frames: int, **given: Any) -> list[Piece]:
    table = traffic(frames, protocols=protocols, connections=2, **given).table
    return [(batch, str(batch["capture_id"][0])) for batch in table.to_batches(max_chunksize=-(-len(table) // count))]


@pytest.mark.parametrize("seed", range(4 if FULL else 1))
def test_runs_over_pieces_of_a_recording_add_up_to_a_single_run(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    pieces = _pieces(9, ("ubre", "csb", "uprotocol"), 1500, seed=seed, rate=chance.choice([30.0, 400.0]))
    single = _added(tmp_path / "one", pieces, [len(pieces)])
    assert single["rows"] and single["journeys"] and single["totals"]["exchanges"]
    assert _added(tmp_path / "several", pieces, _runs(chance, len(pieces))) == single


def _world(chance: random.Random) -> Folder:
    """Exchanges that several places have seen, over one and a half minutes; the clock of one of them is wrong."""
    day = Folder(client_a=0, client_b=chance.choice([0, 300, 7000]), broker=0, server=0)
    for number in range(240):
        client, at = chance.choice(["client_a", "client_b"]), number * 400 + chance.uniform(0, 300)
        where = {place: client for place in (client, "broker", "server") if chance.random() < 0.8}
        took = chance.choice([None, 5, 5, 20, 900])
        id = f"{client}{number}" if chance.random() < 0.7 else str(number % 3)
        day.asked(id, f"s.{chance.randint(0, 3)}", at, took, where, fail=chance.random() < 0.3)
        if chance.random() < 0.1:
            day.say("server", at, 1, f'{{"success":"{number}o"}}', "a")
    return day


@pytest.mark.parametrize("seed", range(4 if FULL else 1))
@pytest.mark.parametrize("order", ["together", "one after the other"])
def test_runs_over_several_recordings_of_the_same_exchanges_add_up_too(tmp_path: Path, order: str, seed: int) -> None:
    chance = random.Random(seed)
    recordings = enumerate(_world(chance).recordings().items())
    cut = [(at, number, piece) for number, (name, rows) in recordings for at, piece in _cut(rows, name, 8)]
    by = (lambda one: one[:2]) if order == "together" else (lambda one: (one[1], one[0]))
    pieces = [piece for *_, piece in sorted(cut, key=by)]
    single = _added(tmp_path / "one", pieces, [len(pieces)])
    assert single["totals"]["views"] > single["totals"]["exchanges"]
    assert _added(tmp_path / "several", pieces, _runs(chance, len(pieces))) == single


def test_whose_clock_is_wrong_is_told_anew_by_recordings_that_come_later(tmp_path: Path) -> None:
    day = Folder(a=7000, b=0, c=0, d=0)
    for number in range(40):
        day.asked(f"x-{number}", "tank.get", number * 50, 20, dict.fromkeys(("ab", "bc", "bd")[number % 3], "a"))
    pieces = [piece for name, rows in day.recordings().items() for _, piece in _cut(rows, name, 1)]
    single = _added(tmp_path / "one", pieces, [4])
    assert {row["capture_id"]: row["ahead_ns"] for row in single["clocks"] if row["ahead_ns"]} == {"a": 7_000_000_000}
    assert _added(tmp_path / "several", pieces, [2, 2]) == single


def test_a_percentile_is_at_most_a_hundredth_too_long(tmp_path: Path) -> None:
    day, chance = Day(), random.Random(5)
    latencies = sorted(chance.lognormvariate(3, 1) for _ in range(400))
    for number, latency in enumerate(latencies):
        day.ask(number, "tank.get", GOOD if number % 3 else BAD, latency)
    [row] = day.metrics(tmp_path)["latency"]
    for share in (50, 90, 95, 99):
        exact = round(latencies[-(-len(latencies) * share // 100) - 1] * 1_000_000)
        assert exact <= row[f"p{share}_ns"] <= exact * 1.01
    assert row["max_ns"] == round(latencies[-1] * 1_000_000)


def test_a_run_reads_what_is_new_and_what_lies_beside_the_exchanges_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, plain = list[str](), DuckEngine.read

    def noted(engine: DuckEngine, storage: TableStorage, folder: str, files: Sequence[str], schema: pa.Schema) -> str:
        read.extend(files)
        return plain(engine, storage, folder, files, schema)

    monkeypatch.setattr(DuckEngine, "read", noted)
    day = Day()
    for number in range(60):
        day.ask(number, "tank.get", GOOD if number else BAD, 5 if number < 30 else 2)
        day.wait(10)
    pieces = [piece for _, piece in _cut(day.rows, "c", 12)]
    _added(tmp_path, pieces[:11], [11])
    read.clear()
    metrics = _added(tmp_path, pieces[11:], [1], number=11)
    tables = {name for name in read if name.startswith(("events/", "exchanges/"))}
    assert metrics["totals"]["exchanges"] == 60
    assert {name.partition("run-")[2][:6] for name in tables} == {"000002"}


class Killed(BaseException): ...


@pytest.mark.parametrize("kills", [False, True], ids=["runs that end", "runs that are killed first"])
def test_small_files_of_many_runs_become_one_and_what_was_counted_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    pieces = _pieces(6, ("ubre", "csb"), 600, seed=1, rate=30.0)
    single, counted = _added(tmp_path / "one", pieces, [len(pieces)]), list[str]()
    run, add_messages = Pipeline.run, Sums._add_messages

    def twice(pipeline: Pipeline, *args: Any, **given: Any) -> Done:
        with monkeypatch.context() as dying, pytest.raises(Killed):
            dying.setattr(Output, "commit", Mock(side_effect=Killed))
            run(pipeline, *args, **given)
        return run(pipeline, *args, **given)

    def noted(sums: Sums, engine: Any, output: Output, files: Sequence[str]) -> None:
        counted.extend(files)
        add_messages(sums, engine, output, files)

    monkeypatch.setattr(results, "MANY_SMALL", 3)
    monkeypatch.setattr(Sums, "_add_messages", noted)
    if kills:
        monkeypatch.setattr(Pipeline, "run", twice)
    assert _added(tmp_path, pieces, [1] * len(pieces)) == single
    assert len(counted) == len(set(counted)) and not [name for name in counted if "merged" in name]
    output = Output.of(tmp_path / "out")
    for name in results.TABLES:
        there = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out" / name).rglob("*.parquet")}
        assert there == set(output.files(name)), "whoever reads by a pattern gets each row once"
    assert any("merged" in name for name in output.files("events"))
    kept = (file.name.rpartition("/")[0] for name in results.TABLES for file in output.named(name) if not file.provisional)
    assert max(Counter(kept).values()) <= 3


def test_the_first_requests_without_an_answer_are_the_first_by_the_clock(tmp_path: Path) -> None:
    day = Folder(client_d=0, client_c=0)
    for number, (place, at) in enumerate((("client_c", 1), ("client_c", 9), ("client_d", 5))):
        day.asked(f"x{number}", "tank.get", at, None if at > 1 else 0.5, {place: "a"})
    assert [row["request_time_ns"] % 10_000_000 // 1_000_000 for row in day.metrics(tmp_path)["dead_letters"]] == [5, 9]


@pytest.mark.parametrize("locks", [True, False])
def test_half_written_sums_are_removed_by_the_next_run_unless_another_one_may_be_at_work(tmp_path: Path, locks: bool) -> None:
    day = Day()
    day.ask(1, "user.get", GOOD)
    _added(tmp_path, [(pa.RecordBatch.from_pylist(day.rows, FRAMES), "a")], [1])
    left = tmp_path / "out" / "_sums" / "0123456789ab"
    left.mkdir()
    (left / "links.parquet").write_bytes(b"half")
    output = Output.of(tmp_path / "out")
    output.storage.local = locks
    with DuckEngine(threads=1) as engine:
        measure(engine, output)
    [_] = [one for one in left.parent.iterdir() if one.is_dir() and one != left]
    assert left.exists() is not locks
