"""The usual frames of CSB, read many at a time over Arrow's buffers.

Only what is beyond doubt is read here, and with the same result as by the codec; the rest is left to it. Unlike other frames
(see `alike`) these say everything in numbers at fixed places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ..body import JSON, OCTETS
from ..limits import Limits
from ..protocols._rules import fault_in_subject
from .buffers import sound_json
from .compute import pc
from .event_columns import KINDS, PUBLISH, REQUEST, RESPONSE, Column, Part, good_answers

__all__ = ["read_csb"]

_TEXT: Final = pa.string()
_FIRST_RESERVED: Final = 0xFFFF0000
_FIRST_OF_CHANNEL: Final = 0xFFFF0009
_REQUEST_MORE, _PUBLISH_MORE = 0xFFFF0005, 0xFFFF0006
_NUMBERED: Final = 0xFFFF
_NO_TTL: Final = 0xFFFFFFFF
_BINARY, _JSON = 0, 2


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
    """Which of some bodies are JSON, or nothing."""
    chosen = bodies.take(pa.array(rows))
    there = pc.binary_length(chosen).to_numpy(zero_copy_only=False) > 0
    sound = ~there
    sound[there] = sound_json(chosen.filter(pa.array(there)), limits.depth)
    return sound


def read_csb(frames: pa.Array, names: Mapping[int, str], wrapped: bool, limits: Limits) -> Part | None:
    """Requests and good answers of applications, and what goes by name without extras, whose payload is bytes or JSON.

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
    kinds, encodings, action = data[head] >> 4, data[head] & 15, _number(data, head + 4, 4)
    answers = (kinds == 2) & (action < _FIRST_OF_CHANNEL)
    named = (kinds == 1) & ((action == _REQUEST_MORE) | (action == _PUBLISH_MORE)) & (edges[rows + 1] - head >= 16)
    at = np.flatnonzero(named)
    sizes = _number(data, head[at] + 8, 2)
    extras = _number(data, head[at] + 10, 2)
    named[at] = (sizes > 0) & (sizes < _NUMBERED) & (extras == 0) & (head[at] + 16 + sizes <= edges[rows[at] + 1])
    asks = named | ((kinds == 1) & (action < _FIRST_RESERVED))
    usual = (asks | answers) & (data[head + 1] == 0) & ((encodings == _BINARY) | (encodings == _JSON))
    if not usual.any():
        return None
    begins = np.minimum(edges[:-1] + 8 + front, edges[1:])
    ends = begins.copy()
    sizes = sizes[named[at]]
    at = np.flatnonzero(named)
    begins[rows[at]] = head[at] + 16
    ends[rows[at]] = head[at] + 16 + sizes
    _, subjects, bodies = _cut(frames, edges, begins, ends)
    subjects = subjects.take(pa.array(rows)).dictionary_encode()
    texts = [_subject(text, limits) for text in subjects.dictionary.to_pylist()]
    which = subjects.indices.to_numpy()
    usual &= ~named | np.array([text is not None for text in texts], bool)[which]
    json = np.flatnonzero(usual & (encodings == _JSON))
    usual[json] = _sound(bodies, rows[json], limits)
    rows, head, action, encodings, answers, named, which = (
        column[usual] for column in (rows, head, action, encodings, answers, named, which)
    )
    payload = bodies.take(pa.array(rows))
    has_none = pa.array(pc.equal(pc.binary_length(payload), 0).to_numpy(zero_copy_only=False))
    is_publication = named & (action == _PUBLISH_MORE)
    kind = np.where(answers, RESPONSE, np.where(is_publication, PUBLISH, REQUEST))
    numbers, number = np.unique(action, return_inverse=True)
    numbered = [(names.get(one) or f"0x{one:08X}") if one < _FIRST_RESERVED else None for one in numbers.tolist()]
    content = pa.array([OCTETS.content_type, JSON.content_type])
    given: dict[str, Column] = {
        "kind": KINDS.take(pa.array(kind)),
        "subject": lambda: pa.array(numbered + texts, _TEXT).take(pa.array(np.where(named, which + len(numbered), number))),
        "content": lambda: pc.if_else(has_none, None, content.take(pa.array((encodings == _JSON).astype(np.int32)))),
        "data": lambda: pc.if_else(has_none, None, payload),
        "correlation": lambda: pc.if_else(pa.array(is_publication), None, _hexadecimal(data, head + 2, 6)),
        "ttl_ms": lambda: _times(data, head, named),
        **good_answers(kind),
    }
    if wrapped:
        given["client"] = pa.array(_number(data, head - 4, 4)).cast(_TEXT)
    return Part(rows, given)


def _number(data: Any, starts: Any, size: int) -> Any:
    """The number, so many bytes long, at each place."""
    found = np.zeros(len(starts), np.int64)
    for byte in range(size):
        found = found << 8 | data[starts + byte]
    return found


def _subject(text: bytes, limits: Limits) -> str | None:
    """A subject of CSB; None where the codec has something to say."""
    try:
        subject = str(text, "utf-8")
    except UnicodeDecodeError:
        return None
    return subject if fault_in_subject(subject, limits.subject) is None else None


def _times(data: Any, heads: Any, named: Any) -> pa.Array:
    """The milliseconds of what goes by name."""
    found = np.full(len(heads), _NO_TTL, np.int64)
    found[named] = _number(data, heads[named] + 12, 4)
    return pa.array(found, mask=found == _NO_TTL)


def _hexadecimal(data: Any, starts: Any, size: int) -> pa.Array:
    """So many bytes from each place, as hexadecimal text."""
    digits = data[starts[:, None] + np.arange(size)].tobytes().hex().encode()
    offsets = np.arange(0, 2 * size * len(starts) + 1, 2 * size, dtype=np.int32)
    return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(digits))
