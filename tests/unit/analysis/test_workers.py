"""Processes that decode: what they make is what one alone makes, and what goes wrong with them is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pyarrow.parquet as pq
import pytest

from polybus.analysis import DuckEngine
from polybus.analysis import engine as engines
from polybus.analysis.ingest import IngestResult, take_all
from polybus.analysis.ranges import ReadPosition, ReadWindow, plan
from polybus.capture.errors import CaptureError
from polybus.capture.store.reader import Capture
from tests.unit.capture.generator import traffic
from tests.unit.capture.test_strange_rows import strange_capture


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traffic(3000).write(tmp_path_factory.mktemp("workers") / "capture", rows=200, segment_batches=3)


def test_rows_that_may_say_anything_come_back_from_processes(tmp_path: Path) -> None:
    capture = strange_capture(tmp_path / "capture")
    ranges = plan(Capture(capture), ReadPosition())
    alone, both = (take_all(str(capture), str(tmp_path), f"by-{n}", ranges, ReadWindow(), n) for n in (1, 2))
    assert [attrs.evolve(done, files=[]) for done in alone] == [attrs.evolve(done, files=[]) for done in both]
    assert all(msgspec.json.decode(msgspec.json.encode(done), type=IngestResult) == done for done in alone)


def test_two_processes_make_what_one_makes(capture: Path, tmp_path: Path) -> None:
    ranges, window = plan(Capture(capture), ReadPosition()), ReadWindow(connection="cafe-2")
    assert len(ranges) > 3
    alone, both = (take_all(str(capture), str(tmp_path), f"by-{count}", ranges, window, count) for count in (1, 2))
    assert [attrs.evolve(done, files=[]) for done in alone] == [attrs.evolve(done, files=[]) for done in both]
    assert sum(done.events for done in alone) > 100
    for one, other in zip(alone, both, strict=True):
        assert [(place, rows) for place, _, rows in one.files] == [(place, rows) for place, _, rows in other.files]
        for (_, name, _), (_, same, _) in zip(one.files, other.files, strict=True):
            assert pq.read_table(tmp_path / name).equals(pq.read_table(tmp_path / same))


def test_the_engine_starts_processes_where_the_capture_is_worth_them(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(engines, "take_all", lambda *given: counts.append(given[-1]))
    ranges = plan(Capture(capture), ReadPosition())
    for much in (16 << 20, 1):
        monkeypatch.setattr(engines, "MUCH", much)
        with DuckEngine(threads=3) as engine:
            engine.take(str(capture), str(tmp_path), "staging", ranges, ReadWindow())
    assert counts == [1, 3]


def test_a_segment_that_is_gone_is_said_by_whichever_process_misses_it(capture: Path, tmp_path: Path) -> None:
    ranges = plan(Capture(capture), ReadPosition())
    missing = [attrs.evolve(ranges[0], start=ReadPosition(99)), *ranges]
    with pytest.raises(CaptureError, match="segment 99 is gone: retention removed it before it was read"):
        take_all(str(capture), str(tmp_path), "staging", missing, ReadWindow(), 2)


def test_a_folder_that_takes_no_files_is_an_error_of_the_system(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("no folder")
    with pytest.raises(OSError, match="out"):
        take_all(str(capture), str(tmp_path / "out"), "staging", plan(Capture(capture), ReadPosition()), ReadWindow(), 2)


def test_a_process_whose_asker_was_killed_ends_without_a_word(capture: Path, tmp_path: Path) -> None:
    first = plan(Capture(capture), ReadPosition())[0]
    job: dict[str, Any] = {
        "capture": str(capture),
        "out": str(tmp_path),
        "staging": "staging",
        "window": attrs.asdict(ReadWindow()),
    }
    job["ranges"] = [(0, attrs.asdict(first))] * 2
    command = [sys.executable, "-m", "polybus.analysis.ingest"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()  # as the end of its reader does
        _, said = process.communicate(json.dumps(job), timeout=60)
    assert (process.returncode, said) == (0, "")


def test_a_process_that_ends_too_early_is_an_error(capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "true")
    with pytest.raises(CaptureError, match="a decoding process ended early"):
        take_all(str(capture), str(tmp_path), "staging", plan(Capture(capture), ReadPosition()), ReadWindow(), 2)
