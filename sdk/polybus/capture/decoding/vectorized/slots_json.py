"""Slots of the usual frames of UBRE and J.REP. See `templates` for their use.

A slot in a wrong place does no harm, for the codec judges the pieces: it costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....limits import Limits
from ....protocols.jrep.names import ERRORS_SUFFIX, REPLY_SUFFIX
from ...store.compute import pc
from .json_check import valid_json
from .numpy_bytes import ROOM, FrameBytes, next_of
from .slots import BODY, DERIVED, ID, MS, Slots, SlottedBodies

_LONGEST_NUMBER: Final = 9
_LONGEST_NAME: Final = 0xFFFF
_COLON, _ZERO = b":0"
_ANSWER, _FAILURE = REPLY_SUFFIX.encode(), ERRORS_SUFFIX.encode()
_RPC: Final = b':RPC"'
_MARKERS: Final = (b"EncodedType", b'"^', b"\\u")
"""One of these stands in every marked value; the last one because it may stand for any of the others."""


def first_of(data: FrameBytes, found: Any, rows: Any) -> tuple[Any, Any]:
    """The first of some places in each of some rows, and whether there is one."""
    places = next_of(np.append(found, len(data.data) - ROOM), data.begins[rows])
    return places, places < data.ends[rows]


def _json_bodies(data: FrameBytes, present: Any, depth: int, marked: bool) -> Callable[[Any, Any], SlottedBodies]:
    """SlottedBodies that are JSON.

    Args:
        present: True for each row that has one.
        depth: Levels of lists and objects.
        marked: Values may be objects of types (J.REP): then those that may hold some are left to the codec, and a value that
            is no object and no list is of another kind.
    """

    def bodies(begins: Any, ends: Any) -> SlottedBodies:
        texts = data.parts(begins, ends)
        valid = ~present
        valid[present] = valid_json(texts.filter(pa.array(present)), depth, _MARKERS if marked else ())
        kinds = present.astype(np.int64)
        if marked:
            first = data.data[begins]
            kinds += present & (first != ord("{")) & (first != ord("["))
        # The second one looks like what the dialect of UBRE's document takes for a subject and a body.
        probes = ((b'{"a":[1]}', b'{"subject":"b","body":{"c":2}}'), (b"17", b'"b"'))
        return SlottedBodies(valid, kinds, only(texts, kinds), probes, probes)

    return bodies


def only(texts: pa.Array, kinds: Any) -> Callable[[Any], pa.Array]:
    """Some of the texts, null where there is no body."""

    def some(where: Any) -> pa.Array:
        taken = texts.take(pa.array(where))
        there = kinds[where] > 0
        return taken if there.all() else pc.if_else(pa.array(there), taken, None)

    return some


def whole_numbers(data: FrameBytes, starts: Any) -> tuple[Any, Any]:
    """The count of digits at some places, and their numbers; none where that begins with 0, or has more digits than usual."""
    sizes = numbers = np.zeros(len(starts), np.int64)
    more = np.ones(len(starts), bool)
    for place in range(_LONGEST_NUMBER + 1):
        digits = data.data[starts + place].astype(np.int64) - _ZERO
        more = more & (digits >= (place == 0)) & (digits <= 9)
        if not more.any():
            break
        sizes, numbers = sizes + more, np.where(more, numbers * 10 + digits, numbers)
    return np.where(more, 0, sizes), numbers


def _number_at_the_end(data: FrameBytes, name: bytes, rows: Any, closing: int) -> tuple[Any, Any, Any, Any]:
    """A last member ``,"name":12``: its begin, begin and end of its digits, and the number; -1 where there is none."""
    quotes = data.quotes
    last = quotes[np.searchsorted(quotes, data.ends[rows]) - 1]
    begins, starts, ends = last - len(name) - 2, last + 2, data.ends[rows] - closing
    fits = np.flatnonzero((begins > data.begins[rows]) & (ends > starts) & data.has(b',"%b":' % name, begins))
    sizes, numbers = whole_numbers(data, starts[fits])
    exact = (sizes > 0) & (starts[fits] + sizes == ends[fits])
    found = np.full(len(rows), -1, np.int64)
    found[fits[exact]] = numbers[exact]
    return np.where(found < 0, ends, begins), np.where(found < 0, ends, starts), ends, found


def _json_rows(data: FrameBytes, opening: bytes, closing: bytes, longest: int) -> Any:
    sizes = data.ends - data.begins
    usual = data.has(opening, data.begins) & data.has(closing, data.ends - len(closing))
    return np.flatnonzero(usual & (sizes > len(opening) + len(closing)) & (sizes <= longest))


def _json_slots(
    data: FrameBytes,
    rows: Any,
    body: tuple[Any, Any],
    ids: tuple[Any, Any],
    ms: tuple[Any, Any, Any, Any],
    depth: int,
    marked: bool,
) -> Slots:
    """Slots of objects whose members are an id, then a body (its begins, and True where there is one), then milliseconds (as
    `_number_at_the_end` gives them), with others between them."""
    before_ms, starts, ends, numbers = ms
    begins, present = body
    present = present & (begins < before_ms)
    begins = np.where(present, begins, before_ms)
    first, last = ids
    has_id = (first < last) & (last <= begins) & (first >= data.begins[rows])
    first, last = np.where(has_id, first, begins), np.where(has_id, last, begins)
    slots = ((ID, first, last), (BODY, begins, before_ms), (MS, starts, ends))
    return Slots(rows, slots, _json_bodies(data, present, depth, marked), numbers)


def ubre_json_slots(data: FrameBytes, limits: Limits) -> Slots | None:
    """``{"request":"..","id":"<id>","body":<body>,"ttl":<ms>}``, ``{"success":"<id>","body":<body>}``, publications, and
    ``fail``, whose body is no slot."""
    rows = _json_rows(data, b'{"', b"}", limits.message)
    if not len(rows):
        return None
    quotes = data.quotes
    begins, present = first_of(data, data.behind(b'"body":'), rows)
    first, found = first_of(data, data.behind(b'"id":"'), rows)
    for verb in (b'{"success":"', b'{"fail":"'):
        answers = data.has(verb, data.begins[rows])
        first = np.where(answers, data.begins[rows] + len(verb), first)
        found |= answers
    present &= ~answers
    last = next_of(quotes, first)
    ids = np.where(found, first, 0), np.where(found, last, 0)
    # A body is one level deep.
    ms = _number_at_the_end(data, b"ttl", rows, 1)
    return _json_slots(data, rows, (begins, present), ids, ms, limits.depth + 1, marked=False)


def jrep_slots(data: FrameBytes, limits: Limits) -> Slots | None:
    """``[{"ToSubject":"..","ReplyTo":"..:<id>:RespondTo:RPC","Value":<body>,"PolybusTtl":<ms>}]``, answers and publications."""
    rows = _json_rows(data, b'[{"', b"}]", limits.message)
    if not len(rows):
        return None
    quotes, colons = data.quotes, data.places(_COLON)
    begins, present = first_of(data, data.behind(b'"Value":'), rows)
    ends = quotes[np.flatnonzero(data.data[quotes - 1] == ord("C"))]
    last, found = first_of(data, ends[data.has(_RPC, ends - len(_RPC) + 1)], rows)
    last -= np.where(data.has(_FAILURE, last - len(_FAILURE)), len(_FAILURE), len(_ANSWER))
    first = colons[np.maximum(np.searchsorted(colons, last) - 1, 0)] + 1
    ids = np.where(found, first, 0), np.where(found, last, 0)
    ms = _number_at_the_end(data, b"PolybusTtl", rows, 2)
    return _json_slots(data, rows, (begins, present), ids, ms, limits.depth, marked=True)


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
    zeros = data.places(0)
    nul = np.minimum(next_of(zeros, heads + 7), body)
    # A request without a subject is of the document's dialect, where the body says more.
    named = (letters == ord("s")) | (letters == ord("f")) | ((letters == ord("R")) & (nul < body))
    last = np.where(named, nul, heads + 7)
    present = (sizes > 0) & (letters != ord("f"))
    begins = np.where(present, body, data.ends[rows])
    slots = ((DERIVED, heads + 1, heads + 7), (ID, heads + 7, last), (DERIVED, body, body), (BODY, begins, data.ends[rows]))
    return Slots(rows, slots, _json_bodies(data, present, limits.depth, marked=False), assemble=_binary_frame)


def _binary_frame(pieces: Sequence[bytes], slots: dict[int, bytes]) -> bytes:
    letter, _, rest, failure, _ = pieces
    name, body = slots[ID] + rest, slots.get(BODY) or failure
    if len(name) > _LONGEST_NAME:  # with the id that is tried, which is longer than those that are there
        return b""
    return b"%b%b%b%b%b" % (letter, len(name).to_bytes(2), len(body).to_bytes(4), name, body)
