"""Usual UMessages: all but failed answers.

Of their attributes the ids and the ttl are others in each message. What stands before and behind these, the addresses and the
form of the payload, is the same in many: it is read once, and known by its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import evolve, frozen

from ....errors import RemoteProtocolError
from ....headers import is_traceparent
from ....protocols._protobuf.wire import read_varint
from ....protocols.up.attributes import FORMAT_NAMES, Attributes, MessageType, PayloadFormat, priority_name, uuid_text
from ....protocols.up.bodies import check_payload, format_of
from ....protocols.up.codec import MAX_TTL
from ....protocols.up.rules import first_violation
from ....protocols.up.wire import is_wire_id, read_attributes, read_uuid
from .bodies import is_json
from .remembered import Remembered

_ID: Final = b"\x0a\x12\x09"
_REQID: Final = b"\x4a\x12\x09"
_ATTRIBUTES, _TYPE, _SOURCE, _SINK, _PRIORITY, _TTL, _PAYLOAD = 0x0A, 0x10, 0x1A, 0x22, 0x28, 0x30, 0x12
_SECOND_HALF, _VERSION, _VARIANT = 0x11, 7, 2
"""Of an id."""
_SOME_ID: Final = bytes.fromhex("018bcfe5687b70008010101010101a1a")
_JSON: Final = int(PayloadFormat.JSON)
_WORDS: Final = {int(MessageType.RESPONSE): "response", int(MessageType.NOTIFICATION): "notify"}
_MEDIA: Final = tuple(format_of(number).content_type for number in range(len(FORMAT_NAMES)))


@frozen
class _Head:
    """The attributes up to the priority, as columns of an event."""

    kind: str
    subject: str
    source: str
    priority: str
    reply_to: str | None


def up_reader(codec: Any) -> Callable[[bytes], list[Any] | None]:
    """A reader of messages as the codec reads them."""
    limit, depth = codec.limits.message, codec.limits.depth
    heads, tails, ends = Remembered(_head), Remembered(_tail), Remembered(_second_half)

    def text_of(id: bytes) -> str:
        """An id as text; its second half is the same in all ids of one maker."""
        first = id[8:0:-1].hex()
        return f"{first[:8]}-{first[8:12]}-{first[12:]}{ends[id[9:]]}"

    def is_payload(data: bytes, format: int) -> bool:
        """True of what its format says, as the codec finds it out."""
        if format == _JSON:
            return is_json(data, depth)
        try:
            check_payload(data, format_of(format))
        except RemoteProtocolError:
            return False
        return True

    def read(frame: bytes) -> list[Any] | None:
        total, ttl, data = len(frame), None, None
        try:
            size, at = (frame[1], 2) if frame[1] < 128 else read_varint(frame, 1)
            end, start = at + size, at + 20
            if frame[0] != _ATTRIBUTES or not frame.startswith(_ID, at) or total > limit:
                return None
            id = frame[at + 2 : start]
            if id[9] != _SECOND_HALF or id[2] >> 4 != _VERSION or id[17] >> 6 != _VARIANT:
                return None
            at = start + 2
            if frame[start] != _TYPE or frame[at] != _SOURCE:
                return None
            at += 2 + frame[at + 1]
            if at < end and frame[at] == _SINK:
                at += 2 + frame[at + 1]
            if at < end and frame[at] == _PRIORITY:
                at += 2
            block = frame[start:at]
            head = heads[block]
            if at < end and frame[at] == _TTL:
                ttl, at = (frame[at + 1], at + 2) if frame[at + 1] < 128 else read_varint(frame, at + 1)
                if ttl > MAX_TTL:
                    return None
            reqid = b""
            if frame.startswith(_REQID, at):
                reqid = frame[at + 2 : at + 20]
                at += 20
            if head is None or at > end:
                return None
            block = frame[at:end]
            format, trace = tails[block]
            if end != total:
                if frame[end] != _PAYLOAD or format is None:
                    return None
                size, at = (frame[end + 1], end + 2) if frame[end + 1] < 128 else read_varint(frame, end + 1)
                data = frame[at:]
                if at + size != total or not is_payload(data, format):
                    return None
            elif format != 0:
                return None
        except (ValueError, IndexError):
            return None
        kind, key, media = head.kind, text_of(id), None if data is None else _MEDIA[format]
        code = name = asked = None
        if kind == "response":
            if not is_wire_id(reqid):
                return None
            asked, code, name, ttl = text_of(reqid), 0, "OK", None
        elif reqid:
            return None
        elif kind == "request":
            if not ttl:
                return None
            asked = key
        subject, source, priority, reply_to = head.subject, head.source, head.priority, head.reply_to
        return [
            kind,
            subject,
            key,
            source,
            media,
            None,
            data,
            asked,
            code,
            name,
            ttl or None,
            priority,
            reply_to,
            "",
            None,
            trace,
        ]

    return read


def _second_half(half: bytes) -> str:
    """The second half of an id as text, with the hyphen before it."""
    return uuid_text(read_uuid(_ID[2:] + bytes(8) + half))[18:]


def _head(block: bytes) -> _Head | None:
    """The columns that come from attributes up to the priority; None where they break a rule, or are not that."""
    try:
        given = read_attributes(block)
    except ValueError:
        return None
    alone = Attributes(type=given.type, source=given.source, sink=given.sink, priority=given.priority)
    whole = Attributes(_SOME_ID, given.type, given.source, given.sink, given.priority, ttl=1, reqid=_SOME_ID)
    if given != alone or first_violation(whole) is not None:
        return None
    source, priority = str(given.source), priority_name(given.priority)
    event = _Head("publish", source, source, priority, None)
    if given.type == MessageType.REQUEST:
        return evolve(event, kind="request", subject=str(given.sink), reply_to=source)
    return evolve(event, kind=_WORDS.get(given.type, "publish"))


def _tail(block: bytes) -> tuple[int | None, str | None]:
    """By the attributes behind the ids the form of the payload, None where they say what concerns more; and the trace."""
    try:
        given = read_attributes(block)
    except ValueError:
        return None, None
    alone = Attributes(
        permission_level=given.permission_level,
        token=given.token,
        traceparent=given.traceparent,
        payload_format=given.payload_format,
    )
    is_format = given == alone and 0 <= given.payload_format < len(FORMAT_NAMES)
    trace = given.traceparent
    return given.payload_format if is_format else None, trace if trace and is_traceparent(trace) else None
