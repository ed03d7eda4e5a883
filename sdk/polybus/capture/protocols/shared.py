"""Code shared by several protocols: event fields, JSON members and protobuf fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from ...errors import BusError, Code
from ...message import Kind, Message
from ...plugins.protobuf import MOST_FIELDS, walk_fields

encode: Final = msgspec.json.Encoder().encode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_elements: Final = msgspec.json.Decoder(list[Raw]).decode
_value: Final = json.JSONDecoder(strict=False).raw_decode
BEGINNING: Final = 256
"""Characters of a truncated body that show whether it is an error. A multiple of four, for base64."""
_KINDS: Final[Mapping[str, str]] = {
    **{kind.value: kind.value for kind in Kind},
    Kind.ERROR.value: "response",
    Kind.OPEN.value: "stream",
    Kind.CREDIT.value: "control",
}
_NAMES: Final[Mapping[int, str]] = {int(code): code.name for code in Code}
_TRACE: Final = "traceparent"


class StoredFacts(NamedTuple):
    """The event columns about stored publications, named as in `schema.EVENTS`."""

    stored: str
    store: str | None = None
    store_seq: int | None = None
    durable: str | None = None
    attempt: int | None = None
    reason: str | None = None


class EventFields(NamedTuple):
    """The event columns that depend on the message, named as in `schema.EVENTS`. Other columns depend on the frame."""

    kind: str
    subject: str | None = None
    id: str | None = None
    source: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: bytes | None = None
    correlation_id: str | None = None
    code: int | None = None
    code_name: str | None = None
    ttl_ms: int | None = None
    priority: str | None = None
    reply_to: str | None = None
    client: str = ""
    stored: StoredFacts | None = None
    traceparent: str | None = None


FIELDS: Final = tuple(EventFields.__annotations__)


def plain_event(message: Message) -> list[Any]:
    kind = _KINDS[message.kind.value]
    data, content = message.raw, message.format.content_type
    code: int | None = None
    if message.code is not None:
        code = int(message.code)
    elif kind == "response":
        code = 0
    if data is None:
        data, content = _made_body(message)
    subject, id, ttl = message.subject, message.id, message.ttl
    text = f"0x{subject:08X}" if type(subject) is int else str(subject) or (None if kind != "request" else "")
    media, name = content if data is not None else None, None if code is None else _NAMES[code]
    key, ttl_ms = None if id is None else str(id), None if ttl is None else round(ttl * 1000)
    trace = message.headers.get(_TRACE) if message.headers else None
    return [kind, text, None, None, media, None, data, key, code, name, ttl_ms, None, message.reply_to, "", None, trace]


def _made_body(message: Message) -> tuple[bytes | None, str]:
    """Return a body for a message without a body: the error message of a failure, or the attributes of a control message."""
    attributes, kept = message.attributes, {}
    if message.code is not None:
        kept = {name: attributes[name] for name in ("text", "reason", "detail") if attributes.get(name) not in (None, "")}
    elif message.kind is Kind.CONTROL:
        kept = {name: value for name, value in attributes.items() if name != "encoding"}
    try:
        value = kept or (message.body if message.has_body else None)
        return (None, "") if value is None else (msgspec.json.encode(value, enc_hook=str), "application/json")
    except (TypeError, ValueError, RecursionError, BusError):
        return None, ""  # JSON has no form for the value


def objects_in(frame: bytes, cut: bool, body: re.Pattern[str]) -> list[dict[str, Raw]]:
    """Return the members of an object, or of the objects in an array, up to the beginning of the body if `cut`."""
    if not cut:
        return [_members(bytes(one)) for one in (_elements(frame) if frame.lstrip()[:1] == b"[" else [Raw(frame)])]
    text = frame.decode("utf-8", "ignore").lstrip()
    found, at = list[dict[str, Raw]](), _after_blanks(text, 1) if text[:1] == "[" else 0
    while text[at : at + 1] == "{":
        try:
            end = _value(text, at)[1]
            found.append(_members(text[at:end].encode()))
            at = _after_blanks(text, _after_blanks(text, end) + 1)
        except (ValueError, RecursionError):
            members, name = _before_the_cut(text, at)
            return [*found, members] if name is not None and body.fullmatch(name) else found
    return found


def _before_the_cut(text: str, at: int, *, within: bool = False) -> tuple[dict[str, Raw], str | None]:
    """Return the members of the object at a position, and the name of the truncated member, or `None` if another part is
    truncated.

    The beginning of the incomplete value is included unless `within` is set, because each level is parsed separately.
    """
    members: dict[str, Raw] = {}
    while True:
        try:
            name, at = _value(text, _after_blanks(text, at + 1))
        except (ValueError, RecursionError):
            return members, None
        start = _after_blanks(text, _after_blanks(text, at) + 1)
        try:
            end = _value(text, start)[1]
        except (ValueError, RecursionError):
            if text[start : start + 1] == "{" and not within:
                members[name] = Raw(encode(_before_the_cut(text, start, within=True)[0]))
            elif text[start : start + 1] == '"' and not within:
                members[name] = Raw(encode(text[start + 1 : start + 1 + min(BEGINNING, (len(text) - start - 1) // 4 * 4)]))
            return members, name
        members[name] = Raw(text[start:end].encode())
        at = _after_blanks(text, end)


def _after_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def parted(frame: bytes, cut: bool, bodies: range) -> tuple[bytes, bytes]:
    """Return a protobuf message without its `bodies` fields, and the last of these fields."""
    kept, body = list[bytes](), b""
    for start, end, number, _, part, fault in walk_fields(frame, 0, len(frame)):
        if number in bodies:
            body = b"" if part is None else frame[part:end]
        else:
            kept.append(frame[start:end])
        if len(kept) > MOST_FIELDS or (fault and not (cut and number in bodies)):
            raise ValueError("cut off, or too many fields")
    return b"".join(kept), body


def starred(frame: bytes, places: Iterable[tuple[int, int]]) -> bytes:
    """Replace ranges of the frame with asterisks. If there are no ranges, the same object is returned."""
    some = [(start, end) for start, end in places if start < end]
    data = bytearray(frame)
    for start, end in some:
        data[start:end] = b"*" * (end - start)
    return bytes(data) if some else frame
