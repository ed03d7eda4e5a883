"""Captures as files for other programs."""

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest

from polybus.capture import Capture, CaptureError, compact, export, recover, verify, write_columns
from polybus.capture.decoding import decoded
from polybus.capture.schema import EVENTS, FRAMES, QUARANTINE
from polybus.capture.store import export as exporting

from . import rows
from .folders import damage, write_segment
from .generator import Traffic


def test_frames_and_events_are_written_as_parquet(folder: Path, made: Traffic, tmp_path: Path) -> None:
    (path,) = compact(Capture(folder), tmp_path / "frames")
    table = pq.read_table(path)
    assert table.schema.names == FRAMES.names
    assert table.to_pylist() == made.table.to_pylist()
    (path,) = export(Capture(folder), tmp_path / "events")
    assert pq.read_schema(path).names == EVENTS.names
    assert pq.read_metadata(path).num_rows == sum(made.events.values())


@pytest.mark.parametrize("table", ["frames", "events", "quarantine"])
def test_tables_are_exported_as_lines_of_json(
    folder: Path, made: Traffic, tmp_path: Path, table: Literal["frames", "events", "quarantine"]
) -> None:
    (path,) = export(Capture(folder), tmp_path / "out", format="jsonl", table=table)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    expected = {"frames": made.table.num_rows, "events": sum(made.events.values()), "quarantine": len(made.quarantine)}
    assert len(lines) == expected[table]
    if table == "quarantine":
        assert {row["seq"]: row["reason"] for row in lines} == made.quarantine
        assert any("raw_base64" in row for row in lines)


@pytest.mark.parametrize("table", ["events", "quarantine"])
def test_what_was_decoded_before_is_exported_as_it_is_and_losses_of_the_rest_are_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Literal["events", "quarantine"]
) -> None:
    damage(sorted(folder.glob("*.arrows"))[1])
    plain = Capture(folder)
    (path,) = export(plain, tmp_path / "plain", table=table)
    write_columns(folder)
    decoded_now: list[int] = []

    def counting(batches: Any) -> Any:
        for made in decoded(batches):
            decoded_now.append(made.frames)
            yield made

    monkeypatch.setattr(exporting, "decoded", counting)
    capture = Capture(folder)
    (other,) = export(capture, tmp_path / "columns", table=table)
    assert pq.read_table(other).equals(pq.read_table(path))
    assert capture.losses == plain.losses != []
    assert 0 < sum(decoded_now) <= 700


def test_large_rows_do_not_wait_until_they_are_many(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_BYTES_OF_GROUP", 1)
    (path,) = compact(Capture(folder), tmp_path / "out")
    assert pq.ParquetFile(path).num_row_groups == verify(Capture(folder)).batches


def test_a_table_without_rows_is_a_file_with_its_columns(tmp_path: Path) -> None:
    write_segment(tmp_path / "c", rows.run(0, 3))
    (path,) = export(Capture(tmp_path / "c"), tmp_path / "out", table="quarantine")
    table = pq.read_table(path)
    assert (table.num_rows, table.schema.names) == (0, QUARANTINE.names)


def test_unknown_formats_are_told(folder: Path, tmp_path: Path) -> None:
    unknown: Any = "csv"
    with pytest.raises(ValueError, match="'csv' must be one of parquet, jsonl"):
        export(Capture(folder), tmp_path / "out", format=unknown)
    with pytest.raises(ValueError, match="'csv' must be one of frames, events, quarantine"):
        export(Capture(folder), tmp_path / "out", table=unknown)


def test_a_capture_that_is_not_empty_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    for write in (lambda: recover(folder, tmp_path / "out"), lambda: compact(Capture(folder), tmp_path / "out")):
        with pytest.raises(CaptureError, match="is not empty"):
            write()
