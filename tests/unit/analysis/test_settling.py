"""Recordings whose recorders were killed, settled; and what a run refuses, with the place that it is about."""

import errno
import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polybus.analysis import open_tables
from polybus.analysis.pipeline import PipelineStep, _done
from polybus.capture import Capture, CaptureError, compact, info, recover
from polybus.capture.store.segments import SegmentWriter
from polybus.cli.app import run

from ..capture import rows as frames
from ..capture.folders import damage_batches, open_segment, write_segment
from .days import analyse

QUESTIONS = [b'{"request":"a","id":"%d"}' % number for number in range(4)]


def _killed(folder: Path, number: int, *, torn: int = 0, capture_id: str = "c") -> SegmentWriter:
    """A segment of a recorder: four questions and an answer; it is killed when this is closed."""
    said = [*QUESTIONS, b'{"success":"0"}']
    rows = [frames.row(seq, frame=frame, capture_id=capture_id, direction=int(seq == 4)) for seq, frame in enumerate(said)]
    writer = open_segment(folder, frames.batch(*rows), number=number, recording=capture_id)
    if torn:
        size = writer.size + torn
        writer.write(frames.batch(*rows), 5)
        os.truncate(writer.path, size)
    return writer


def _outcomes(out: Path) -> Counter[str]:
    return Counter(dict(open_tables(out).sql("select outcome, count(*) from exchanges group by all").fetchall()))


def test_what_killed_recorders_have_left_is_settled_as_in_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, copy = tmp_path / "capture", tmp_path / "copy"
    for number in (0, 1):
        _killed(capture, number, capture_id=f"c{number}").close()
    recover(capture, copy)
    assert analyse(copy, tmp_path / "of the copy").provisional == 0
    assert analyse(capture, tmp_path / "out").provisional == 8
    settled = analyse(capture, tmp_path / "out", settle=True)
    assert (settled.added.exchanges, settled.provisional, settled.total.lost) == (8, 0, 0)
    assert _outcomes(tmp_path / "out") == _outcomes(tmp_path / "of the copy") == {"ok": 2, "open-at-end": 6}
    for settle in (True, False):
        assert analyse(capture, tmp_path / "out", settle=settle).added.frames == 0
    assert run(["analyse", str(capture), "--out", str(tmp_path / "at once"), "--settle", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["provisional"] == 0


def test_a_recording_that_goes_on_is_not_settled(tmp_path: Path) -> None:
    writer = _killed(tmp_path / "capture", 0)
    with pytest.raises(CaptureError, match=r"segment-00000000.open is still being written.*after the recorder has stopped"):
        analyse(tmp_path / "capture", tmp_path / "out", settle=True)
    writer.close()
    assert analyse(tmp_path / "capture", tmp_path / "out", settle=True).provisional == 0


def test_the_batch_in_which_a_recorder_was_killed_is_lost_when_it_is_settled(tmp_path: Path) -> None:
    _killed(tmp_path / "capture", 0, torn=50).close()
    for settle, lost in ((False, 0), (True, 1), (True, 1), (False, 1)):
        assert analyse(tmp_path / "capture", tmp_path / "out", settle=settle).total.lost == lost
    with pytest.raises(CaptureError, match="1 stretch cannot be read"):
        analyse(tmp_path / "capture", tmp_path / "strict", settle=True, strict=True)


@pytest.mark.parametrize("cut", [0, 4, 8, 12])
def test_damage_at_the_end_of_a_segment_is_counted_once_however_many_runs_read_it(cut: int, tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    path = write_segment(capture, frames.run(0, 5), frames.run(5, 5))
    if cut:
        os.truncate(path, path.stat().st_size - cut)
    else:
        damage_batches(capture, 1)
    for number in range(1, 3):
        assert analyse(capture, tmp_path / "out").total.lost == 1
        write_segment(capture, frames.run(5 + 5 * number, 5), number=number)
    assert analyse(capture, tmp_path / "out").total.lost == analyse(capture, tmp_path / "at once").total.lost == 1


def test_a_connection_that_nobody_recorded_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _killed(tmp_path / "capture", 0).close()
    command = ["analyse", str(tmp_path / "capture"), "--out", str(tmp_path / "out"), "--json", "--connection"]
    assert run([*command, "nope"]) != 0
    assert "has no connection 'nope'; it has 1, such as c-1" in capsys.readouterr().err
    assert run([*command, "c-1"]) == 0


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = tmp_path / "capture"
    _killed(capture, 0).close()
    (tmp_path / "file").write_text("of somebody")

    def full(*given: Any, **more: Any) -> Any:
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    with pytest.raises(CaptureError, match=rf"{tmp_path}/file is a file, and results need a folder"):
        analyse(capture, tmp_path / "file")
    with pytest.raises(OSError, match="/proc/nowhere"):
        analyse(capture, "/proc/nowhere/out")
    monkeypatch.setattr(PipelineStep, "advance", full)
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/out'"):
        analyse(capture, tmp_path / "out")
    monkeypatch.setattr("polybus.capture.store.export._write_parquet", full)
    monkeypatch.setattr("polybus.capture.store.inspection.SegmentWriter", full)
    for write in (compact, recover):
        with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/{write.__name__}'"):
            write(Capture(capture) if write is compact else capture, tmp_path / write.__name__)  # type: ignore[arg-type]


def test_a_blank_may_stand_in_a_uri(tmp_path: Path) -> None:
    capture = tmp_path / "a b"
    _killed(capture, 0).close()
    for uri in (f"file://{tmp_path}/a b", f"file://{tmp_path}/a%20b"):
        assert info(Capture(uri)).frames == 5
    done = analyse(f"file://{tmp_path}/a b", f"file://{tmp_path}/o t", settle=True)
    assert (done.total.frames, (tmp_path / "o t" / "events").is_dir()) == (5, True)


@pytest.mark.parametrize(
    ("out", "report"),
    [
        ("out", "out/report.html"),
        ("what?/", "what?/report.html"),
        ("s3://b/out?scheme=http&endpoint_override=h:1", "s3://b/out/report.html?scheme=http&endpoint_override=h:1"),
    ],
)
def test_the_path_of_the_report_is_one_that_can_be_opened(out: str, report: str, tmp_path: Path) -> None:
    nothing: Any = SimpleNamespace(counts=None, provisional=0)
    assert _done(out, nothing, nothing.counts, {}).report == report
