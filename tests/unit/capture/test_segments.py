"""Segments: written whole, read as far as they are whole."""

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from polybus.analysis import DuckEngine, Pipeline
from polybus.capture import CaptureError, info, verify, write_columns
from polybus.capture.schema import FRAMES
from polybus.capture.store.reader import Capture, Position
from polybus.capture.store.segments import SegmentWriter, segment_name

from .folders import open_segment, write_segment
from .rows import run

BATCHES = 5
ROWS = 10


def _segment(folder: Path, number: int = 0, *, first: int = 0) -> Path:
    return write_segment(folder, *_batches(first), number=number)


def _batches(first: int = 0) -> list[pa.RecordBatch]:
    return [run(first + index * ROWS, ROWS) for index in range(BATCHES)]


def _seqs(capture: Capture) -> list[int]:
    return [seq for found in capture.batches() for seq in found.rows.column("seq").to_pylist()]


def test_what_was_written_is_read_again_with_its_positions(tmp_path: Path) -> None:
    _segment(tmp_path)
    capture = Capture(tmp_path)
    found = list(capture.batches())
    assert [batch.position for batch in found] == [(0, number) for number in range(BATCHES)]
    assert pa.Table.from_batches([batch.rows for batch in found]).to_pylist() == run(0, BATCHES * ROWS).to_pylist()
    assert (capture.losses, found[-1].next) == ([], Position(0, BATCHES))


def test_some_columns_are_read_alone_in_the_order_in_which_they_are_asked_for(tmp_path: Path) -> None:
    _segment(tmp_path)
    reader = Capture(tmp_path).reader(Capture(tmp_path).segments()[0])
    for message in reader.messages():
        whole = reader.rows(message)
        for names in (["frame"], ["tunnel", "seq"], ["flags", "deadlines_ns", "capture_id"], FRAMES.names[::-1]):
            some = reader.rows(message, names)
            assert some.schema.names == names
            assert some.equals(whole.select(names))
    names = ["frame", "seq"]
    whole, some = (list(Capture(tmp_path).batches(columns=wanted)) for wanted in (None, names))
    assert [batch.position for batch in some] == [batch.position for batch in whole]
    assert [batch.rows for batch in some] == [batch.rows.select(names) for batch in whole]
    with pytest.raises(KeyError, match="colour"):
        next(Capture(tmp_path).batches(columns=["colour"]))


def test_a_range_of_positions_is_read_alone(tmp_path: Path) -> None:
    _segment(tmp_path)
    _segment(tmp_path, 1, first=BATCHES * ROWS)
    assert [batch.position for batch in Capture(tmp_path).batches((0, 3), (1, 2))] == [(0, 3), (0, 4), (1, 0), (1, 1)]


def test_a_capture_is_read_from_a_file_system_of_pyarrow(tmp_path: Path) -> None:
    _segment(tmp_path)
    inside = pafs.SubTreeFileSystem(str(tmp_path.parent), pafs.LocalFileSystem())
    assert len(_seqs(Capture(tmp_path.name, inside))) == BATCHES * ROWS
    assert len(_seqs(Capture(tmp_path.as_uri()))) == BATCHES * ROWS


