"""Slots of the usual events of uProtocol. See `templates`."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....limits import Limits
from ....protocols.uprotocol.bodies import check_any
from ....protocols.uprotocol.cloudevents.envelope import USUAL_ID
from ....protocols.uprotocol.cloudevents.wire import length
from ....protocols.uprotocol.status import STATUS_URLS
from ...store.compute import pc
from .numpy_bytes import FrameBytes
from .slots_json import json_rows
from .templates import BODY, DERIVED, ID, KEY, MS, Slots, SlottedBodies

_base64: Final = partial(binascii.b2a_base64, newline=False)
_IDS: Final = f"^{USUAL_ID}$"
_ID, _REQID, _DATA, _TTL = b'"id":"', b'"reqid":"', b'"data_base64":"', b'"ttl":'
_ID_HEAD: Final = b"\n$"
_REQID_HEAD: Final = b"*/\n\x05reqid\x12&\x1a$"
_FIELDS: Final = np.zeros(256, bool)
_FIELDS[[0x12, 0x1A, 0x22, 0x2A]] = True  # source, version, type, an attribute
_MOST_FIELDS: Final = 12
_PROTO, _BINARY = 0x42, 0x32
_STATUS: Final = tuple(bytes((10, len(url))) + url for url in STATUS_URLS)
"""First bytes of a body with the status of a failed request: it is no slot."""
_PROBES: Final = (
    (b"\n\x01a\x12\x02\xff\xfe", b"\n\x01b\x12\x02\xfe\xff"),
    (b"\xff\xfe", b"\xfe\xff"),
    (b"\x12\x02\xff\xfe\n\x01a", b"\x12\x02\xfe\xff\n\x01b"),
)
"""By the kinds of bodies, see `_body_kinds`."""
_ID_SIZE: Final = 36


def _body_kinds(data: FrameBytes) -> tuple[Any, Any]:
    """True for each body that is no status of a failed request, and its kind: an ``Any`` in the usual form (1), none (2), or
    one in another form (3): large, empty, or with its fields in another order."""
    at, sizes = data.begins, data.ends - data.begins
    url = data.data[at + 1].astype(np.int64)
    value = at + url + 2
    size = data.data[value + 1].astype(np.int64)
    is_any = (data.data[at] == 10) & (url > 0) & (url < 128) & (size > 0) & (size < 128) & (url + size + 4 == sizes)
    is_any &= data.data[value] == 18
    high = np.flatnonzero(data.data > 127)
    is_any &= np.searchsorted(high, at) == np.searchsorted(high, np.minimum(value, data.ends))
    good = ~np.logical_or.reduce([data.has(status, at + 2) for status in STATUS_URLS])
    kinds = np.where(is_any, 1, 2)
    for row in np.flatnonzero(~is_any):
        if check_any(data.data[data.begins[row] : data.ends[row]].tobytes()):
            kinds[row] = 3
    return good, kinds


def _bodies(present: Any, plain: pa.Array, valid: Any = True, *, base64: bool = False) -> SlottedBodies:
    """Bodies of the rows that have one (`present`): their bytes as an event has them, and True for each that is bytes at all;
    in a frame they stand as they are, or as `base64`."""
    good = ~present
    kinds = present.astype(np.int64)
    if len(plain):
        fine, kinds[present] = _body_kinds(FrameBytes(plain))
        good[present] = fine & valid
    texts = plain.take(pa.array(np.cumsum(present) - 1, mask=~present))
    written = [(_base64(one), _base64(other)) for one, other in _PROBES] if base64 else _PROBES
    return SlottedBodies(good, kinds, texts, written, _PROBES)


def _decoded(texts: pa.Array) -> tuple[pa.Array, Any]:
    """The bytes of base64, and True for each text that is some; null where it is none.

    One by one, as the codec does: what finds the quartets of all of them over numpy takes as long.
    """
    plain: list[bytes | None] = []
    for text in texts.to_pylist():
        try:
            plain.append(binascii.a2b_base64(text, strict_mode=True))
        except ValueError:
            plain.append(None)
    made = pa.array(plain, pa.binary())
    return made, pc.is_valid(made).to_numpy(zero_copy_only=False)


def uprotocol_json_slots(data: FrameBytes, limits: Limits) -> Slots | None:
    """``{"specversion":"1.0",...,"id":"<id>","ttl":<ms>,"reqid":"<id>",...,"data_base64":"<body>"}``."""
    rows = json_rows(data, b'{"', b"}", limits)
    if not len(rows):
        return None
    stops = data.ends[rows] - 1
    begins, present = data.first_in(rows, data.behind(_DATA))
    stops = np.where(present, stops - 1, stops)  # the last quote
    present &= begins < stops
    for status in _STATUS:
        present &= ~data.has(_base64(status[: len(status) // 3 * 3]), begins)
    begins = np.where(present, begins, stops)
    first = _id(data, _ID, rows, begins)
    digits, numbers = _number(data, rows, begins)
    key = _id(data, _REQID, rows, begins)
    slots = [(ID, *first), (MS, *digits), (KEY, *key), (BODY, begins, stops)]
    # Slots that are not there are where the one before them ends.
    placed, fits, before = [], first[0] < first[1], data.begins[rows]
    for kind, begin, end in slots:
        there = begin < end
        begin, end = np.where(there, begin, before), np.where(there, end, before)
        fits &= before <= begin
        placed.append((kind, begin, end))
        before = end
    fits &= before <= data.ends[rows]
    kept = [(kind, begin[fits], end[fits]) for kind, begin, end in placed]
    present, (_, *body) = present[fits], kept[-1]
    bodies = _bodies(present, *_decoded(data.parts(*body).filter(pa.array(present))), base64=True)
    return Slots(rows[fits], kept, bodies, numbers[fits], id_pattern=_IDS)


def _id(data: FrameBytes, head: bytes, rows: Any, before: Any) -> tuple[Any, Any]:
    """Begin and end of what may be an id behind the first of a text; 0 where there is none before some places."""
    begins, found = data.first_in(rows, data.behind(head))
    found &= begins + _ID_SIZE <= before
    return np.where(found, begins, 0), np.where(found, begins + _ID_SIZE, 0)


def _number(data: FrameBytes, rows: Any, before: Any) -> tuple[tuple[Any, Any], Any]:
    """The same of the time to live, and the number; -1 where there is none, or where it is to be looked at."""
    begins, found = data.first_in(rows, data.behind(_TTL))
    at = np.flatnonzero(found & (begins < before))
    sizes, numbers = data.whole_numbers(begins[at])
    after = data.data[begins[at] + sizes]
    exact = (sizes > 0) & ((after == ord(",")) | (after == ord("}"))) & (begins[at] + sizes <= before[at])
    at, sizes = at[exact], sizes[exact]
    starts, ends, values = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
    starts[at], ends[at], values[at] = begins[at], begins[at] + sizes, numbers[exact]
    return (starts, ends), values


def uprotocol_protobuf_slots(data: FrameBytes, limits: Limits) -> Slots | None:
    """``CloudEvent``: the id, then source, version, type and attributes with the reqid as the last one, then the data."""
    sizes = data.ends - data.begins
    rows = np.flatnonzero(data.has(_ID_HEAD, data.begins) & (sizes > 38) & (sizes <= limits.message))
    if not len(rows):
        return None
    ends = data.ends[rows]
    at = data.begins[rows] + 38
    walking = np.ones(len(rows), bool)
    for _ in range(_MOST_FIELDS):
        tags, size = data.data[at], data.data[at + 1]
        walking = walking & (at + 2 <= ends) & _FIELDS[tags] & (size < 128) & ~data.has(_REQID_HEAD, at)
        if not walking.any():
            break
        at = np.where(walking, at + 2 + size, at)
    answered = data.has(_REQID_HEAD, at) & (at + len(_REQID_HEAD) + 36 <= ends)
    key = np.where(answered, at + len(_REQID_HEAD), at)
    key_end = np.where(answered, key + 36, key)
    tag, low, high = (data.data[key_end + place].astype(np.int64) for place in range(3))
    present = ((tag == _PROTO) | (tag == _BINARY)) & (key_end + 2 < ends)
    head = np.where(low < 128, 2, 3)
    size = np.where(low < 128, low, low & 127 | high << 7)
    exact = (low < 128) | (high < 128)
    fits = np.where(present, exact & (key_end + head + size == ends) & (size > 0), key_end == ends)
    rows, key, key_end, present, head, ends = (one[fits] for one in (rows, key, key_end, present, head, ends))
    if not len(rows):
        return None
    id = data.begins[rows] + 2
    for status in _STATUS:
        present &= ~data.has(status, key_end + head)
    begin = np.where(present, key_end + head, ends)
    slots = (
        (ID, id, id + 36),
        (KEY, key, key_end),
        (DERIVED, np.where(present, key_end + 1, ends), begin),
        (BODY, begin, ends),
    )
    bodies = _bodies(present, data.parts(begin, ends).filter(pa.array(present)))
    return Slots(rows, slots, bodies, id_pattern=_IDS, assemble=_protobuf)


def _protobuf(pieces: Sequence[bytes], slots: dict[int, bytes]) -> bytes:
    head, block, tag, _, _ = pieces
    body = slots.get(BODY)
    return b"".join((head, slots[ID], block, slots[KEY], tag, length(body) + body if body else b""))
