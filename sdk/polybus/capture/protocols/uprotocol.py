"""Recording and decoding of uProtocol CloudEvents."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from ...errors import Code
from ...message import Message
from .shared import BEGINNING, FIELDS, encode, objects_in, parted, plain_event

_SUBJECT, _ID, _SOURCE, _SCHEMA, _PRIORITY, _REPLY_TO = map(
    FIELDS.index, ("subject", "id", "source", "dataschema", "priority", "reply_to")
)
_BODY: Final = re.compile("data|data_base64")
_STATUS: Final = re.compile(
    rb"\n.(?:type\.googleapis\.com)?/(?:google\.rpc\.Status|uprotocol\.v1\.UStatus)"
    rb"(?:\x12[\x80-\xff]*[\0-\x7f]\x08([\x01-\x10]))?",
    re.S,
)
"""Matches an error in an ``Any``, with its code if the code is valid."""
_COMMSTATUS: Final = b"\x2a\x10\n\ncommstatus\x12"
"""Matches a CloudEvent attribute up to the length of its value."""


def without_body(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    if options.get("format") == "protobuf":
        kept, body = parted(frame, cut, range(6, 9))
        code = _code_in(body)
        return kept if code is None else kept + _COMMSTATUS + bytes((2, 16, code))
    found = []
    for event in objects_in(frame, cut, _BODY):
        event.pop("data", None)
        if (body64 := event.pop("data_base64", None)) is not None:
            code = _code_in(base64.b64decode(msgspec.json.decode(bytes(body64), type=str)[:BEGINNING]))
            if code is not None:
                event["commstatus"] = Raw(b"%d" % code)
        found.append(event)
    return encode(found if frame.lstrip()[:1] == b"[" else found[0])


def _code_in(body: bytes) -> int | None:
    found = _STATUS.match(body)
    return None if found is None else found[1][0] if found[1] else Code.UNKNOWN


def event(message: Message) -> list[Any]:
    row = plain_event(message)
    event = getattr(message, "event", None)
    if event is not None:
        if row[0] == "response":
            row[_SUBJECT] = event.source
        elif row[0] == "request":
            row[_REPLY_TO] = event.source
        row[_ID], row[_SOURCE], row[_SCHEMA], row[_PRIORITY] = event.id, event.source, event.dataschema, event.priority
    return row
