"""The usual frames of J.REP and UBRE, read row by row with as little as possible made for each.

Only what is beyond doubt is read here, and with the same result as by the codec; the rest is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw, Struct

from ..body import JSON, check_json
from ..errors import EncodeError, RemoteProtocolError
from ..limits import Limits
from ..message import Kind, Message
from ..protocols.jrep.names import CONTROL_SUBJECTS, ERRORS_SUFFIX, LOCAL_PREFIX, REPLY_SUFFIX
from .event_columns import CONTROL, KINDS, PUBLISH, REQUEST, RESPONSE, Column, Part, good_answers

__all__ = ["read_jrep", "read_plain"]

_KINDS: Final = {
    Kind.REQUEST.value: REQUEST,
    Kind.RESPONSE.value: RESPONSE,
    Kind.PUBLISH.value: PUBLISH,
    Kind.ITEM.value: CONTROL,
}
_TYPES: Final = {"data": pa.binary(), "ttl_ms": pa.int64()}
_LONGEST_TTL: Final = 1 << 31
_MARKED: Final = "application/vnd.errai+json"
_decode: Final = msgspec.json.Decoder().decode


def _part(rows: Sequence[int], found: Sequence[tuple[Any, ...]], *names: str) -> Part | None:
    """Columns of what was found; the first of each is a kind."""
    if not found:
        return None
    kinds = np.fromiter(map(itemgetter(0), found), np.int64, len(found))

    def column(place: int, name: str) -> pa.Array:
        return pa.array(list(map(itemgetter(place), found)), _TYPES.get(name, pa.string()))

    columns: dict[str, Column] = {name: partial(column, place, name) for place, name in enumerate(names, 1)}
    return Part(np.array(rows, np.int64), {"kind": KINDS.take(pa.array(kinds)), **columns, **good_answers(kinds)})


# -- J.REP -------------------------------------------------------------------------------------------------------------------


class _Usual(Struct, gc=False, forbid_unknown_fields=True):
    """The parts of a usual message, but for those of tunnels and streams."""

    ToSubject: str
    ReplyTo: str | None = None
    ErrorTo: str | None = None
    Value: Raw = Raw()
    PolybusTtl: int | None = None


_usual: Final = msgspec.json.Decoder(list[_Usual]).decode


def read_jrep(frames: pa.Array, limits: Limits) -> Part | None:
    """Requests, good answers and publications that are alone in their payload.

    Args:
        frames: Without nulls.
        limits: Of the codec.
    """
    depth = 2 * limits.depth + 2
    short, text = min(limits.message, 2 * depth), limits.subject // 4
    rows: list[int] = []
    found: list[tuple[Any, ...]] = []
    for row, frame in enumerate(frames.to_pylist()):
        try:
            if len(frame) > short or not frame.isascii():
                if len(frame) > limits.message:
                    continue
                check_json(frame, depth)
            (parts,) = _usual(frame)
            said = _message(parts, text)
            raw = parts.Value
            data = bytes(raw) or None
            content = None if data is None else _content(data)
        except (ValueError, RecursionError, EncodeError):
            continue
        if said is not None and content is not _DOUBTFUL:
            rows.append(row)
            found.append((*said, data, content))
    return _part(rows, found, "subject", "correlation", "ttl_ms", "reply_to", "data", "content")


_DOUBTFUL: Final = ""


def _content(data: bytes) -> str:
    """
    Raises:
        ValueError, RecursionError: It is no JSON.
    """
    kind = type(_decode(data))
    if kind is not dict and kind is not list:
        return _MARKED
    return _DOUBTFUL if b"EncodedType" in data or b"\\u" in data else JSON.content_type


def _message(parts: _Usual, longest: int) -> tuple[int, str | None, str | None, int | None, str | None] | None:
    """Kind, subject, correlation, milliseconds and reply address; None where the codec has to look at it."""
    subject, reply, ttl = parts.ToSubject, parts.ReplyTo, parts.PolybusTtl
    if not 0 < len(subject) <= longest or not subject.isprintable() or subject in CONTROL_SUBJECTS:
        return None
    if subject[:6] == LOCAL_PREFIX:
        return None
    if reply is not None:
        error = parts.ErrorTo
        if subject[-4:] == ":RPC" or not 0 < len(reply) <= longest or (error is not None and not 0 < len(error) <= longest):
            return None
        if ttl is not None and not 0 <= ttl < _LONGEST_TTL:
            return None
        return REQUEST, subject, reply.removesuffix(REPLY_SUFFIX), ttl, reply
    if ttl is not None or subject.endswith(ERRORS_SUFFIX):
        return None
    if not subject.endswith(REPLY_SUFFIX):
        return PUBLISH, subject, None, None, None
    name, _, id = subject.removesuffix(REPLY_SUFFIX).rpartition(":")
    return RESPONSE, name or None, f"{name}:{id}", None, None


# -- UBRE in JSON, as the codec reads it -------------------------------------------------------------------------------------


def read_plain(read: Callable[[bytes], Message], frames: pa.Array, limits: Limits) -> Part | None:
    """Requests, good answers, publications and items of UBRE.

    Args:
        read: Of the codec.
        frames: Without nulls.
        limits: Of the codec.
    """
    rows: list[int] = []
    found: list[tuple[Any, ...]] = []
    for row, frame in enumerate(frames.to_pylist()):
        try:
            message = read(frame)
        except RemoteProtocolError:
            continue
        kind, raw, id, ttl = _KINDS.get(message.kind._value_), message.raw, message.id, message.ttl
        if kind is None or message.code is not None or (raw is None and message.has_body):
            continue
        key = None if id is None else str(id)
        ms = None if ttl is None else round(ttl * 1000)
        content = None if raw is None else message.format.content_type
        rows.append(row)
        found.append((kind, message.subject or ("" if kind == REQUEST else None), key, ms, raw, content))
    return _part(rows, found, "subject", "correlation", "ttl_ms", "data", "content")
