"""The usual frames of CSB, read many at a time over Arrow's buffers.

Only frames beyond doubt are read here, and with the same result as by the codec; the rest is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....body import JSON, OCTETS
from ....limits import Limits
from ....protocols._rules import fault_in_subject
from ....protocols.csb import wire
from ...store.compute import pc
from ..event_columns import Column, ColumnarEvents
from .json_check import valid_json
from .numpy_bytes import FrameBytes, distinct

_TEXT: Final = pa.string()
_KINDS: Final = pa.array(["request", "response", "publish"])
_REQUEST, _RESPONSE, _PUBLISH = range(3)
_FIRST_OF_CHANNEL: Final = 0xFFFF0009
_NUMBERED: Final = 0xFFFF
_NO_TTL: Final = 0xFFFFFFFF


def read_csb(frames: pa.Array, names: Mapping[int, str], wrapped: bool, limits: Limits) -> ColumnarEvents | None:
    """Requests and good answers of applications, and messages by name without extras, whose payload is bytes or JSON.

    In frames that are `wrapped` the number of a client is in front; `names` are those of actions.
    """
    whole = FrameBytes(frames)
    data, starts, stops = whole.data, whole.begins, whole.ends
    front = 4 if wrapped else 0
    rows = np.flatnonzero(stops - starts >= 8 + front)
    head = starts[rows] + front
    kinds, encodings, action = data[head] >> 4, data[head] & 15, whole.number(head + 4, 4)
    answers = (kinds == 2) & (action < _FIRST_OF_CHANNEL)
    named = (kinds == 1) & ((action == wire.REQUEST_MORE) | (action == wire.PUBLISH_MORE)) & (stops[rows] - head >= 16)
    candidates = at = np.flatnonzero(named)
    sizes = whole.number(head[at] + 8, 2)
    extras = whole.number(head[at] + 10, 2)
    named[at] = (sizes > 0) & (sizes < _NUMBERED) & (extras == 0) & (head[at] + 16 + sizes <= stops[rows[at]])
    asks = named | ((kinds == 1) & (action < wire.FIRST_RESERVED))
    usual = (asks | answers) & (data[head + 1] == 0) & ((encodings == wire.BINARY) | (encodings == wire.JSON))
    if not usual.any():
        return None
    at, begins = np.flatnonzero(named), head + 8
    begins[at] = head[at] + 16 + sizes[named[candidates]]
    subjects = whole.parts(head[at] + 16, begins[at]).dictionary_encode()
    texts = [_subject(text, limits) for text in subjects.dictionary.to_pylist()]
    which = np.zeros(len(rows), np.int64)
    which[at] = subjects.indices.to_numpy()
    usual[at] &= np.array([text is not None for text in texts], bool)[which[at]]
    ends = stops[rows]
    json = np.flatnonzero(usual & (encodings == wire.JSON) & (ends > begins))
    usual[json] = valid_json(whole.parts(begins[json], ends[json]), limits.depth)
    rows, head, action, encodings, answers, named, which, begins, ends = (
        column[usual] for column in (rows, head, action, encodings, answers, named, which, begins, ends)
    )
    if not len(rows):
        return None
    has_none = pa.array(begins == ends)
    is_publication = named & (action == wire.PUBLISH_MORE)
    kind = np.where(answers, _RESPONSE, np.where(is_publication, _PUBLISH, _REQUEST))
    numbers, number = distinct(action)
    numbered = [(names.get(one) or f"0x{one:08X}") if one < wire.FIRST_RESERVED else None for one in numbers.tolist()]
    content = pa.array([OCTETS.content_type, JSON.content_type])
    good = pa.array(np.zeros(len(rows), np.int32), mask=~answers)
    given: dict[str, Column] = {
        "kind": _KINDS.take(pa.array(kind)),
        "subject": lambda: pa.array(numbered + texts, _TEXT).take(pa.array(np.where(named, which + len(numbered), number))),
        "datacontenttype": lambda: pc.if_else(
            has_none, None, content.take(pa.array((encodings == wire.JSON).astype(np.int32)))
        ),
        "data": lambda: pc.if_else(has_none, None, whole.parts(begins, ends)),
        "correlation_id": lambda: pc.if_else(pa.array(is_publication), None, _hexadecimal(data, head + 2, 6)),
        "ttl_ms": lambda: pa.array(ttl := np.where(named, whole.number(head + 12, 4), _NO_TTL), mask=ttl == _NO_TTL),
        "code": good,
        "code_name": lambda: pa.array(["OK"]).take(good),
    }
    if wrapped:
        given["client"] = pa.array(whole.number(head - 4, 4)).cast(_TEXT)
    return ColumnarEvents(rows, given)


def _subject(text: bytes, limits: Limits) -> str | None:
    """A subject of CSB; None where the codec has something to say."""
    try:
        subject = str(text, "utf-8")
    except UnicodeDecodeError:
        return None
    return subject if fault_in_subject(subject, limits.subject) is None else None


def _hexadecimal(data: Any, starts: Any, size: int) -> pa.Array:
    """So many bytes from each place, as hexadecimal text."""
    digits = data[starts[:, None] + np.arange(size)].tobytes().hex().encode()
    offsets = np.arange(0, 2 * size * len(starts) + 1, 2 * size, dtype=np.int32)
    return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(digits))
