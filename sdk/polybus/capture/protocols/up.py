"""Frames that are UMessages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...message import Message
from ...protocols.up.attributes import priority_name, uuid_text
from ...protocols.up.messages import UpMessage
from ...protocols.up.wire import read_attributes, split_message, write_attributes, write_message
from .shared import FIELDS, parted, plain_event

_SUBJECT, _ID, _SOURCE, _TTL, _PRIORITY, _REPLY_TO = map(
    FIELDS.index, ("subject", "id", "source", "ttl_ms", "priority", "reply_to")
)


def without_body(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    """See `headers_only`."""
    attributes, _ = split_message(parted(frame, cut, range(2, 3))[0])
    kept = read_attributes(attributes or b"")
    kept.payload_format = 0
    return write_message(write_attributes(kept), None)


def event(message: Message) -> list[Any]:
    """The fields of an event of a message."""
    row = plain_event(message)
    if isinstance(message, UpMessage):
        given = message.given
        source, row[_ID], row[_PRIORITY] = str(given.source), uuid_text(given.id), priority_name(given.priority)
        row[_SOURCE] = source
        if row[0] == "response":
            row[_SUBJECT], row[_TTL] = source, None
        elif row[0] == "request":
            row[_REPLY_TO] = source
    return row
