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

__all__ = ["Batches", "Columns", "Ends"]

_INT64: Final = pa.int64()
_OF_ENDS: Final = ("direction", "conn_id", "peer", "protocol", "transport", "tunnel", "options", "role", "flags")
_FEW: Final = 16
"""Ends: a batch with up to so many, fewer than the last one, is worth columns of its own, as more of these are all the same."""


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
        self._ends = Ends((), capture_id)  # the same connections speak in many batches

    def make(self, rows: Columns, frames: pa.Array, flags: Sequence[int] | None, seq: int, offset_ns: int) -> pa.RecordBatch:
        """One batch.

        Args:
            rows: What was written down.
            frames: Their frames, after redaction.
            flags: What redaction adds to the flags of each row; None for nothing.
            seq: Number of the first row.
            offset_ns: From the monotonic clock to the wall clock.
        """
        count = len(rows)
        times = np.fromiter(rows.times, np.int64, count)
        columns = self._known(rows.ends).columns(rows.ends)
        columns["seq"] = pa.array(np.arange(seq, seq + count))
        columns["ts_ns"] = pa.array(times + offset_ns)
        columns["mono_ns"] = pa.array(times)
        columns["frame"] = frames
        columns["deadlines_ns"] = _deadlines(rows.deadlines)
        if flags is not None:
            columns["flags"] = pc.bit_wise_or(columns["flags"], pa.array(flags, pa.int32()))
        return pa.RecordBatch.from_arrays([columns[name] for name in FRAMES.names], schema=FRAMES)

    def _known(self, ends: Sequence[End]) -> Ends:
        """The ends of a batch: those of the last one where they fit."""
        here, last = dict.fromkeys(ends), self._ends.places
        few = len(here) <= _FEW
        fits = len(here) == len(last) if few else len(last) <= 2 * len(here)
        if not fits or not here.keys() <= last.keys():
            # Of many connections each batch shows others: remember also those of before, while they are not more than these.
            before = {} if few or len(last) > len(here) else last
            self._ends = Ends((*here, *(end for end in before if end not in here)), self._capture_id)
        return self._ends


class Ends:
    """What the rows of some connections have in common, spread over rows.

    Each call into Arrow gives up the interpreter lock, and finds the processor's caches full of what the event loop does; so
    what is the same in all rows is made once.

    Args:
        ends: Those that may occur.
        capture_id: Of the recording.
    """

    def __init__(self, ends: Sequence[End], capture_id: str) -> None:
        self.places: dict[End, int] = {end: place for place, end in enumerate(ends)}
        given: dict[str, list[Any]] = {
            "capture_id": [capture_id] * len(ends),
            **{name: [getattr(end, name) for end in ends] for name in _OF_ENDS},
        }
        self._same: dict[str, pa.Array] = {}
        self._one: dict[str, Any] = {}
        other = {}
        for name, values in given.items():
            if values and all(value == values[0] for value in values):
                self._one[name] = pa.array(values[:1], FRAMES.field(name).type)
            else:
                other[name] = pa.array(values, FRAMES.field(name).type)
        self._other = pa.RecordBatch.from_arrays(list(other.values()), names=list(other))

    def columns(self, ends: Sequence[End]) -> dict[str, pa.Array]:
        """Their columns, for rows of these ends."""
        count = len(ends)
        columns = {name: self._repeated(name, count) for name in self._one}
        if self._other.num_columns:
            places = np.fromiter(map(self.places.__getitem__, ends), np.int32, count)
            taken = self._other.take(pa.array(places))
            columns.update(zip(taken.schema.names, taken.columns, strict=True))
        return columns

    def _repeated(self, name: str, count: int) -> pa.Array:
        column = self._same.get(name)
        if column is None or len(column) < count:
            column = self._same[name] = self._one[name].take(pa.array(np.zeros(count, np.int32)))
        return column.slice(0, count)


def _deadlines(given: list[Deadlines]) -> pa.Array:
    offsets = np.zeros(len(given) + 1, np.int32)
    values: list[Deadlines] = []
    if given.count(None) < len(given):
        values = [deadline for deadline in given if deadline is not None]
        if any(type(value) is tuple for value in values):
            return pa.array([(one,) if type(one) is int else one or () for one in given], pa.list_(_INT64))
        np.cumsum(np.fromiter((deadline is not None for deadline in given), bool, len(given)), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, _INT64))
