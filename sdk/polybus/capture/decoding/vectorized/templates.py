"""Frames that are alike but for an id, a number and a body, read together: the codec reads one of them for all.

No rule of a protocol is repeated here. A frame is cut at its holes, places where it may hold any text of some kind without
meaning something else. Of frames with the same pieces between the holes one is read by the codec, twice, with different things
in the holes: what stays the same is said by the pieces, and what changes is what was put in. Where both readings do not agree
about that, and wherever there is any doubt, the frames are left to the codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from ....limits import Limits
from ...store.compute import pc
from ..event_columns import Column, Part
from ..event_mapping import Row
from .numpy_bytes import Bytes, distinct
from .slots import BODY, DERIVED, ID, KEY, MS, Bodies, Cut

__all__ = ["Alike", "Judge"]

Judge: TypeAlias = Callable[[bytes], Row | None]
"""What a frame says; None where it cannot be read, or does not hold exactly one message."""

_PROBES: Final = (
    {ID: b"01890f5e-7b2c-8000-8123-456789abcdef", KEY: b"01890f5e-7b2c-8001-9123-456789abcdef", MS: b"987654321"},
    {ID: b"12890f5e-3c4d-8002-a123-456789abcdef", KEY: b"12890f5e-3c4d-8003-b123-456789abcdef", MS: b"123456789"},
)
"""What is put into holes: ids as long as any, and such as every protocol takes."""
_WORTH: Final = 2
"""So many frames have to be alike: two are read for them."""
_MOST: Final = 1 << 40
"""Numbers up to here can be multiplied by how many frames there are."""
_REMEMBERED: Final = 4096
_SHORT: Final = 2048
"""Longer pieces (bytes) are not remembered: they have more in them that is not the same every time."""
_READ: Final = frozenset(("request", "response", "publish", "notify"))
_ASKED: Final = frozenset(("request", "response"))
_Reading: TypeAlias = tuple[Any, ...]
"""The fields of a `Row`, the texts among them as `_Template`."""
_TEXTS: Final = tuple(name for name in Row._fields if name not in ("data", "code", "ttl_ms"))


class _Template(NamedTuple):
    """A text with at most one hole in it."""

    before: str | None
    hole: int | None
    after: str


class Alike:
    """Reads the frames that are like others.

    Args:
        cut: Finds the holes.
        judge: The codec.
    """

    def __init__(self, cut: Callable[[Bytes, Limits], Cut | None], judge: Judge) -> None:
        self._cut = cut
        self._judge = judge
        self._known: dict[Any, _Reading | None] = {}

    def read(self, frames: pa.Array, limits: Limits) -> Part | None:
        """Those among some frames.

        Args:
            frames: Without nulls.
            limits: Of the codec.
        """
        data = Bytes(frames)
        cut = self._cut(data, limits)
        return None if cut is None or not len(cut.rows) else _Work(data, cut, self._reading).part()

    def _reading(self, pieces: tuple[bytes, ...], sort: int, read: Callable[[Judge, int], _Reading | None]) -> _Reading | None:
        """What frames of these pieces say; read once, as far as they can be remembered."""
        key = pieces, sort
        with suppress(KeyError):  # one step, for other threads may forget it meanwhile
            return self._known[key]
        one, other = (read(self._judge, number) for number in (0, 1))
        # A backslash would mean the first letter in a hole.
        found = one if one == other and not any(b"\\" in piece for piece in pieces) else None
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        if sum(map(len, pieces)) <= _SHORT:
            self._known[key] = found
        return found


class _Work:
    def __init__(self, data: Bytes, cut: Cut, reading: Callable[..., _Reading | None]) -> None:
        self._data = data
        self._cut = cut
        self._reading = reading
        self._kept: Any = np.ones(len(cut.rows), bool)
        self._sorts: Any = np.zeros(len(cut.rows), np.int64)
        self._bodies: Bodies | None = None
        self._ids: dict[int, pa.Array] = {}

    def part(self) -> Part | None:
        """The rows that could be read."""
        self._fill()
        where = np.flatnonzero(self._kept)
        if not len(where):
            return None
        pieces, codes, firsts = self._skeletons(where)
        many = np.bincount(codes) >= _WORTH
        readings = [
            self._of(pieces, first, int(where[first])) if some else None for first, some in zip(firsts, many, strict=True)
        ]
        good = np.array([reading is not None for reading in readings], bool)
        where, codes = where[good[codes]], codes[good[codes]]
        if not len(where):
            return None
        renumbered = np.cumsum(good) - 1
        return Part(self._cut.rows[where], self._columns(where, pa.array(renumbered[codes]), [r for r in readings if r]))

    # -- holes -----------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """What is in the holes, and whether it is what may be in them."""
        for kind, begins, ends in self._cut.holes:
            if kind == BODY and self._cut.bodies is not None:
                self._bodies = self._cut.bodies(begins, ends)
                self._kept &= self._bodies.sound
                self._sorts = self._sorts * (len(self._bodies.probes) + 1) + self._bodies.sorts
            elif kind in (ID, KEY):
                ids = self._ids[kind] = self._data.parts(begins, ends)
                there = ends > begins
                fits = pc.match_substring_regex(ids, self._cut.ids).to_numpy(zero_copy_only=False)
                self._kept &= fits | ~there
                self._sorts = self._sorts * 2 + there
            elif kind == MS:
                self._sorts = self._sorts * 2 + (ends > begins)

    def _skeletons(self, where: Any) -> tuple[list[pa.Array], Any, Any]:
        """The pieces between the holes, which frames have the same ones, and the first of each kind."""
        rows, pieces, codes = self._cut.rows[where], [], self._sorts[where]
        begins = self._data.begins[rows]
        for hole, end in (*((begin[where], end[where]) for _, begin, end in self._cut.holes), (self._data.ends[rows], None)):
            piece = self._data.parts(begins, hole)
            encoded = piece.dictionary_encode()
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
            if codes.max(initial=0) > _MOST:
                codes = distinct(codes)[1].astype(np.int64)
            pieces.append(piece)
            begins = end
        codes = distinct(codes)[1].astype(np.int64)
        firsts = np.zeros(int(codes.max()) + 1, np.int64)
        firsts[codes[::-1]] = np.arange(len(codes))[::-1]
        return pieces, codes, firsts

    # -- what the codec says ---------------------------------------------------------------------------------------------

    def _of(self, pieces: Sequence[pa.Array], first: int, row: int) -> _Reading | None:
        said = tuple(piece[first].as_py() for piece in pieces)
        return self._reading(said, int(self._sorts[row]), partial(self._read, said, row))

    def _read(self, pieces: tuple[bytes, ...], row: int, judge: Judge, number: int) -> _Reading | None:
        """What a frame of some pieces says, with one thing or another in its holes, as the fields of a `Row`."""
        probes = dict(_PROBES[number])
        said: bytes | None = None
        for kind, begins, ends in self._cut.holes:
            if kind == BODY and self._bodies is not None and self._bodies.sorts[row]:
                sort = self._bodies.sorts[row] - 1
                probes[BODY], said = self._bodies.probes[sort][number], self._bodies.said[sort][number]
            elif kind != DERIVED and ends[row] == begins[row]:
                probes[kind] = b""
        message = judge(self._frame(pieces, probes))
        if message is None or message.kind not in _READ:
            return None
        templates = {name: _template(getattr(message, name), probes) for name in _TEXTS}
        if message.kind in _ASKED and templates["correlation"].hole is None:
            return None
        if said is not None and message.data != said:
            return None
        ttl = message.ttl_ms
        if probes[MS] and any(kind == MS for kind, _, _ in self._cut.holes):
            if ttl != int(probes[MS]):
                return None
            ttl = -1
        given = templates | {"data": None if said is not None else message.data, "code": message.code, "ttl_ms": ttl}
        return tuple(given[name] for name in Row._fields)

    def _frame(self, pieces: tuple[bytes, ...], probes: dict[int, bytes]) -> bytes:
        if self._cut.joined is not None:
            return self._cut.joined(pieces, probes)
        filled = [probes[kind] for kind, _, _ in self._cut.holes]
        return b"".join(part for pair in zip(pieces, [*filled, b""], strict=True) for part in pair)

    # -- columns ---------------------------------------------------------------------------------------------------------

    def _columns(self, where: Any, codes: pa.Array, readings: Sequence[_Reading]) -> dict[str, Column]:
        given: dict[str, Column] = {}
        for name, values in zip(Row._fields, zip(*readings, strict=True), strict=True):
            if name == "data":
                given[name] = partial(self._data_of, where, codes, values)
            elif name == "ttl_ms":
                given[name] = partial(self._times_of, where, codes, values)
            elif name == "code":
                given[name] = pa.array(values, pa.int32()).take(codes)
            else:
                given[name] = partial(self._text_of, where, codes, values)
        return given

    def _text_of(self, where: Any, codes: pa.Array, templates: Sequence[_Template]) -> pa.Array:
        before = pa.array([template.before for template in templates], pa.string())
        used = {template.hole for template in templates if template.hole is not None}
        if not used:
            return before.take(codes)
        whole: Any = ""
        for hole in sorted(used):
            has = pa.array([template.hole == hole for template in templates]).take(codes)
            whole = pc.if_else(has, self._ids[hole].take(pa.array(where)).cast(pa.string()), whole)
        if any(template.before or template.after for template in templates):
            after = pa.array([template.after for template in templates], pa.string())
            return pc.binary_join_element_wise(before.take(codes), whole, after.take(codes), "")
        return whole if not before.null_count else pc.if_else(pc.is_valid(before).take(codes), whole, None)

    def _data_of(self, where: Any, codes: pa.Array, values: Sequence[bytes | None]) -> pa.Array:
        said = pa.array(values, pa.binary()).take(codes)
        return said if self._bodies is None else pc.coalesce(self._bodies.data(where), said)

    def _times_of(self, where: Any, codes: pa.Array, values: Sequence[int | None]) -> pa.Array:
        said = pa.array(values, pa.int64()).take(codes)
        if self._cut.numbers is None:
            return said
        return pc.if_else(pc.equal(said, -1), pa.array(self._cut.numbers[where]), said)


def _template(value: str | None, probes: dict[int, bytes]) -> _Template:
    if value is not None:
        for hole in (ID, KEY):
            probe = probes[hole].decode()
            if probe and probe in value:
                before, _, after = value.partition(probe)
                return _Template(before, hole, after)
    return _Template(value, None, "")
