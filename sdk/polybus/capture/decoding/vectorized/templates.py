"""Frames that differ only in an id, a number and a body, read together: the codec reads one of them for all.

No rule of a protocol is repeated here. A frame is cut at its slots, places where it may hold any text of some kind without
meaning something else. Of frames with the same pieces between the slots one is read by the codec, twice, with different things
in the slots: fields that stay the same come from the pieces, and those that change are what was put in. Where both readings do
not agree about that, and wherever there is any doubt, the frames are left to the codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from attrs import field, frozen

from ....limits import Limits
from ...store.compute import pc
from ..event_columns import Column, ColumnarEvents
from ..event_mapping import FIELDS, EventFields
from .numpy_bytes import FrameBytes, distinct

ID, KEY, MS, BODY, DERIVED = range(5)
"""Kinds of slots: an id, the id of what is answered, milliseconds, a body, and what follows from the sizes of the others."""
_PROBES: Final = (
    {ID: b"01890f5e-7b2c-8000-8123-456789abcdef", KEY: b"01890f5e-7b2c-8001-9123-456789abcdef", MS: b"987654321"},
    {ID: b"12890f5e-3c4d-8002-a123-456789abcdef", KEY: b"12890f5e-3c4d-8003-b123-456789abcdef", MS: b"123456789"},
)
"""Contents of slots to try: ids as long as any, and such as every protocol takes."""
_WORTH: Final = 2
"""So many frames have to be of one template: two are read for them."""
_MOST: Final = 1 << 40
"""Numbers up to here can be multiplied by how many frames there are."""
_REMEMBERED: Final = 4096
_SHORT: Final = 2048
"""Longer pieces (bytes) are not remembered: they have more in them that is not the same every time."""
_READ: Final = frozenset(("request", "response", "publish", "notify"))
_CORRELATED: Final = frozenset(("request", "response"))
_TEXTS: Final = tuple(name for name in FIELDS if name not in ("data", "code", "ttl_ms"))
_TemplateFields: TypeAlias = tuple[Any, ...]
"""The fields of an event, the texts among them as `_TextTemplate`."""
_DecodeOne: TypeAlias = Callable[[bytes], EventFields | None]
"""Decodes a frame by the codec; None where it cannot be read, or does not hold exactly one message."""


class _TextTemplate(NamedTuple):
    """A text with at most one slot in it."""

    before: str | None
    slot: int | None
    after: str


@frozen(eq=False)
class SlottedBodies:
    """The bodies of some frames, where there are some."""

    valid: Any
    """True for each that the codec takes, and where there is none."""
    kinds: Any
    """The kind of each: 0 where there is none."""
    texts: pa.Array
    """The bytes that an event has of each; of those of kind 0 anything."""
    probes: Sequence[tuple[bytes, bytes]]
    """Two bodies of each kind as they stand in a frame, from kind 1 on."""
    decoded: Sequence[tuple[bytes, bytes]]
    """The same as an event has them."""


@frozen(eq=False)
class Slots:
    """The slots of some frames; all by the places of `rows`."""

    rows: Any
    """Places of the frames (`numpy.ndarray`)."""
    places: Sequence[tuple[int, Any, Any]]
    """Kind, begin and end, in the order in which they stand in every frame. One that a frame does not have is of no length."""
    bodies: SlottedBodies
    numbers: Any = None
    """The numbers in the slots for milliseconds."""
    id_pattern: str = r"^[0-9A-Za-z-]{1,36}$"
    """Matches the ids that are not looked at any further."""
    assemble: Callable[[Sequence[bytes], dict[int, bytes]], bytes] | None = None
    """Makes a frame of pieces and the contents of the slots, where it is not enough to put them together."""


class TemplateReader:
    """Reads the frames that share a template with others."""

    def __init__(self, find_slots: Callable[[FrameBytes, Limits], Slots | None], decode_one: _DecodeOne) -> None:
        self._find_slots = find_slots
        self._decode_one = decode_one
        self._known: dict[Any, _TemplateFields | None] = {}

    def read(self, frames: pa.Array, limits: Limits) -> ColumnarEvents | None:
        """The events of those among some frames, none of which is null."""
        data = FrameBytes(frames)
        slots = self._find_slots(data, limits)
        if slots is None or not len(slots.rows):
            return None
        return _TemplateBatch(data, slots, self._decode_one, self._known).events()


@frozen(eq=False)
class _TemplateBatch:
    _data: FrameBytes
    _slots: Slots
    _decode_one: _DecodeOne
    _known: dict[Any, _TemplateFields | None]
    _ids: dict[int, pa.Array] = field(init=False, factory=dict)

    def events(self) -> ColumnarEvents | None:
        """The events of the rows that could be read."""
        kept, variants = self._read_slots()
        where = np.flatnonzero(kept)
        if not len(where):
            return None
        pieces, codes, firsts = self._templates(where, variants)
        many = np.bincount(codes) >= _WORTH
        found = [
            self._fields_of(tuple(piece[first].as_py() for piece in pieces), int(row), int(variants[row])) if some else None
            for first, row, some in zip(firsts, where[firsts], many, strict=True)
        ]
        good = np.array([fields is not None for fields in found], bool)
        where, codes = where[good[codes]], (np.cumsum(good) - 1)[codes[good[codes]]]
        if not len(where):
            return None
        return ColumnarEvents(self._slots.rows[where], self._columns(where, pa.array(codes), [one for one in found if one]))

    # -- slots -----------------------------------------------------------------------------------------------------------

    def _read_slots(self) -> tuple[Any, Any]:
        """True for the frames whose slots hold what they may, and which slots are filled, and by which kind of body."""
        kept, variants = self._slots.bodies.valid, self._slots.bodies.kinds
        for kind, begins, ends in self._slots.places:
            if kind in (ID, KEY, MS):
                filled = ends > begins
                variants = variants * 2 + filled
                if kind != MS:
                    ids = self._ids[kind] = self._data.parts(begins, ends)
                    usual = pc.match_substring_regex(ids, self._slots.id_pattern).to_numpy(zero_copy_only=False)
                    kept = kept & (usual | ~filled)
        return kept, variants

    def _templates(self, where: Any, variants: Any) -> tuple[list[pa.Array], Any, Any]:
        """The pieces between the slots, the number of each frame's template, and the first frame of each template."""
        rows, pieces, codes = self._slots.rows[where], [], variants[where]
        begins = self._data.begins[rows]
        places = ((begin[where], end[where]) for _, begin, end in self._slots.places)
        for slot, end in (*places, (self._data.ends[rows], None)):
            piece = self._data.parts(begins, slot)
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

    # -- the codec's reading ---------------------------------------------------------------------------------------------

    def _fields_of(self, pieces: tuple[bytes, ...], row: int, variant: int) -> _TemplateFields | None:
        """The fields of frames of these pieces; read once, as far as they can be remembered."""
        key = pieces, variant
        with suppress(KeyError):  # one step, for other threads may forget it meanwhile
            return self._known[key]
        one, other = (self._probed(pieces, row, number) for number in (0, 1))
        # A backslash would mean the first letter in a slot.
        found = one if one == other and not any(b"\\" in piece for piece in pieces) else None
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        if sum(map(len, pieces)) <= _SHORT:
            self._known[key] = found
        return found

    def _probed(self, pieces: tuple[bytes, ...], row: int, number: int) -> _TemplateFields | None:
        """The fields of a frame of some pieces, with one probe or another in its slots."""
        probes, bodies = _PROBES[number] | {BODY: b""}, self._slots.bodies
        body: bytes | None = None
        if kind := bodies.kinds[row]:
            probes[BODY], body = bodies.probes[kind - 1][number], bodies.decoded[kind - 1][number]
        for slot, begins, ends in self._slots.places:
            if slot in _PROBES[number] and ends[row] == begins[row]:
                probes[slot] = b""
        event = self._decode_one(self._frame(pieces, probes))
        if event is None or event.kind not in _READ or (body is not None and event.data != body):
            return None
        texts = {name: _text_template(getattr(event, name), probes) for name in _TEXTS}
        if event.kind in _CORRELATED and texts["correlation_id"].slot is None:
            return None
        ttl = event.ttl_ms
        if probes[MS] and any(kind == MS for kind, _, _ in self._slots.places):
            if ttl != int(probes[MS]):
                return None
            ttl = -1
        given = texts | {"data": None if body is not None else event.data, "code": event.code, "ttl_ms": ttl}
        return tuple(given[name] for name in FIELDS)

    def _frame(self, pieces: tuple[bytes, ...], probes: dict[int, bytes]) -> bytes:
        if self._slots.assemble is not None:
            return self._slots.assemble(pieces, probes)
        filled = [probes[kind] for kind, _, _ in self._slots.places]
        return b"".join(part for pair in zip(pieces, [*filled, b""], strict=True) for part in pair)

    # -- columns ---------------------------------------------------------------------------------------------------------

    def _columns(self, where: Any, codes: pa.Array, found: Sequence[_TemplateFields]) -> dict[str, Column]:
        values = dict(zip(FIELDS, zip(*found, strict=True), strict=True))
        return {name: partial(self._text_column, where, codes, values[name]) for name in _TEXTS} | {
            "data": partial(self._data_column, where, codes, values["data"]),
            "ttl_ms": partial(self._ttl_column, where, codes, values["ttl_ms"]),
            "code": pa.array(values["code"], pa.int32()).take(codes),
        }

    def _text_column(self, where: Any, codes: pa.Array, templates: Sequence[_TextTemplate]) -> pa.Array:
        before = pa.array([template.before for template in templates], pa.string())
        used = {template.slot for template in templates if template.slot is not None}
        if not used:
            return before.take(codes)
        whole: Any = ""
        for slot in sorted(used):
            has = pa.array([template.slot == slot for template in templates]).take(codes)
            whole = pc.if_else(has, self._ids[slot].take(pa.array(where)).cast(pa.string()), whole)
        if any(template.before or template.after for template in templates):
            after = pa.array([template.after for template in templates], pa.string())
            return pc.binary_join_element_wise(before.take(codes), whole, after.take(codes), "")
        return whole if not before.null_count else pc.if_else(pc.is_valid(before).take(codes), whole, None)

    def _data_column(self, where: Any, codes: pa.Array, values: Sequence[bytes | None]) -> pa.Array:
        given, bodies = self._slots.bodies.texts.take(pa.array(where)), self._slots.bodies.kinds[where] > 0
        return given if bodies.all() else pc.if_else(pa.array(bodies), given, pa.array(values, pa.binary()).take(codes))

    def _ttl_column(self, where: Any, codes: pa.Array, values: Sequence[int | None]) -> pa.Array:
        fixed = pa.array(values, pa.int64()).take(codes)
        if self._slots.numbers is None:
            return fixed
        return pc.if_else(pc.equal(fixed, -1), pa.array(self._slots.numbers[where]), fixed)


def _text_template(value: str | None, probes: dict[int, bytes]) -> _TextTemplate:
    if value is not None:
        for slot in (ID, KEY):
            probe = probes[slot].decode()
            if probe and probe in value:
                before, _, after = value.partition(probe)
                return _TextTemplate(before, slot, after)
    return _TextTemplate(value, None, "")