def test_the_torn_end_of_an_open_segment_is_waited_for(tmp_path: Path) -> None:
    writer = open_segment(tmp_path, *_batches())
    whole = writer.path.read_bytes()[:-8]
    last = writer.write(run(50, ROWS), 50)
    torn = writer.path.read_bytes()
    for cut in (1, 7, 8, 9, last // 2, last - 1):
        writer.path.write_bytes(torn[: len(whole) + cut])
        capture = Capture(tmp_path)
        assert (len(_seqs(capture)), capture.losses) == (BATCHES * ROWS, []), cut
    writer.path.write_bytes(torn)
    assert [batch.position for batch in Capture(tmp_path).batches((0, BATCHES))] == [(0, BATCHES)]
    writer.close()


def test_each_flipped_bit_is_found_and_costs_at_most_its_batch(tmp_path: Path) -> None:
    path = _segment(tmp_path)
    good = path.read_bytes()
    all_rows = list(range(BATCHES * ROWS))
    rng = random.Random(8)
    places = {rng.randrange(len(good)) for _ in range(150)} | {0, 4, 8, len(good) - 1}
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        capture = Capture(tmp_path)
        seqs = _seqs(capture)
        assert len(capture.losses) == 1, place
        lost = [seq for seq in all_rows if seq not in seqs]
        assert len(lost) in (0, ROWS), place
        if lost and lost[-1] != all_rows[-1] and lost[0]:
            assert capture.losses[0].stretch.frames == ROWS
            assert capture.losses[0].stretch.batch == lost[0] // ROWS


def _cuts(folder: Path) -> dict[int, int]:
    """Places at which a segment may be cut short, with the batches before each: between batches, and within them."""
    messages = list(Capture(folder).reader(Capture(folder).segments()[0]).messages())
    ends = [0, messages[0].offset, *(message.offset + message.size for message in messages)]
    cuts = {end + within: max(0, place - 1) for place, end in enumerate(ends) for within in (0, 1, 7, 100)}
    return {cut: batches for cut, batches in cuts.items() if cut < ends[-1] + 8}


def test_a_sealed_segment_that_was_cut_short_is_damaged_wherever_it_ends(tmp_path: Path) -> None:
    path = _segment(tmp_path)
    good, cuts = path.read_bytes(), _cuts(tmp_path)
    assert {0, len(good) - 1, len(good) - 8} <= set(cuts)
    for cut, batches in cuts.items():
        path.write_bytes(good[:cut])
        capture = Capture(tmp_path)
        assert len(_seqs(capture)) == batches * ROWS, cut
        (loss,) = capture.losses
        assert (loss.stretch.batch, loss.stretch.offset + loss.stretch.size) == (batches, cut)
        assert info(capture).lost_stretches == len(verify(capture).losses) == 1
        assert write_columns(tmp_path).damaged == [0]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_capture_that_ends_with_rubbish_or_too_early_is_not_fine(sealed: bool, tmp_path: Path) -> None:
    """Also where nothing else is there; and what several runs come by counts once."""
    first = _segment(tmp_path / "capture")
    good, rubbish = first.read_bytes(), random.Random(1).randbytes(5000)
    ends = [rubbish, good[:-100], b""] if sealed else [rubbish]
    with DuckEngine() as engine:
        for number, end in enumerate([*ends, *ends]):
            folder, out, behind = tmp_path / f"{number}", tmp_path / f"out-{number}", int(number < len(ends))
            folder.mkdir()
            if behind:
                (folder / first.name).write_bytes(good)
            (folder / segment_name(behind, sealed=sealed)).write_bytes(end)
            with pytest.raises(CaptureError, match="1 stretch cannot be read"):
                Pipeline(engine, strict=True).run(folder, out, report=False)
            for _ in range(2):
                assert Pipeline(engine).run(folder, out, report=False).total.lost == 1
            assert not verify(Capture(folder)).good
        assert [one["about"] for one in Pipeline(engine).report(folder, out).metrics["verdict"]] == ["unseen", "unseen"]


def test_a_full_disk_does_not_take_the_end_of_what_was_written_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, write = open_segment(tmp_path, *_batches()), os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 100:
            write(file, data[:77])
            raise OSError(28, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            writer.write(run(50, ROWS), 50)
        writer.seal()
    assert verify(Capture(tmp_path)).good
    assert len(_seqs(Capture(tmp_path))) == BATCHES * ROWS


def test_a_missing_segment_is_an_error_that_names_it(tmp_path: Path) -> None:
    for number in (3, 4, 6):
        _segment(tmp_path, number)
    with pytest.raises(CaptureError, match="segment 5 is missing between 4 and 6.*recover"):
        list(Capture(tmp_path).batches())


def test_an_unknown_version_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("polybus.capture.store.segments.FRAMES", FRAMES.with_metadata({"polybus.capture": "77"}))
        open_segment(tmp_path, run(0, 1)).close()
    with pytest.raises(CaptureError, match="version 77"):
        list(Capture(tmp_path).batches())


def test_a_folder_without_segments_is_no_capture(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="is empty: the recorder has written nothing"):
        Capture(tmp_path)
    (tmp_path / "letter.txt").write_text("Dear Ann")
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(CaptureError, match="is not a capture"):
            Capture(place)
    with pytest.raises(CaptureError):
        Capture("nothing://here")


def test_no_segment_is_written_over_another(tmp_path: Path) -> None:
    _segment(tmp_path)
    with pytest.raises(FileExistsError):
        SegmentWriter(tmp_path, 0)
