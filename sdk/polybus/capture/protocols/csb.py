"""Recording and decoding of CSB frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ...message import Message
from ...protocols.csb import wire
from ..record.redact_bytes import blank as blank_all
from ..store.compute import bytes_of
from .shared import FIELDS, plain_event

_SUBJECT, _CORRELATION, _CLIENT = map(FIELDS.index, ("subject", "correlation_id", "client"))
_HIDING: Final = (wire.URLENCODED, wire.BASE64)
"""For these encodings, the whole payload is searched. It follows a header, or a client number of four bytes."""
_WORDS: Final = {"connected": "open", "closed": "close", "close": "close"}


def without_body(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    front = 4 if options.get("side") == "broker-server" else 0
    head = frame[front : front + 8]
    if len(head) < 8:
        raise ValueError("cut off")
    action = int.from_bytes(head[4:], "big")
    end = front + 8
    if head[0] >> 4 == wire.REQUEST and action >= wire.FIRST_RESERVED:
        end = wire.start_of_body(frame, end, action)
    # Binary: an empty payload of that encoding is readable.
    return frame[:front] + bytes((head[0] & 0xF0,)) + frame[front + 1 : end]


def blank(frame: bytes) -> bytes:
    """Blank secrets in a form or base64 payload. If nothing changes, the same object is returned."""
    for start in (8, 12):
        if len(frame) > start and frame[start - 8] >> 4 in (1, 2) and frame[start - 8] & 15 in _HIDING:
            frame = frame[:start] + blank_all(frame[start:])
    return frame


def hiding(frames: pa.Array) -> list[int]:
    """Return the rows that have a form or base64 payload, as their first bytes show."""
    ends, data = bytes_of(frames)
    octets = np.frombuffer(data, np.uint8)
    hiding = np.zeros(len(frames), bool)
    for place in (0, 4):
        there = np.flatnonzero(ends[1:] - ends[:-1] > place)
        hiding[there] |= np.isin(octets[ends[there] + place] & 15, _HIDING)
    return np.flatnonzero(hiding).tolist()


def event(names: Mapping[int, str], message: Message) -> list[Any]:
    """Return the event fields for a message, using the names of actions."""
    row = plain_event(message)
    row[_CORRELATION] = None
    if message.peer is not None:
        row[_CLIENT] = str(message.peer)
    if type(message.id) is int:
        id = message.id if message.id >= 0 else ~message.id
        action = id >> 16
        row[_CORRELATION] = f"{id & 0xFFFF:04x}{action:08x}"
        # Higher actions are the bus's own, with the subject in the payload.
        if row[_SUBJECT] is None and action < wire.FIRST_RESERVED:
            row[_SUBJECT] = names.get(action) or f"0x{action:08X}"
    elif row[0] == "control":
        row[0] = _WORDS.get(str(message.subject), "control")
    return row
