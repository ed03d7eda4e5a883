"""The usual frames of CSB and of binary UBRE, read many at a time over Arrow's buffers.

Only what is beyond doubt is read here, and with the same result as by the codec; the rest is left to it. Bodies of JSON are
still decoded one by one, because only a decoder knows whether they are any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from attrs import frozen

from ..body import JSON, OCTETS, check_json
from ..errors import EncodeError
from ..limits import Limits
from .compute import pc
from .readings import Row

__all__ = ["Part", "read_csb", "read_ubre"]

_TEXT: Final = pa.string()
_KINDS: Final = pa.array(["request", "response", "publish"])
_REQUEST, _RESPONSE, _PUBLISH = 0, 1, 2
_FIRST_RESERVED: Final = 0xFFFF0000
_FIRST_OF_CHANNEL: Final = 0xFFFF0009
_BINARY, _JSON = 0, 2
_decode: Final = msgspec.json.Decoder().decode


@frozen(eq=False)
class Part:
    """Events of some of the rows, as columns by the names of `readings.Row`."""

    rows: Any
    """Their places (`numpy.ndarray`)."""
    columns: Mapping[str, pa.Array]


def _bytes_of(frames: pa.Array) -> tuple[Any, Any]:
    """Data and offsets of a binary array without nulls, as numpy arrays."""
    _, offsets, data = frames.buffers()
    edges = np.frombuffer(offsets, np.int32)[frames.offset : frames.offset + len(frames) + 1]
    return (np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)), edges.astype(np.int64)


def _cut(frames: pa.Array, edges: Any, *cuts: Any) -> list[pa.Array]:
    """The parts of each frame between some places, without copying the bytes: one array of all parts, one after the other."""
    count, pieces = len(frames), len(cuts) + 1
    offsets = np.empty(count * pieces + 1, np.int32)
    offsets[0:-1:pieces] = edges[:-1]
    for number, place in enumerate(cuts, 1):
        offsets[number:-1:pieces] = place
    offsets[-1] = edges[-1]
    parts = pa.Array.from_buffers(pa.binary(), count * pieces, [None, pa.py_buffer(offsets), frames.buffers()[2]])
    return [parts.take(pa.array(np.arange(number, count * pieces, pieces))) for number in range(pieces)]


def _sound(bodies: pa.Array, rows: Any, limits: Limits) -> Any:
    """Which of some bodies are JSON."""
    sound = np.ones(len(rows), bool)
    short = 2 * limits.depth
    for place, body in enumerate(bodies.take(pa.array(rows)).to_pylist()):
        if body:
            try:
                if len(body) > short or not body.isascii():
                    check_json(body, limits.depth)
                _decode(body)
            except (ValueError, RecursionError, EncodeError):
                sound[place] = False
    return sound


def _part(count: int, rows: Any, **given: Any) -> Part:
    empty = {name: pa.nulls(count, _TEXT) for name in Row._fields}
    empty |= {
        "data": pa.nulls(count, pa.binary()),
        "code": pa.nulls(count, pa.int32()),
        "ttl_ms": pa.nulls(count, pa.int64()),
        "client": pa.array([""]).take(pa.array(np.zeros(count, np.int32))),
    }
    return Part(rows, empty | given)


def _answers(kinds: Any) -> dict[str, pa.Array]:
    """Code and name of answers that are good."""
    other = kinds != _RESPONSE
    good = pa.array(np.zeros(len(kinds), np.int32), mask=other)
    return {"code": good, "code_name": pa.array(["OK"]).take(good)}


def read_csb(frames: pa.Array, names: Mapping[int, str], wrapped: bool, limits: Limits) -> Part | None:
    """Requests and good answers of applications, whose payload is bytes or JSON.

    Args:
        frames: Without nulls.
        names: Of actions.
        wrapped: Whether the number of a client is in front.
        limits: Of the codec.
    """
    data, edges = _bytes_of(frames)
    front = 4 if wrapped else 0
    rows = np.flatnonzero(np.diff(edges) >= 8 + front)
    head = edges[rows] + front
    kinds, encodings = data[head] >> 4, data[head] & 15
    action = np.zeros(len(rows), np.int64)
    for byte in range(4, 8):
        action = action << 8 | data[head + byte]
    asks, answers = (kinds == 1) & (action < _FIRST_RESERVED), (kinds == 2) & (action < _FIRST_OF_CHANNEL)
    usual = (asks | answers) & (data[head + 1] == 0) & ((encodings == _BINARY) | (encodings == _JSON))
    if not usual.any():
        return None
    _, bodies = _cut(frames, edges, np.minimum(edges[:-1] + 8 + front, edges[1:]))
    rows, head, action, encodings, answers = rows[usual], head[usual], action[usual], encodings[usual], answers[usual]
    json = np.flatnonzero(encodings == _JSON)
    sound = np.ones(len(rows), bool)
    sound[json] = _sound(bodies, rows[json], limits)
    rows, head, action, encodings, answers = rows[sound], head[sound], action[sound], encodings[sound], answers[sound]
    payload = bodies.take(pa.array(rows))
    has_none = pa.array(pc.equal(pc.binary_length(payload), 0).to_numpy(zero_copy_only=False))
    payload = pc.if_else(has_none, None, payload)
    kind = np.where(answers, _RESPONSE, _REQUEST)
    known, which = np.unique(action, return_inverse=True)
    subjects = [(names.get(number) or f"0x{number:08X}") if number < _FIRST_RESERVED else None for number in known.tolist()]
    content = pa.array([OCTETS.content_type, JSON.content_type]).take(pa.array((encodings == _JSON).astype(np.int32)))
    given = {
        "kind": _KINDS.take(pa.array(kind)),
        "subject": pa.array(subjects, _TEXT).take(pa.array(which)),
        "content": pc.if_else(has_none, None, content),
        "data": payload,
        "correlation": _hexadecimal(data, head + 2, 6),
        **_answers(kind),
    }
    if wrapped:
        client = np.zeros(len(rows), np.int64)
        for byte in range(-4, 0):
            client = client << 8 | data[head + byte]
        given["client"] = pa.array(client).cast(_TEXT)
    return _part(len(rows), rows, **given)


def _hexadecimal(data: Any, starts: Any, size: int) -> pa.Array:
    """So many bytes from each place, as hexadecimal text."""
    digits = data[starts[:, None] + np.arange(size)].tobytes().hex().encode()
    offsets = np.arange(0, 2 * size * len(starts) + 1, 2 * size, dtype=np.int32)
    return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(digits))


def read_ubre(frames: pa.Array, limits: Limits) -> Part | None:
    """Requests, good answers and publications of binary frames, without extras, whose body is JSON.

    Args:
        frames: Without nulls.
        limits: Of the codec.
    """
    data, edges = _bytes_of(frames)
    sizes = np.diff(edges)
    rows = np.flatnonzero((sizes >= 7) & (sizes <= limits.message))
    head = edges[rows]
    letters = data[head]
    name_size = data[head + 1].astype(np.int64) << 8 | data[head + 2]
    body_size = np.zeros(len(rows), np.int64)
    for byte in range(3, 7):
        body_size = body_size << 8 | data[head + byte]
    usual = np.isin(letters, np.frombuffer(b"RsP", np.uint8)) & (7 + name_size + body_size == sizes[rows])
    if not usual.any():
        return None
    rows, letters, name_size = rows[usual], letters[usual], name_size[usual]
    frames = frames.take(pa.array(rows))
    data, edges = _bytes_of(frames)
    _, name, body = _cut(frames, edges, edges[:-1] + 7, edges[:-1] + 7 + name_size)
    plain = pc.match_substring_regex(name, r"^[\x20-\x7e]*(\x00[\x20-\x7e]*)?$").to_numpy(zero_copy_only=False)
    chosen = np.flatnonzero(plain)
    if not len(chosen):
        return None
    text = name.take(pa.array(chosen)).cast(_TEXT)
    zero = pc.find_substring(text, "\0").to_numpy(zero_copy_only=False)
    length = pc.binary_length(text).to_numpy(zero_copy_only=False)
    is_request = letters[chosen] == ord("R")
    is_publication = letters[chosen] == ord("P")
    id_size = np.where(is_request, zero, np.where(is_publication, 1, length))
    subject_size = np.where(is_request, length - zero - 1, np.where(is_publication, length, 1))
    fits = (
        (is_request == (zero >= 0))
        & (id_size > 0)
        & (id_size <= limits.id // 4)
        & (subject_size <= limits.subject // 4)
        & (is_request | (subject_size > 0))
    )
    fits[fits] = _sound(body, chosen[fits], limits)
    if not fits.any():
        return None
    text, is_request, is_publication = text.filter(pa.array(fits)), is_request[fits], is_publication[fits]
    chosen = chosen[fits]
    body = body.take(pa.array(chosen))
    has_none = pa.array(pc.equal(pc.binary_length(body), 0).to_numpy(zero_copy_only=False))
    _, edges = _bytes_of(text)
    at = np.where(is_request, zero[fits], length[fits])
    end_of_first = edges[:-1] + at
    first, _, rest = _cut(text.cast(pa.binary()), edges, end_of_first, np.minimum(end_of_first + 1, edges[1:]))
    subject = pc.if_else(pa.array(is_request), rest, first).cast(_TEXT)
    first = first.cast(_TEXT)
    kind = np.where(is_request, _REQUEST, np.where(is_publication, _PUBLISH, _RESPONSE))
    given = {
        "kind": _KINDS.take(pa.array(kind)),
        "subject": pc.if_else(pa.array(kind == _RESPONSE), None, subject),
        "content": pc.if_else(has_none, None, JSON.content_type),
        "data": pc.if_else(has_none, None, body),
        "correlation": pc.if_else(pa.array(is_publication), None, first),
        **_answers(kind),
    }
    return _part(len(chosen), rows[chosen], **given)
