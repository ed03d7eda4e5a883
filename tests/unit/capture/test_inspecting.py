"""What a capture holds, and whether all of it is sound."""

from __future__ import annotations

from pathlib import Path

from polybus.capture import Capture, info, verify

from .folders import write_segment
from .generator import Traffic


def test_info_says_what_is_there(folder: Path, made: Traffic) -> None:
    found = info(Capture(folder))
    assert found.frames == made.frames
    assert found.connections == 20
    assert found.gaps == {"dropped": 6}
    assert set(found.protocols) == {"ubre", "csb", "jrep", "uprotocol", "up"}
    assert sum(found.protocols.values()) == made.frames
    assert (found.lost_stretches, found.open) == (0, 0)
    assert found.captures == ["20231114T221320-cafe"]
    assert found.first_ns is not None and found.last_ns is not None and found.first_ns < found.last_ns


def test_a_good_capture_is_verified(folder: Path, made: Traffic) -> None:
    verdict = verify(Capture(folder))
    assert verdict.good
    assert verdict.frames == made.table.num_rows


def test_a_recording_that_says_too_early_that_it_is_over_is_over_when_it_says_so_again(made: Traffic, tmp_path: Path) -> None:
    folder, rows = tmp_path / "capture", made.table.combine_chunks().to_batches()[0]
    found = []
    for number, (batch, ends) in enumerate([(None, True), (None, True), (rows, False), (None, True)]):
        write_segment(folder, *([] if batch is None else [batch]), number=number, recording="a", ends=ends)
        found.append(info(Capture(folder)).ended)
    assert found == [["a"], ["a"], [], ["a"]]
