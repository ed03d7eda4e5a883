"""A capture in pieces and in windows of time, and what is taken of each."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from polybus.analysis import ranges, storage
from polybus.analysis.engine import exchanges as matched
from polybus.analysis.ingest import take
from polybus.analysis.ranges import Range, RangeReader, ReadPosition, ReadWindow, plan
from polybus.analysis.storage import TableStorage
from polybus.capture import decoding
from polybus.capture.schema import FLAG_GAP_BEFORE
from polybus.capture.store.reader import Capture
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import write_segment
from tests.unit.capture.generator import traffic


@pytest.mark.parametrize("rows", [1, 90, 700, 999, 10_000])
def test_the_pieces_of_a_segment_are_about_alike_and_hold_all_rows_once(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SCAN", 0)
    made = traffic(3_000)
    path = made.write(tmp_path, rows=100, segment_batches=16)
    pieces = plan(Capture(path), ReadPosition(), rows=rows)
    found = [
        [rows for batch in RangeReader(str(path), piece).frames(["seq"]) for rows in batch["seq"].to_pylist()]
        for piece in pieces
    ]
    assert [seq for seqs in found for seq in seqs] == made.table["seq"].to_pylist()
    for segment in {piece.start.segment for piece in pieces}:
        sizes = [len(seqs) for piece, seqs in zip(pieces, found, strict=True) if piece.start.segment == segment]
        assert max(sizes) - min(sizes) <= 200
        assert max(sizes) <= max(1.5 * rows, 100) + 100


def test_the_pieces_between_two_places_are_those_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "SCAN", 0)
    path = traffic(1_000).write(tmp_path, rows=100, segment_batches=16)
    pieces = plan(Capture(path), ReadPosition(0, 0), ReadPosition(0, 3), rows=200)
    assert [(piece.start.batch, piece.stop) for piece in pieces] == [(0, 2), (2, 3)]
    assert plan(Capture(path), ReadPosition(0, 3), ReadPosition(0, 3)) == []
    assert [type(piece) for piece in plan(Capture(path), ReadPosition(0, 1))] == [Range]


def test_an_exchange_is_whole_if_it_was_asked_within_the_window(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    begin = frames.row(0)["ts_ns"]

    def said(seq: int, after_s: int, frame: bytes) -> dict[str, Any]:
        after = after_s * 10**9
        return frames.row(seq, frame=frame, ts_ns=begin + after, mono_ns=after, direction=int(frame.startswith(b'{"success')))

    asks, answers = b'{"request":"plant.wait","id":"1"}', b'{"success":"1"}'
    write_segment(capture, frames.batch(said(0, 0, asks), said(1, 3, answers), said(2, 4, asks), said(3, 5, answers)))
    for end in (begin + 2 * 10**9, begin + 4 * 10**9):
        (found,) = [row for batch in matched(Capture(capture), ReadWindow(begin, end), 30.0) for row in batch.to_pylist()]
        assert (found["request_seq"], found["outcome"], found["latency_ms"]) == (0, "ok", 3000)
    everything = matched(Capture(capture), ReadWindow(begin, 2**63 - 1), 30.0)
    assert sum(batch.num_rows for batch in everything) == 2


def test_a_window_is_bounded_by_time_at_both_ends_and_by_a_connection() -> None:
    rows = frames.batch(*(frames.row(seq, ts_ns=seq // 2, conn_id=f"c-{seq % 2}") for seq in range(8)))
    assert ReadWindow(1, 3, "c-1").of(rows)["seq"].to_pylist() == [3, 5]


def test_that_frames_are_missing_is_said_also_of_a_single_connection(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    gap = frames.row(1, frame=None, conn_id="", flags=FLAG_GAP_BEFORE, options='{"gap":"slow","frames":3}')
    write_segment(capture, frames.batch(frames.row(0, conn_id="c-2"), gap, frames.row(2)))
    where, window = Range(ReadPosition(), None), ReadWindow(connection="c-1")
    done = take(str(capture), TableStorage(tmp_path / "out"), "staging", where, window)
    assert (done.frames, done.gaps) == (1, 1)


def test_large_rows_do_not_wait_until_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = tmp_path / "capture"
    large = {"frame": b'{"publish":"news","body":"%s"}' % (b"x" * 5000)}
    write_segment(capture, *(frames.run(number, 1, **large) for number in range(4)))
    monkeypatch.setattr(decoding, "BYTES_AT_ONCE", 1)
    monkeypatch.setattr(storage, "BYTES_AT_ONCE", 8000)
    done = take(str(capture), TableStorage(tmp_path / "out"), "staging", Range(ReadPosition(), None), ReadWindow())
    assert [pq.ParquetFile(tmp_path / "out" / name).num_row_groups for _, name, _ in done.files] == [2]
