"""From packed rows to a batch of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..record.packing import Packed
from ..rows import RowHeader
from ..schema import FRAMES
from ..store.compute import pc

_OF_ENDS: Final = ("direction", "conn_id", "peer", "protocol", "transport", "tunnel", "options", "role", "flags")

_FEW: Final = 16
"""Ends: a batch with up to so many is worth columns of its own, as more of these are the same in all its rows."""
_LONGEST: Final = 1e9
"""Seconds, some thirty years: a deadline beyond cannot be told from none, and might not fit."""

Int32s: TypeAlias = npt.NDArray[np.int32]


def frames_of(packed: Packed) -> pa.Array:
    """The frames of rows; null where a row has none. The bytes are not copied."""
    sizes = np.frombuffer(packed.sizes, np.int32)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    there = sizes >= 0
    if there.all():
        np.cumsum(sizes, out=offsets[1:])
        validity = None
    else:
        np.cumsum(np.where(there, sizes, 0), out=offsets[1:])
        validity = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [validity, pa.py_buffer(offsets), pa.py_buffer(packed.data)])


class Batches:
    """Makes batches of `FRAMES` rows."""

    def __init__(self, capture_id: str) -> None:
        self._capture_id = capture_id
        self._table: list[RowHeader] = []
        self._shown = _SharedColumns([], [], capture_id)  # the same connections speak in many batches

    def meet(self, packed: Packed) -> Sequence[RowHeader]:
        """Learn the ends that are new in these rows; all that have numbers."""
        if len(packed.new) or packed.known != len(self._table):
            del self._table[packed.known :]
            self._table += packed.new
            if packed.known == 0:
                self._shown = _SharedColumns([], [], self._capture_id)
        return self._table

    def make(self, packed: Packed, frames: pa.Array, flags: Int32s | None, seq: int, offset_ns: int) -> pa.RecordBatch:
        """One batch of rows whose ends are known, after redaction, which adds `flags` to those of each row.

        `offset_ns` leads from the monotonic clock to the wall clock.
        """
        count = len(packed)
        times = np.frombuffer(packed.times, np.int64)
        columns = self._of_ends(np.frombuffer(packed.ends, np.int32)) | {
            "seq": pa.array(np.arange(seq, seq + count)),
            "ts_ns": pa.array(times + offset_ns),
            "mono_ns": pa.array(times),
            "frame": frames,
            "deadlines_ns": _deadlines(packed),
        }
        if flags is not None:
            columns["flags"] = pc.bit_wise_or(columns["flags"], pa.array(flags))
        return pa.RecordBatch.from_arrays([columns[name] for name in FRAMES.names], schema=FRAMES)

    def _of_ends(self, numbers: Int32s) -> dict[str, pa.Array]:
        here, last = set(np.flatnonzero(np.bincount(numbers)).tolist()), self._shown.numbers
        few = len(here) <= _FEW
        if not (here == last if few else here <= last and len(last) <= 2 * len(here)):
            # Of many connections each batch shows others: remember also those of before, while they are not more than these.
            known = sorted(here if few or len(last) > len(here) else here | last)
            self._shown = _SharedColumns(known, [self._table[number] for number in known], self._capture_id)
        return self._shown.columns(numbers)


class _SharedColumns:
    """The common columns of the rows of some connections (numbers ascend), spread over rows: equal values are made once."""

    def __init__(self, numbers: list[int], ends: Sequence[RowHeader], capture_id: str) -> None:
        self.numbers = set(numbers)
        self._places = np.zeros(numbers[-1] + 1 if numbers else 0, np.int32)
        self._places[numbers] = np.arange(len(numbers), dtype=np.int32)
        given: dict[str, list[Any]] = {name: [getattr(end, name) for end in ends] for name in _OF_ENDS}
        given["capture_id"] = [capture_id] * len(ends)
        self._same: dict[str, pa.Array] = {}
        self._one: dict[str, pa.Array] = {}
        other: dict[str, pa.Array] = {}
        for name, values in given.items():
            same = all(value == values[0] for value in values)
            (self._one if same else other)[name] = pa.array(values[:1] if same else values, FRAMES.field(name).type)
        self._other = pa.RecordBatch.from_arrays(list(other.values()), names=list(other))

    def columns(self, numbers: Int32s) -> dict[str, pa.Array]:
        """Their columns, for rows of these ends."""
        count = len(numbers)
        columns = {name: self._repeated(name, count) for name in self._one}
        if self._other.num_columns:
            taken = self._other.take(pa.array(self._places[numbers]))
            columns.update(zip(taken.schema.names, taken.columns, strict=True))
        return columns

    def _repeated(self, name: str, count: int) -> pa.Array:
        column = self._same.get(name)
        if column is None or len(column) < count:
            column = self._same[name] = self._one[name].take(pa.array(np.zeros(count, np.int32)))
        return column.slice(0, count)


def _deadlines(packed: Packed) -> pa.Array:
    offsets = np.zeros(len(packed) + 1, np.int32)
    if not len(packed.asked):
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array([], pa.int64()))
    asked, ttls = np.frombuffer(packed.asked, np.int32), np.frombuffer(memoryview(packed.ttls).cast("B"))
    np.cumsum(asked, out=offsets[1:])
    endless = np.isnan(ttls)
    after = np.where(endless, 0.0, np.clip(ttls, 0.0, _LONGEST) * 1e9).astype(np.int64)
    values = np.repeat(np.frombuffer(packed.times, np.int64), asked) + after
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, mask=endless))
