"""Usual events of uProtocol."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ....body import OCTETS
from ....errors import RemoteProtocolError
from ....message import Kind
from ....protocols._protobuf.any_body import ANY
from ....protocols._protobuf.wire import read_varint
from ....protocols.uprotocol.cloudevents.envelope import USUAL_ID, is_id, known_schema
from ....protocols.uprotocol.events import EventMessage, UsualEvent
from ....protocols.uprotocol.rules.payloads import OCTET_STREAM
from ....protocols.uprotocol.status import STATUS_URLS

_event: Final = msgspec.json.Decoder(UsualEvent).decode
_ID: Final = USUAL_ID.encode()
_SIZED: Final = b"|".join(re.escape(bytes((size,))) + b".{%d}" % size for size in range(128))
"""A byte for a length, and so many bytes."""
_REQID: Final = re.escape(b"*/\n\x05reqid\x12&\x1a$")
_parts: Final = re.compile(
    # Id; source, version, type and attributes; reqid; the length of the data, and the data.
    rb"\n\$(%b)((?:(?!%b)[\x12\x1a\x22\x2a](?>%b))*+)(?:%b(%b))?(?:\x42([\x80-\xff]{0,9}+[\x00-\x7f])(.*))?"
    % (_ID, _REQID, _SIZED, _REQID, _ID),
    re.DOTALL,
).fullmatch
_REMEMBERED: Final = 8192
_LONGEST: Final = 4096
"""Bytes of attributes that are remembered."""
_REQUEST, _RESPONSE, _PUBLISH, _NOTIFY = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.NOTIFY
_USUAL: Final = frozenset((_REQUEST, _RESPONSE, _PUBLISH, _NOTIFY))


def uprotocol_reader(codec: Any) -> Callable[[bytes], list[Any] | None]:
    """A reader of events in JSON or in protobuf, as the codec reads them."""
    return _json_reader(codec) if codec.writes == "text" else _protobuf_reader(codec)


def _fields(kind: Kind, event: UsualEvent, id: str, reqid: str | None, data: bytes | None, media: str) -> list[Any] | None:
    """The fields of an event; None of an answer to nothing, or of a failed request."""
    source, priority, ttl = event.source, event.priority, event.ttl or None
    content = None if data is None else media
    if kind is _REQUEST:
        sink = event.sink or ""
        return ["request", sink, id, source, content, event.dataschema, data, id, None, None, ttl, priority, source, "", None]
    if kind is _RESPONSE:
        if reqid is None or (data and data.startswith(STATUS_URLS, 2)):
            return None
        return ["response", source, id, source, content, event.dataschema, data, reqid, 0, "OK", None, priority, None, "", None]
    word = "publish" if kind is _PUBLISH else "notify"
    return [word, source, id, source, content, event.dataschema, data, None, None, None, ttl, priority, None, "", None]


def _is_any(data: bytes) -> bool:
    """True for an ``Any`` as all libraries write it: a byte for the length of the type, one or two for that of the value."""
    try:
        head = data[1] + 2
        size, low = len(data) - head, data[head + 1]
        if data[0] != 10 or head >= 130 or data[head] != 18 or not data[2:head].isascii():
            return False
        return size == low + 2 if low < 128 else data[head + 2] < 128 and size == (low & 127 | data[head + 2] << 7) + 3
    except IndexError:
        return False


def _json_reader(codec: Any) -> Callable[[bytes], list[Any] | None]:
    usual = codec.usual

    def read(frame: bytes) -> list[Any] | None:
        try:
            event = _event(frame)
        except (ValueError, RecursionError):
            return None
        kind, id, schema, data = usual(event), event.id, event.dataschema, event.data_base64
        if kind is None or is_id(id) is None or (schema is not None and not known_schema(schema)):
            return None
        media = ANY.content_type
        if data is not None:
            if event.datacontenttype == OCTET_STREAM:
                media = OCTETS.content_type
                if schema is None:
                    return None
            elif not _is_any(data):
                return None
        reqid = event.reqid
        return _fields(kind, event, id, reqid, data, media) if reqid is None or is_id(reqid) is not None else None

    return read


def _protobuf_reader(codec: Any) -> Callable[[bytes], list[Any] | None]:
    """A reader that has the codec read once what is the same in many events: all between the id and the reqid or the data."""
    known: dict[bytes, tuple[Kind, UsualEvent] | None] = {}

    def look(frame: bytes, block: bytes) -> tuple[Kind, UsualEvent] | None:
        try:
            (message,) = codec.decode(frame)
        except (RemoteProtocolError, ValueError):
            return None
        if message.kind is Kind.ERROR:  # as are good answers, up to here
            return None
        found = None
        if type(message) is EventMessage and message.kind in _USUAL and b"reqid" not in block:
            event = message.event
            if message.format is ANY and event.datacontenttype is None and event.dataschema is None:
                found = message.kind, event
        if len(known) >= _REMEMBERED:
            known.clear()
        if len(block) <= _LONGEST:
            known[block] = found
        return found

    def read(frame: bytes) -> list[Any] | None:
        parts = _parts(frame)
        if parts is None:
            return None
        id, block, asked, size, data = parts.groups()
        if data is not None and (not _is_any(data) or len(data) != read_varint(size, 0)[0]):
            return None
        found = known.get(block) or (None if block in known else look(frame, block))
        if found is None or (asked is not None and found[0] is not _RESPONSE):
            return None
        reqid = None if asked is None else asked.decode()
        return _fields(*found, id.decode(), reqid, data, ANY.content_type)

    return read
