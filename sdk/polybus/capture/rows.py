"""From what the taps wrote down to a batch of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define

from .compute import pc
from .schema import FRAMES
from .taps import FIELDS, Deadlines, End, Row

__all__ = ["Batches", "Columns"]

_TEXT: Final = pa.string()
_INT64: Final = pa.int64()


@define
class Columns:
    """Rows, as columns."""

    ends: list[End]
    times: list[int]
    frames: list[bytes | None]
    deadlines: list[Deadlines]

    @classmethod
    def of(cls, flat: list[Any]) -> Columns:
        """From the flat list in which rows wait."""
        return cls(flat[::FIELDS], flat[1::FIELDS], flat[2::FIELDS], flat[3::FIELDS])

    def insert(self, index: int, row: Row) -> None:
        """Put a row between others."""
        end, time, frame, deadlines = row
        self.ends.insert(index, end)
        self.times.insert(index, time)
        self.frames.insert(index, frame)
        self.deadlines.insert(index, deadlines)

    def __len__(self) -> int:
        return len(self.ends)


class Batches:
    """Makes batches of `FRAMES` rows.

    Args:
        capture_id: Of the recording.
    """

    def __init__(self, capture_id: str) -> None:
        self._capture_id = capture_id
        self._last: tuple[tuple[End, ...], Any] = ((), None)  # the same few connections speak in many batches

    def make(self, rows: Columns, frames: pa.Array, flags: Sequence[int] | None, seq: int, offset_ns: int) -> pa.RecordBatch:
        """One batch.

        Args:
            rows: What was written down.
            frames: Their frames, after redaction.
            flags: What redaction adds to the flags of each row; None for nothing.
            seq: Number of the first row.
            offset_ns: From the monotonic clock to the wall clock.
        """
        places: dict[End, int] = {end: place for place, end in enumerate(dict.fromkeys(rows.ends))}
        same = self._of(tuple(places)).take(pa.array(map(places.__getitem__, rows.ends), pa.int32(), size=len(rows)))
        times = np.array(rows.times, np.int64)
        added = same.column("flags")
        columns = {
            "seq": pa.array(np.arange(seq, seq + len(rows))),
            "ts_ns": pa.array(times + offset_ns),
            "mono_ns": pa.array(times),
            "frame": frames,
            "deadlines_ns": _deadlines(rows.deadlines),
            "flags": added if flags is None else pc.bit_wise_or(added, pa.array(flags, pa.int32())),
        }
        return pa.RecordBatch.from_arrays(
            [columns[name] if name in columns else same.column(name) for name in FRAMES.names], schema=FRAMES
        )

    def _of(self, ends: tuple[End, ...]) -> pa.RecordBatch:
        if self._last[0] != ends:
            self._last = ends, _ends(ends, self._capture_id)
        return self._last[1]


def _deadlines(given: list[Deadlines]) -> pa.Array:
    values = [deadline for deadline in given if deadline is not None]
    if any(type(value) is tuple for value in values):
        return pa.array([(one,) if type(one) is int else one or () for one in given], pa.list_(_INT64))
    present = (
        np.fromiter((deadline is not None for deadline in given), bool, len(given)) if values else np.zeros(len(given), bool)
    )
    offsets = np.zeros(len(given) + 1, np.int32)
    np.cumsum(present, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, _INT64))


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
