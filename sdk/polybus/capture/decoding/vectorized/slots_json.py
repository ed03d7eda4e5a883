"""Slots of the usual frames of UBRE and J.REP. See `templates` for their use.

A slot in a wrong place does no harm, for the codec judges the pieces: it costs time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....limits import Limits
from ....protocols.jrep.names import ERRORS_SUFFIX, REPLY_SUFFIX
from .json_check import valid_json
from .numpy_bytes import FrameBytes, next_of
from .templates import BODY, DERIVED, ID, MS, Slots, SlottedBodies

_LONGEST_NAME: Final = 0xFFFF
_ANSWER, _FAILURE = REPLY_SUFFIX.encode(), ERRORS_SUFFIX.encode()
_RPC: Final = b':RPC"'
_MARKERS: Final = (b"EncodedType", b'"^', b"\\u")
"""One of these stands in every marked value; the last one because it may stand for any of the others."""
_PROBES: Final = ((b'{"a":[1]}', b'{"subject":"b","body":{"c":2}}'), (b"17", b'"b"'))
"""The second one looks like what the dialect of UBRE's document takes for a subject and a body."""


def _json_bodies(data: FrameBytes, present: Any, begins: Any, ends: Any, depth: int, marked: bool = False) -> SlottedBodies:
    """Bodies that are JSON, of so many levels, of the rows that have one.

    Where they are `marked`, values may be objects of types (J.REP): then those that may hold some are left to the codec, and a
    value that is no object and no list is of another kind.
    """
    texts = data.parts(begins, ends)
    valid = ~present
    valid[present] = valid_json(texts.filter(pa.array(present)), depth, _MARKERS if marked else ())
    kinds = present.astype(np.int64)
    if marked:
        kinds += present & (data.data[begins] != ord("{")) & (data.data[begins] != ord("["))
    return SlottedBodies(valid, kinds, texts, _PROBES, _PROBES)


def _number_at_the_end(data: FrameBytes, name: bytes, rows: Any, closing: int) -> tuple[Any, Any, Any, Any]:
    """A last member ``,"name":12``: its begin, begin and end of its digits, and the number; -1 where there is none."""
    quotes = data.quotes
    last = quotes[np.searchsorted(quotes, data.ends[rows]) - 1]
    begins, starts, ends = last - len(name) - 2, last + 2, data.ends[rows] - closing
    fits = np.flatnonzero((begins > data.begins[rows]) & (ends > starts) & data.has(b',"%b":' % name, begins))
    sizes, numbers = data.whole_numbers(starts[fits])
    exact = (sizes > 0) & (starts[fits] + sizes == ends[fits])
    found = np.full(len(rows), -1, np.int64)
    found[fits[exact]] = numbers[exact]
    return np.where(found < 0, ends, begins), np.where(found < 0, ends, starts), ends, found


def json_rows(data: FrameBytes, opening: bytes, closing: bytes, limits: Limits) -> Any:
    """The frames with some text at both ends, and something between."""
    sizes = data.ends - data.begins
    usual = data.has(opening, data.begins) & data.has(closing, data.ends - len(closing))
    return np.flatnonzero(usual & (sizes > len(opening) + len(closing)) & (sizes <= limits.message))


def _json_slots(
    data: FrameBytes, rows: Any, ids: tuple[Any, Any, Any], body: tuple[Any, Any], ms: Any, depth: int, marked: bool = False
) -> Slots:
    """Slots of objects whose members are an id (its begin and end, and True where there is one), then a body (its begin, and
    True), then milliseconds (as `_number_at_the_end` gives them), with others between them."""
    before_ms, starts, ends, numbers = ms
    begins, present = body
    present = present & (begins < before_ms)
    begins = np.where(present, begins, before_ms)
    first, last, has_id = ids
    has_id = has_id & (first < last) & (last <= begins) & (first >= data.begins[rows])
    first, last = np.where(has_id, first, begins), np.where(has_id, last, begins)
    slots = ((ID, first, last), (BODY, begins, before_ms), (MS, starts, ends))
    return Slots(rows, slots, _json_bodies(data, present, begins, before_ms, depth, marked), numbers)


