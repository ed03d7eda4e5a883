"""Logs of Delta Lake beside the tables: another library reads from them just the rows that the log of the folder names."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from polybus.analysis import pipeline
from polybus.analysis.results import LOG, Output, keep_logs
from polybus.cli.app import run as command
from tests.unit.capture.generator import traffic

from .days import analyse
from .delta_reading import same_by_delta


def _growing(folder: Path) -> tuple[Path, list[Path]]:
    """A capture that has no segment yet, and the segments that come."""
    whole = traffic(600).write(folder / "whole", rows=40, segment_batches=4)
    (folder / "capture").mkdir()
    return folder / "capture", sorted(whole.iterdir())


def _take(capture: Path, segments: list[Path], out: Path, **options: Any) -> None:
    for segment in segments:
        segment.rename(capture / segment.name)
    analyse(capture, out, **options)


def test_another_library_reads_the_same_rows_after_each_run(tmp_path: Path) -> None:
    capture, segments = _growing(tmp_path)
    out, third = tmp_path / "out", len(segments) // 3
    pieces = segments[:third], segments[third : 2 * third], segments[2 * third :]
    for piece, options in zip(pieces, ({"delta": True}, {}, {}), strict=True):  # once begun, it is kept
        _take(capture, piece, out, **options)
        same_by_delta(out)
    exchanges = DeltaTable(out / "exchanges")
    assert exchanges.version() == 2
    assert exchanges.metadata().partition_columns == ["date", "protocol"]
    described = {field.name: field.metadata["comment"] for field in exchanges.schema().fields}
    assert described["latency_ms"] == "The latency in milliseconds."


def test_a_log_that_a_killed_run_has_not_written_is_written_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, segments = _growing(tmp_path)
    out = tmp_path / "out"
    _take(capture, segments[:2], out, delta=True)

    kept = list[int]()

    def killed(output: Output, *, begin: bool) -> None:
        kept.append(output.runs)
        if kept[-1] > 1:
            raise KeyboardInterrupt
        keep_logs(output, begin=begin)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pipeline, "keep_logs", killed)
        _take(capture, segments[2:4], out)
    assert kept == [1, 2]
    _take(capture, segments[4:], out)
    same_by_delta(out)


def test_a_run_that_finds_nothing_new_leaves_the_log_as_it_is_and_can_begin_one(tmp_path: Path) -> None:
    capture, segments = _growing(tmp_path)
    out = tmp_path / "out"
    _take(capture, segments, out)
    assert not list(out.glob(f"*/{LOG}"))
    for _ in range(2):
        _take(capture, [], out, delta=True)
        same_by_delta(out)
        assert [path.name for path in (out / "events" / LOG).iterdir()] == [f"{0:020d}.json"]


def test_a_name_that_no_path_can_hold_is_found_again(tmp_path: Path) -> None:
    made = traffic(200)
    odd = pa.array([{"csb": "a b/ä%1", "jrep": ""}.get(name, name) for name in made.table["protocol"].to_pylist()])
    place = made.table.schema.get_field_index("protocol")
    strange = made.table.set_column(place, made.table.schema.field(place), odd)
    object.__setattr__(made, "table", strange)
    analyse(made.write(tmp_path / "capture"), tmp_path / "out", delta=True)
    same_by_delta(tmp_path / "out")
    log = (tmp_path / "out" / "quarantine" / LOG / f"{0:020d}.json").read_text()
    parts = [json.loads(line)["add"]["partitionValues"]["protocol"] for line in log.splitlines() if '"add"' in line]
    assert {"a b/ä%1", None} <= set(parts)


def test_the_command_keeps_a_log_where_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = traffic(300).write(tmp_path / "capture")
    assert command(["analyse", str(capture), "--out", str(tmp_path / "out"), "--delta", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["events"] == DeltaTable(tmp_path / "out" / "events").count()
