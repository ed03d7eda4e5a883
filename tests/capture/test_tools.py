"""Looking at captures, checking, mending and exporting them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from polybus.capture import Capture, CaptureError, compact, decode, export, info, recover, verify
from polybus.capture.schema import EVENTS, FRAMES
from polybus.capture.segments import SegmentWriter
from polybus.cli.app import run

from .generator import Traffic, traffic


@pytest.fixture(scope="module")
def made() -> Traffic:
    """Some traffic, with two gaps of three frames."""
    return traffic(3_000)


@pytest.fixture
def folder(made: Traffic, tmp_path: Path) -> Path:
    """It as a capture of several segments."""
    return made.write(tmp_path / "capture", rows=100, segment_batches=7)


def _damage(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 4
    path.write_bytes(data)


def test_info_says_what_is_there(folder: Path, made: Traffic) -> None:
    found = info(Capture(folder))
    assert found.frames == made.frames
    assert found.connections == 16
    assert found.gaps == {"dropped": 6}
    assert set(found.protocols) == {"ubre", "csb", "jrep", "uprotocol"}
    assert sum(found.protocols.values()) == made.frames
    assert (found.lost_stretches, found.open) == (0, 0)
    assert found.captures == ["20231114T221320-cafe"]
    assert found.first_ns is not None and found.last_ns is not None and found.first_ns < found.last_ns


def test_a_good_capture_is_verified(folder: Path, made: Traffic) -> None:
    verdict = verify(Capture(folder))
    assert verdict.good
    assert verdict.frames == made.table.num_rows


def test_damage_is_found_counted_and_left_out(folder: Path, made: Traffic, tmp_path: Path) -> None:
    paths = sorted(folder.iterdir())
    _damage(paths[0], 0.5)
    _damage(paths[1], 0.99)
    paths[2].unlink()
    verdict = verify(Capture(folder))
    assert not verdict.good
    assert verdict.missing == (2,)
    assert [loss.segment for loss in verdict.losses] == [0, 1]
    assert verdict.losses[0].stretch.frames == 100
    with pytest.raises(CaptureError, match="segment 2 is missing"):
        list(Capture(folder).batches())

    saved = recover(folder, tmp_path / "whole")
    assert saved.missing == (2,)
    assert saved.lost_stretches == 2
    assert saved.lost_frames >= 100
    whole = Capture(tmp_path / "whole")
    assert verify(whole).good
    rows = [row for batch in whole.batches() for row in batch.rows.to_pylist()]
    good = [row for row in rows if row["capture_id"]]
    assert len(good) == saved.frames
    assert made.table.num_rows - len(good) in (900, 800)
    assert good == [row for row in made.table.to_pylist() if row["seq"] in {one["seq"] for one in good}]
    gaps = [json.loads(row["options"]) for row in rows if not row["capture_id"]]
    assert [gap["gap"] for gap in gaps] == ["damaged", "damaged"]


def test_a_recording_that_says_too_early_that_it_is_over_is_over_when_it_says_so_again(made: Traffic, tmp_path: Path) -> None:
    folder, rows = tmp_path / "capture", made.table.combine_chunks().to_batches()[0]
    folder.mkdir()
    found = []
    for number, (batch, ends) in enumerate([(None, True), (None, True), (rows, False), (None, True)]):
        writer = SegmentWriter(folder, number, {"capture_id": "a"})
        if batch is not None:
            writer.write(batch, 0)
        if ends:
            writer.end(0)
        writer.seal()
        found.append(info(Capture(folder)).ended)
    assert found == [["a"], ["a"], [], ["a"]]


def test_that_a_recording_is_over_stays_known_where_nothing_else_of_a_segment_does(made: Traffic, tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    writer = SegmentWriter(folder, 0, {"capture_id": "a"})
    begin = writer.size
    writer.write(made.table.combine_chunks().to_batches()[0], 0)
    writer.end(made.table.num_rows)
    path = writer.seal()
    data = bytearray(path.read_bytes())
    data[begin + 1000] ^= 1
    path.write_bytes(data)
    recover(folder, tmp_path / "whole")
    assert info(Capture(tmp_path / "whole")).ended == info(Capture(folder)).ended == ["a"]


def test_that_a_recording_is_over_stays_known(made: Traffic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.write(tmp_path / "capture")
    writer = SegmentWriter(folder, len(list(folder.iterdir())), {"capture_id": "20231114T221320-cafe"})
    writer.end(made.table.num_rows)
    writer.seal()
    recover(folder, tmp_path / "whole")
    for one in (folder, tmp_path / "whole"):
        assert info(Capture(one)).ended == ["20231114T221320-cafe"]
        verdict = verify(Capture(one))
        assert (verdict.good, verdict.frames) == (True, made.table.num_rows)
        assert run(["capture", "info", str(one)]) == 0
        assert "recordings 20231114T221320-cafe (ended)\n" in capsys.readouterr().out
        (file,) = compact(Capture(one), tmp_path / f"{one.name}-parquet")
        assert pq.ParquetFile(file).metadata.num_rows == made.table.num_rows


def test_a_capture_that_is_not_empty_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    for write in (lambda: recover(folder, tmp_path / "out"), lambda: compact(Capture(folder), tmp_path / "out")):
        with pytest.raises(CaptureError, match="is not empty"):
            write()


def test_compact_writes_all_frames_as_parquet(folder: Path, made: Traffic, tmp_path: Path) -> None:
    (path,) = compact(Capture(folder), tmp_path / "out")
    table = pq.read_table(path)
    assert table.schema.names == FRAMES.names
    assert table.to_pylist() == made.table.to_pylist()


def test_events_are_exported_as_parquet(folder: Path, made: Traffic, tmp_path: Path) -> None:
    (path,) = export(Capture(folder), tmp_path / "out")
    table = pq.read_table(path)
    assert table.schema.names == EVENTS.names
    assert table.num_rows == sum(made.events.values())


@pytest.mark.parametrize("table", ["frames", "events", "quarantine"])
def test_tables_are_exported_as_lines_of_json(folder: Path, made: Traffic, tmp_path: Path, table: str) -> None:
    (path,) = export(Capture(folder), tmp_path / "out", format="jsonl", table=table)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    expected = {
        "frames": made.table.num_rows,
        "events": sum(made.events.values()),
        "quarantine": len(made.quarantine),
    }
    assert len(rows) == expected[table]
    if table == "quarantine":
        assert {row["seq"]: row["reason"] for row in rows} == made.quarantine
        assert any("raw_base64" in row for row in rows)


def test_unknown_formats_are_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="parquet or jsonl"):
        export(Capture(folder), tmp_path / "out", format="csv")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="frames, events, quarantine"):
        export(Capture(folder), tmp_path / "out", table="all")  # type: ignore[arg-type]


def test_what_is_left_of_a_damaged_batch_is_decoded(folder: Path) -> None:
    _damage(sorted(folder.iterdir())[0], 0.3)
    capture = Capture(folder)
    assert sum(decode(batch.rows).frames for batch in capture.batches()) > 2000
    assert len(capture.losses) == 1