def ubre_json_slots(data: FrameBytes, limits: Limits) -> Slots | None:
    """``{"request":"..","id":"<id>","body":<body>,"ttl":<ms>}``, ``{"success":"<id>","body":<body>}``, publications, and
    ``fail``, whose body is no slot."""
    rows = json_rows(data, b'{"', b"}", limits)
    if not len(rows):
        return None
    begins, present = data.first_in(rows, data.behind(b'"body":'))
    first, found = data.first_in(rows, data.behind(b'"id":"'))
    for verb in (b'{"success":"', b'{"fail":"'):
        answers = data.has(verb, data.begins[rows])
        first = np.where(answers, data.begins[rows] + len(verb), first)
        found |= answers
    ids = first, next_of(data.quotes, first), found
    depth = limits.depth + 1  # for a body is one level deep
    return _json_slots(data, rows, ids, (begins, present & ~answers), _number_at_the_end(data, b"ttl", rows, 1), depth)


def jrep_slots(data: FrameBytes, limits: Limits) -> Slots | None:
    """``[{"ToSubject":"..","ReplyTo":"..:<id>:RespondTo:RPC","Value":<body>,"PolybusTtl":<ms>}]``, answers and publications."""
    rows = json_rows(data, b'[{"', b"}]", limits)
    if not len(rows):
        return None
    quotes, colons = data.quotes, data.places(ord(":"))
    ends = quotes[np.flatnonzero(data.data[quotes - 1] == ord("C"))]
    last, found = data.first_in(rows, ends[data.has(_RPC, ends - len(_RPC) + 1)])
    last -= np.where(data.has(_FAILURE, last - len(_FAILURE)), len(_FAILURE), len(_ANSWER))
    ids = colons[np.maximum(np.searchsorted(colons, last) - 1, 0)] + 1, last, found
    body = data.first_in(rows, data.behind(b'"Value":'))
    return _json_slots(data, rows, ids, body, _number_at_the_end(data, b"PolybusTtl", rows, 2), limits.depth, marked=True)


def ubre_binary_slots(data: FrameBytes, limits: Limits) -> Slots | None:
    """Type, two sizes, ``<id> NUL <subject>``, ``<id>`` or ``<subject>``, and a body of JSON (of a failure, what it is)."""
    rows = np.flatnonzero(data.ends - data.begins >= 7)
    heads = data.begins[rows]
    names, sizes = data.number(heads + 1, 2), data.number(heads + 3, 4)
    fits = (heads + 7 + names + sizes == data.ends[rows]) & (data.ends[rows] - heads <= limits.message)
    if not fits.any():
        return None
    rows, heads, names, sizes = rows[fits], heads[fits], names[fits], sizes[fits]
    body, letters = heads + 7 + names, data.data[heads]
    nul = np.minimum(next_of(data.places(0), heads + 7), body)
    # A request without a subject is of the document's dialect, where the body says more.
    named = (letters == ord("s")) | (letters == ord("f")) | ((letters == ord("R")) & (nul < body))
    last = np.where(named, nul, heads + 7)
    present = (sizes > 0) & (letters != ord("f"))
    ends = data.ends[rows]
    begins = np.where(present, body, ends)
    slots = ((DERIVED, heads + 1, heads + 7), (ID, heads + 7, last), (DERIVED, body, body), (BODY, begins, ends))
    return Slots(rows, slots, _json_bodies(data, present, begins, ends, limits.depth), assemble=_binary_frame)


def _binary_frame(pieces: Sequence[bytes], slots: dict[int, bytes]) -> bytes:
    letter, _, rest, failure, _ = pieces
    name, body = slots[ID] + rest, slots.get(BODY) or failure
    if len(name) > _LONGEST_NAME:  # with the id that is tried, which is longer than those that are there
        return b""
    return b"%b%b%b%b%b" % (letter, len(name).to_bytes(2), len(body).to_bytes(4), name, body)
