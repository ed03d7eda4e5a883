"""What a capture holds, whether all of it is sound, and a whole one of what is good of a damaged one."""

import json
from pathlib import Path

import pytest

from polybus.capture import Capture, CaptureError, info, recover, verify
from polybus.cli.app import run

from .folders import damage, damage_batches, open_segment, rows_in, write_segment
from .generator import Traffic
from .rows import run as run_of


def test_damage_is_found_counted_and_left_out(folder: Path, made: Traffic, tmp_path: Path) -> None:
    paths = sorted(folder.iterdir())
    damage(paths[0], 0.5)
    damage(paths[1], 0.99)
    paths[2].unlink()
    verdict = verify(Capture(folder))
    assert (verdict.good, verdict.missing) == (False, (2,))
    assert [loss.segment for loss in verdict.losses] == [0, 1]
    assert verdict.losses[0].stretch.frames == 100
    with pytest.raises(CaptureError, match="segment 2 is missing"):
        list(Capture(folder).batches())

    saved = recover(folder, tmp_path / "whole")
    assert (saved.missing, saved.lost_stretches, saved.lost_frames >= 100) == ((2,), 2, True)
    whole = Capture(tmp_path / "whole")
    assert verify(whole).good
    rows = rows_in(tmp_path / "whole")
    good = [row for row in rows if row["capture_id"]]
    assert len(good) == saved.frames
    assert made.table.num_rows - len(good) in (900, 800)
    assert good == [row for row in made.table.to_pylist() if row["seq"] in {one["seq"] for one in good}]
    gaps = [json.loads(row["options"]) for row in rows if not row["capture_id"]]
    assert [gap["gap"] for gap in gaps] == ["damaged", "damaged"]


def test_what_a_copy_loses_later_is_no_less_than_nothing(made: Traffic, tmp_path: Path) -> None:
    folder, rows = tmp_path / "capture", made.table.combine_chunks().to_batches()[0]
    write_segment(folder, *(rows.slice(100 * number, 100) for number in range(6)), ends=True)
    damage_batches(folder, 1, 3)
    assert recover(folder, tmp_path / "whole").lost_frames == 200
    damage_batches(tmp_path / "whole", 3, 5)  # the last rows, and the second of those that say what is missing
    assert [loss.stretch.frames for loss in verify(Capture(tmp_path / "whole")).losses] == [100, 0]


def test_that_a_recording_is_over_stays_known_where_nothing_else_of_a_segment_does(made: Traffic, tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    write_segment(folder, made.table.combine_chunks().to_batches()[0], ends=True)
    damage_batches(folder, 0)
    recover(folder, tmp_path / "whole")
    assert info(Capture(tmp_path / "whole")).ended == info(Capture(folder)).ended == ["c"]


def test_nothing_is_added_to_what_was_recovered_and_so_all_recordings_in_it_are_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two were killed, each with its writer; a third was closed, and a fourth only seemed to be."""
    folder, whole = tmp_path / "capture", tmp_path / "whole"
    for number, (name, ends) in enumerate([("a", False), ("c", True), ("d", True), ("b", False), ("a", False), ("d", False)]):
        writer = open_segment(folder, run_of(number * 100, 100, capture_id=name), number=number, recording=name)
        if ends:
            writer.end(number * 100 + 100)
        writer.seal()
    assert info(Capture(folder)).ended == ["c"]
    assert run(["capture", "info", str(folder)]) == 0
    assert ", c (ended), " in capsys.readouterr().out
    saved = recover(folder, whole)
    assert (saved.frames, saved.batches, saved.lost_stretches) == (600, 6, 0)
    assert sorted(info(Capture(whole)).ended) == ["a", "b", "c", "d"]
    assert verify(Capture(whole)).good
    assert rows_in(whole) == rows_in(folder)
    readers = map(Capture(whole).reader, Capture(whole).segments())
    over = {one.metadata["capture_id"]: message.seq for one in readers for message in one.messages() if not message.rows}
    assert over == {"c": 200, "b": 400, "a": 500, "d": 600}


def test_whose_rows_they_were_is_known_where_a_segment_does_not_say_it(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        damage(path, 0.001)
    recover(folder, tmp_path / "whole")
    whole = info(Capture(tmp_path / "whole"))
    assert (whole.ended, whole.captures) == (["20231114T221320-cafe"], ["20231114T221320-cafe"])


def test_info_says_what_is_there_and_a_good_capture_is_verified(folder: Path, made: Traffic) -> None:
    assert ((verdict := verify(Capture(folder))).good, verdict.frames) == (True, made.table.num_rows)
    found = info(Capture(folder))
    assert found.frames == sum(found.protocols.values()) == made.frames
    assert (found.connections, found.gaps, found.captures) == (20, {"dropped": 6}, ["20231114T221320-cafe"])
    assert set(found.protocols) == {"ubre", "csb", "jrep", "uprotocol", "up"}
    assert (found.lost_stretches, found.open) == (0, 0)
    assert found.first_ns is not None and found.last_ns is not None and found.first_ns < found.last_ns


def test_a_recording_that_says_too_early_that_it_is_over_is_over_when_it_says_so_again(made: Traffic, tmp_path: Path) -> None:
    folder, rows = tmp_path / "capture", made.table.combine_chunks().to_batches()[0]
    found = []
    for number, (batch, ends) in enumerate([(None, True), (None, True), (rows, False), (None, True)]):
        write_segment(folder, *([] if batch is None else [batch]), number=number, recording="a", ends=ends)
        found.append(info(Capture(folder)).ended)
    assert found == [["a"], ["a"], [], ["a"]]
