"""A capture in pieces, and the workers that read them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from polybus.analysis import ranges
from polybus.analysis.range_reader import RangeReader
from polybus.analysis.ranges import Range, ReadPosition, ReadWindow, plan
from polybus.capture.store.reader import Capture
from polybus.spark.engine import settle
from tests.unit.capture.generator import traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


@pytest.mark.parametrize("connection", [None, "cafe-2"])
@pytest.mark.parametrize("end", [None, 700])
@pytest.mark.parametrize("start", [None, 300])
def test_a_window_may_be_bounded_by_time_at_both_ends_and_by_a_connection(
    start: int | None, end: int | None, connection: str | None
) -> None:
    rows = traffic(1_000).table.combine_chunks().to_batches()[0]
    times = rows.column("ts_ns").to_pylist()
    begin, until = (None if place is None else times[place] for place in (start, end))
    found = ReadWindow(begin, until, connection).of(rows)
    wanted = [
        row
        for row in rows.to_pylist()
        if (begin is None or begin <= row["ts_ns"])
        and (until is None or row["ts_ns"] < until)
        and connection in (None, row["conn_id"])
    ]
    assert found.to_pylist() == wanted != []


def test_a_worker_leaves_its_modules_out_of_the_collections_after_each_task(spark: SparkSession) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from polybus.spark.engine import settle

        for batch in batches:
            settle()
            yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()] * batch.num_rows})

    (row,) = spark.range(1).mapInArrow(frozen, "frozen long").collect()
    assert row["frozen"] > 10_000


def test_a_driver_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []  # not the count of what is frozen: that falls when such an object ends
    monkeypatch.setattr("gc.freeze", lambda: called.append("freeze"))
    settle()
    assert called == []
