"""Captures of any size for the measurements on Spark: the same traffic recorded again and again, each time by another one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import asdict, evolve, frozen

from polybus.capture import write_columns
from polybus.capture.store.segments import SegmentWriter
from tests.unit.capture.generator import PROTOCOLS, Traffic, traffic

__all__ = ["Truth", "decoded", "make", "truth_of"]

AT_ONCE = 1_000_000
"""Frames that are made by the generator; where more are wanted, they are recorded several times."""
ROWS = 4096
"""Of a batch: as many as a recorder of a busy bus writes at once."""
BATCHES = 256
"""Of a segment."""
LATER_NS = 600 * 1_000_000_000
"""Between two recordings."""


@frozen
class Truth:
    """What is in a capture.

    Attributes:
        rows: Of the capture, with those that mark a gap.
        size: Bytes of all frames.
        events: What a decoder must find.
        exchanges: What correlation must find.
    """

    rows: int
    size: int
    events: int
    exchanges: int


def make(
    folder: Path, frames: int, protocols: tuple[str, ...] = PROTOCOLS, *, also_parquet: bool = False, alike: bool = False
) -> Truth:
    """Write about so many frames as a capture, unless that was done before.

    Args:
        folder: Of the capture.
        frames: Of all protocols together; beyond a million a multiple of it.
        protocols: Which.
        also_parquet: The column of the frames beside it, as Parquet in two files: what a native scan reads.
        alike: True for frames that differ in an id and a number only, False for such as applications make.
    """
    said = folder.with_name(f"{folder.name}.json")
    if said.exists():
        return truth_of(folder)
    made = traffic(min(frames, AT_ONCE), protocols=protocols, alike=alike)
    times = max(1, round(frames / AT_ONCE))
    _write(folder, made, times)
    if also_parquet:
        _write_frames(folder.with_name(f"{folder.name}-frames"), made.table)
    size = pc.sum(pc.binary_length(made.table["frame"])).as_py()
    truth = Truth(made.table.num_rows, size, sum(made.events.values()), made.exchanges.num_rows)
    truth = evolve(truth, **{name: times * value for name, value in asdict(truth).items()})
    said.write_text(json.dumps(asdict(truth)))
    return truth


def truth_of(folder: Path) -> Truth:
    """Of a capture that `make` has written."""
    return Truth(**json.loads(folder.with_name(f"{folder.name}.json").read_text()))


def decoded(folder: Path) -> Path:
    """The same capture with columns, beside it: made once, of the same segments."""
    other = folder.with_name(f"{folder.name}-decoded")
    if not other.exists():
        other.mkdir()
        for segment in folder.glob("*.arrows"):
            os.link(segment, other / segment.name)
        write_columns(other)
    return other


def _write(folder: Path, made: Traffic, times: int) -> None:
    folder.mkdir(parents=True)
    batches = list(made.batches(ROWS))
    segments = -(-len(batches) // BATCHES)
    for number in range(times):
        for part in range(segments):
            writer = SegmentWriter(folder, number * segments + part)
            for batch in batches[part * BATCHES : (part + 1) * BATCHES]:
                writer.write(_again(batch, number), batch.column("seq")[0].as_py())
            writer.seal()


def _again(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """The same frames as another recorder would have written them, later."""
    columns = {
        "capture_id": pa.repeat(pa.scalar(f"recording-{number:03d}"), batch.num_rows),
        "ts_ns": pc.add(batch.column("ts_ns"), number * LATER_NS),
        "mono_ns": pc.add(batch.column("mono_ns"), number * LATER_NS),
        "deadlines_ns": pa.ListArray.from_arrays(
            batch.column("deadlines_ns").offsets, pc.add(batch.column("deadlines_ns").values, number * LATER_NS)
        ),
    }
    arrays = [columns.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _write_frames(folder: Path, table: pa.Table) -> None:
    folder.mkdir()
    half = table.num_rows // 2 + 1
    for number in range(2):
        pq.write_table(table.slice(number * half, half), folder / f"{number}.parquet")
