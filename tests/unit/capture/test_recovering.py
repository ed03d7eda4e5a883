"""A whole capture of what is good of a damaged one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polybus.capture import Capture, CaptureError, compact, decode, info, recover, verify
from polybus.capture.schema import FRAMES
from polybus.capture.store.segments import SegmentReader, SegmentWriter
from polybus.cli.app import run

from .generator import Traffic


def _damage(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 4
    path.write_bytes(data)


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


def test_what_a_copy_loses_later_is_no_less_than_nothing(made: Traffic, tmp_path: Path) -> None:
    folder, rows = tmp_path / "capture", made.table.combine_chunks().to_batches()[0]
    folder.mkdir()
    writer = SegmentWriter(folder, 0, {"capture_id": "a"})
    for number in range(6):
        writer.write(rows.slice(100 * number, 100), 100 * number)
    writer.end(600)
    writer.seal()

    def damage(capture: Path, *numbers: int) -> None:
        (segment,) = Capture(capture).segments()
        messages = list(Capture(capture).messages(segment))
        path = next(capture.iterdir())
        data = bytearray(path.read_bytes())
        for number in numbers:
            data[messages[number].offset + messages[number].size // 2] ^= 1
        path.write_bytes(data)

    damage(folder, 1, 3)
    assert recover(folder, tmp_path / "whole").lost_frames == 200
    damage(tmp_path / "whole", 3, 5)  # the last rows, and the second of those that say what is missing
    assert [loss.stretch.frames for loss in verify(Capture(tmp_path / "whole")).losses] == [100, 1]


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


def test_nothing_is_added_to_what_was_recovered_and_so_all_recordings_in_it_are_over(made: Traffic, tmp_path: Path) -> None:
    """Two were killed, each with its writer; a third was closed, and a fourth only seemed to be."""
    folder, (all_rows, *_) = tmp_path / "capture", made.table.combine_chunks().to_batches()
    folder.mkdir()
    place = all_rows.schema.get_field_index("capture_id")
    for number, (name, ends) in enumerate([("a", False), ("c", True), ("d", True), ("b", False), ("a", False), ("d", False)]):
        rows = all_rows.slice(number * 100, 100)
        writer = SegmentWriter(folder, number, {"capture_id": name})
        writer.write(rows.set_column(place, FRAMES.field(place), pa.array([name] * 100)), number * 100)
        if ends:
            writer.end(number * 100 + 100)
        writer.seal()
    assert info(Capture(folder)).ended == ["c"]
    saved = recover(folder, tmp_path / "whole")
    assert (saved.frames, saved.batches, saved.lost_stretches) == (600, 6, 0)
    whole = Capture(tmp_path / "whole")
    assert sorted(info(whole).ended) == ["a", "b", "c", "d"]
    assert verify(whole).good
    assert [row for batch in whole.batches() for row in batch.rows.to_pylist()] == [
        row for batch in Capture(folder).batches() for row in batch.rows.to_pylist()
    ]
    numbers = {name: seq for reader in map(whole.reader, whole.segments()) for name, seq in _ends(reader)}
    assert numbers == {"c": 200, "b": 400, "a": 500, "d": 600}


def _ends(reader: SegmentReader) -> Iterator[tuple[str, int]]:
    for message in reader.messages():
        if not message.rows:
            yield reader.metadata["capture_id"], message.seq


def test_whose_rows_they_were_is_known_where_a_segment_does_not_say_it(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        _damage(path, 0.001)
    recover(folder, tmp_path / "whole")
    whole = info(Capture(tmp_path / "whole"))
    assert (whole.ended, whole.captures) == (["20231114T221320-cafe"], ["20231114T221320-cafe", ""])


def test_what_is_left_of_a_damaged_batch_is_decoded(folder: Path) -> None:
    _damage(sorted(folder.iterdir())[0], 0.3)
    capture = Capture(folder)
    assert sum(decode(batch.rows).frames for batch in capture.batches()) > 2000
    assert len(capture.losses) == 1
