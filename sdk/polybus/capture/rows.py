"""From what the taps wrote down to a batch of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from .schema import FRAMES
from .taps import End, Row

__all__ = ["make_batch"]

_TEXT: Final = pa.string()
_INT64: Final = pa.int64()


def make_batch(
    rows: Sequence[Row], frames: pa.Array, flags: Sequence[int] | None, capture_id: str, seq: int, offset_ns: int
) -> pa.RecordBatch:
    """Rows of `FRAMES`.

    Args:
        rows: What was written down.
        frames: Their frames, after redaction.
        flags: What redaction adds to the flags of each row; None for nothing.
        capture_id: Of the recording.
        seq: Number of the first row.
        offset_ns: From the monotonic clock to the wall clock.
    """
    ends, times, _, deadlines = zip(*rows, strict=True)
    places: dict[End, int] = {end: place for place, end in enumerate(dict.fromkeys(ends))}
    same = _ends(tuple(places), capture_id).take(pa.array([places[end] for end in ends], pa.int32()))
    added = same.column("flags")
    columns = {
        "seq": pa.array(range(seq, seq + len(rows)), _INT64),
        "ts_ns": pa.array([time + offset_ns for time in times], _INT64),
        "mono_ns": pa.array(times, _INT64),
        "frame": frames,
        "deadlines_ns": pa.array(deadlines, pa.list_(_INT64)),
        "flags": added if flags is None else pc.bit_wise_or(added, pa.array(flags, pa.int32())),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] if name in columns else same.column(name) for name in FRAMES.names], schema=FRAMES
    )


def _ends(ends: Sequence[End], capture_id: str) -> pa.RecordBatch:
    """A row for each end. All their columns are spread over the rows in one call, because each call into Arrow gives up the
    interpreter lock, and to get it back from a busy event loop takes milliseconds."""
    columns = {
        "capture_id": pa.array([capture_id] * len(ends), _TEXT),
        "direction": pa.array([end.direction for end in ends], pa.int8()),
        "conn_id": pa.array([end.conn_id for end in ends], _TEXT),
        "peer": pa.array([end.peer for end in ends], _TEXT),
        "protocol": pa.array([end.protocol for end in ends], _TEXT),
        "transport": pa.array([end.transport for end in ends], _TEXT),
        "tunnel": pa.array([end.tunnel for end in ends], pa.list_(_TEXT)),
        "options": pa.array([end.options for end in ends], _TEXT),
        "role": pa.array([end.role for end in ends], pa.int8()),
        "flags": pa.array([end.flags for end in ends], pa.int32()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
