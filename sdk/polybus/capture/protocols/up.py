"""Recording and decoding of UMessage frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...message import Message
from ...plugins.protobuf import walk_fields
from ...protocols.up.codec import UpMessage
from ...protocols.up.wire import priority_name, read_attributes, split_message, uuid_text, write_attributes, write_message
from .shared import FIELDS, parted, plain_event, starred

_SUBJECT, _ID, _SOURCE, _TTL, _PRIORITY, _REPLY_TO = map(
    FIELDS.index, ("subject", "id", "source", "ttl_ms", "priority", "reply_to")
)
SUSPECT: Final = "|(?-i:R)"
"""Expression that finds suspicious frames, in addition to names: the tag of the token field, which is the letter R."""
_ATTRIBUTES: Final = 1
_TOKEN: Final = 10


def without_body(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    attributes, _ = split_message(parted(frame, cut, range(2, 3))[0])
    kept = read_attributes(attributes or b"")
    kept.payload_format = 0
    return write_message(write_attributes(kept), None)


def blank(frame: bytes) -> bytes:
    """Blank the token in a frame, which may be truncated. If nothing changes, the same object is returned."""
    attributes = _fields(frame, 0, len(frame), _ATTRIBUTES)
    return starred(frame, (place for part in attributes for place in _fields(frame, *part, _TOKEN)))


def _fields(frame: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    for _, stop, number, _, part, _ in walk_fields(frame, at, end):
        if number == wanted and part is not None:
            yield part, stop


def event(message: Message) -> list[Any]:
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
