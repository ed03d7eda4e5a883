"""Where the usual frames of each protocol have their holes. See `alike`, which says what that is good for.

What is said here of a frame may be wrong without harm, for the codec judges the pieces: a hole in a wrong place costs time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....limits import Limits
from ....protocols.jrep.names import ERRORS_SUFFIX, REPLY_SUFFIX
from ...store.compute import pc
from .json_check import sound_json
from .numpy_bytes import ROOM, Bytes, next_of
from .slots import BODY, DERIVED, ID, MS, Bodies, Cut

__all__ = ["cut_jrep", "cut_ubre_binary", "cut_ubre_json", "first_of", "only", "whole_numbers"]

_LONGEST_NUMBER: Final = 9
_LONGEST_NAME: Final = 0xFFFF
_COLON, _ZERO = b":0"
_ANSWER, _FAILURE = REPLY_SUFFIX.encode(), ERRORS_SUFFIX.encode()
_RPC: Final = b':RPC"'
_MARKERS: Final = (b"EncodedType", b'"^', b"\\u")
"""What a marked value has in it; the last one because it may stand for any of the others."""


def first_of(data: Bytes, found: Any, rows: Any) -> tuple[Any, Any]:
    """The first of some places in each of some rows, and whether there is one."""
    places = next_of(np.append(found, len(data.data) - ROOM), data.begins[rows])
    return places, places < data.ends[rows]


def _json_bodies(data: Bytes, present: Any, depth: int, marked: bool) -> Callable[[Any, Any], Bodies]:
    """Bodies that are JSON.

    Args:
        present: Which rows have one.
        depth: How deep they may be.
        marked: Whether there may be objects of types (J.REP): then those that may hold some are left to the codec, and what
            is no object and no list is of another sort.
    """

    def bodies(begins: Any, ends: Any) -> Bodies:
        texts = data.parts(begins, ends)
        sound = ~present
        sound[present] = sound_json(texts.filter(pa.array(present)), depth, _MARKERS if marked else ())
        sorts = present.astype(np.int64)
        if marked:
            first = data.data[begins]
            sorts += present & (first != ord("{")) & (first != ord("["))
        # The second one looks like what the dialect of UBRE's document takes for a subject and a body.
        probes = ((b'{"a":[1]}', b'{"subject":"b","body":{"c":2}}'), (b"17", b'"b"'))
        return Bodies(sound, sorts, only(texts, sorts), probes, probes)

    return bodies


def only(texts: pa.Array, sorts: Any) -> Callable[[Any], pa.Array]:
    """Some of the texts, null where there is no body."""

    def some(where: Any) -> pa.Array:
        taken = texts.take(pa.array(where))
        there = sorts[where] > 0
        return taken if there.all() else pc.if_else(pa.array(there), taken, None)

    return some


def whole_numbers(data: Bytes, starts: Any) -> tuple[Any, Any]:
    """How many digits stand at some places, and their numbers; none where that begins with 0, or has more digits than usual."""
    sizes = numbers = np.zeros(len(starts), np.int64)
    more = np.ones(len(starts), bool)
    for place in range(_LONGEST_NUMBER + 1):
        digits = data.data[starts + place].astype(np.int64) - _ZERO
        more = more & (digits >= (place == 0)) & (digits <= 9)
        if not more.any():
            break
        sizes, numbers = sizes + more, np.where(more, numbers * 10 + digits, numbers)
    return np.where(more, 0, sizes), numbers


def _number_at_the_end(data: Bytes, name: bytes, rows: Any, closing: int) -> tuple[Any, Any, Any, Any]:
    """Of a last member ``,"name":12``: where it begins, where its digits are, and the number; -1 where there is none."""
    quotes = data.quotes
    last = quotes[np.searchsorted(quotes, data.ends[rows]) - 1]
    begins, starts, ends = last - len(name) - 2, last + 2, data.ends[rows] - closing
    fits = np.flatnonzero((begins > data.begins[rows]) & (ends > starts) & data.has(b',"%b":' % name, begins))
    sizes, numbers = whole_numbers(data, starts[fits])
    exact = (sizes > 0) & (starts[fits] + sizes == ends[fits])
    found = np.full(len(rows), -1, np.int64)
    found[fits[exact]] = numbers[exact]
    return np.where(found < 0, ends, begins), np.where(found < 0, ends, starts), ends, found


def _json_rows(data: Bytes, opening: bytes, closing: bytes, longest: int) -> Any:
    sizes = data.ends - data.begins
    usual = data.has(opening, data.begins) & data.has(closing, data.ends - len(closing))
    return np.flatnonzero(usual & (sizes > len(opening) + len(closing)) & (sizes <= longest))


def _json_cut(
    data: Bytes, rows: Any, body: tuple[Any, Any], ids: tuple[Any, Any], ms: tuple[Any, Any, Any, Any], depth: int, marked: bool
) -> Cut:
    """Of objects whose members are an id, then a body, then milliseconds, with others between them.

    Args:
        body: Where it begins, and whether there is one.
        ids: Begins and ends.
        ms: As `_number_at_the_end` gives it.
    """
    before_ms, starts, ends, numbers = ms
    begins, present = body
    present = present & (begins < before_ms)
    begins = np.where(present, begins, before_ms)
    first, last = ids
    has_id = (first < last) & (last <= begins) & (first >= data.begins[rows])
    first, last = np.where(has_id, first, begins), np.where(has_id, last, begins)
    holes = ((ID, first, last), (BODY, begins, before_ms), (MS, starts, ends))
    return Cut(rows, holes, _json_bodies(data, present, depth, marked), numbers)


def cut_ubre_json(data: Bytes, limits: Limits) -> Cut | None:
    """``{"request":"..","id":"<id>","body":<body>,"ttl":<ms>}``, ``{"success":"<id>","body":<body>}``, publications, and
    ``fail``, whose body is no hole."""
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
    return _json_cut(data, rows, (begins, present), ids, ms, limits.depth + 1, marked=False)


def cut_jrep(data: Bytes, limits: Limits) -> Cut | None:
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
    return _json_cut(data, rows, (begins, present), ids, ms, limits.depth, marked=True)


def cut_ubre_binary(data: Bytes, limits: Limits) -> Cut | None:
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
    holes = ((DERIVED, heads + 1, heads + 7), (ID, heads + 7, last), (DERIVED, body, body), (BODY, begins, data.ends[rows]))
    return Cut(rows, holes, _json_bodies(data, present, limits.depth, marked=False), joined=_binary_frame)


def _binary_frame(pieces: Sequence[bytes], holes: dict[int, bytes]) -> bytes:
    letter, _, rest, failure, _ = pieces
    name, body = holes[ID] + rest, holes.get(BODY) or failure
    if len(name) > _LONGEST_NAME:  # with the id that is tried, which is longer than those that are there
        return b""
    return b"%b%b%b%b%b" % (letter, len(name).to_bytes(2), len(body).to_bytes(4), name, body)
