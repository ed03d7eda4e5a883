"""Usual events of uProtocol."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from ....body import OCTETS
from ....errors import RemoteProtocolError
from ....message import Kind
from ....protocols._protobuf.any_body import ANY
from ....protocols._protobuf.wire import read_varint
from ....protocols.uprotocol.bodies import OCTET_STREAM, STATUS_URLS
from ....protocols.uprotocol.cloudevents.envelope import known_schema
from ....protocols.uprotocol.events import USUAL_ID, EventMessage, UsualEvent, is_id
from .remembered import Remembered

_event: Final = msgspec.json.Decoder(UsualEvent).decode
_is_id_in_bytes: Final = re.compile(USUAL_ID.encode()).fullmatch
_UUID: Final = 36
_BEFORE_ID: Final = b"\n$"
_BEHIND_ID: Final = len(_BEFORE_ID) + _UUID
_BEFORE_REQID: Final = b"*/\n\x05reqid\x12&\x1a$"
_OF_REQID: Final = len(_BEFORE_REQID) + _UUID
_DATA: Final = b"\x42"
_SIZED: Final = b"|".join(re.escape(bytes((size,))) + b".{%d}" % size for size in range(128))
"""A byte for a length, and so many bytes."""
_attributes: Final = re.compile(rb"(?:[\x12\x1a\x22\x2a](?:%b))*+" % _SIZED, re.DOTALL).fullmatch
"""True of source, version, type and attributes, each a field by itself."""
_SOME_ID: Final = b"01890f5e-7b2c-8000-b18d-3c2ad1f2f4f5"
_SOME_DATA: Final = b"\x42\x06\n\x01a\x12\x01b"
_REQUEST, _RESPONSE, _PUBLISH, _NOTIFY = Kind.REQUEST, Kind.RESPONSE, Kind.PUBLISH, Kind.NOTIFY
_USUAL: Final = frozenset((_REQUEST, _RESPONSE, _PUBLISH, _NOTIFY))


def uprotocol_reader(codec: Any) -> Callable[[bytes], list[Any] | None]:
    """A reader of events in JSON or in protobuf, as the codec reads them."""
    return _json_reader(codec) if codec.writes == "text" else _protobuf_reader(codec)


def _fields(
    kind: Kind, event: UsualEvent, id: str | bytes, reqid: str | bytes | None, data: bytes | None, media: str
) -> list[Any] | None:
    """The fields of an event; None of an answer to nothing, or of a failed request. Arrow takes texts as bytes, too."""
    source, priority, ttl = event.source, event.priority, event.ttl or None
    content = None if data is None else media
    schema = event.dataschema
    if kind is _REQUEST:
        sink = event.sink or ""
        return ["request", sink, id, source, content, schema, data, id, None, None, ttl, priority, source, "", None, None]
    if kind is _RESPONSE:
        if reqid is None or (data and data.startswith(STATUS_URLS, 2)):
            return None
        return ["response", source, id, source, content, schema, data, reqid, 0, "OK", None, priority, None, "", None, None]
    word = "publish" if kind is _PUBLISH else "notify"
    return [word, source, id, source, content, schema, data, None, None, None, ttl, priority, None, "", None, None]


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
    known = Remembered(partial(_known, codec))

    def read(frame: bytes) -> list[Any] | None:
        end, data, asked = len(frame), None, None
        id = frame[2:_BEHIND_ID]
        if not frame.startswith(_BEFORE_ID) or _is_id_in_bytes(id) is None:
            return None
        # What is no field is none of those that are known: the codec reads it.
        at = frame.find(_DATA, _BEHIND_ID)
        while at > 0:
            try:
                size, start = read_varint(frame, at + 1)
            except (ValueError, IndexError):
                break
            if start + size == end:
                end, data = at, frame[start:]
                break
            at = frame.find(_DATA, at + 1)
        if frame.startswith(_BEFORE_REQID, end - _OF_REQID):
            asked = frame[end - _UUID : end]
            end -= _OF_REQID
        found = known[frame[_BEHIND_ID:end]]
        if found is None or (data is not None and not _is_any(data)):
            return None
        if asked is not None and (found[0] is not _RESPONSE or _is_id_in_bytes(asked) is None):
            return None
        return _fields(*found, id, asked, data, ANY.content_type)

    return read


def _known(codec: Any, block: bytes) -> tuple[Kind, UsualEvent] | None:
    """The kind and the attributes of usual events that have these; None where the codec has to look at each."""
    if b"reqid" in block or _attributes(block) is None:
        return None
    for asked in (b"", _BEFORE_REQID + _SOME_ID):  # which an answer needs
        try:
            (message,) = codec.decode(_BEFORE_ID + _SOME_ID + block + asked + _SOME_DATA)
        except (RemoteProtocolError, ValueError):
            continue
        if type(message) is EventMessage and not message.headers and message.kind in _USUAL:
            event = message.event
            if message.format is ANY and event.datacontenttype is None and event.dataschema is None:
                return message.kind, event
    return None
