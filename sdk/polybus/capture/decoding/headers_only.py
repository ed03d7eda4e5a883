"""Frames without their bodies: the purpose, the addressee and the result of a message, but not its content."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from ...errors import Code
from ...protocols._protobuf.wire import MOST_FIELDS, read_varint
from ...protocols.nats.cluster.subjects import node_word
from ...protocols.nats.codec import INBOX
from ...protocols.nats.stored import ACKS
from ...protocols.up.wire import read_attributes, split_message, write_attributes, write_message
from .nats_events import engine_says

_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_elements: Final = msgspec.json.Decoder(list[Raw]).decode
_encode: Final = msgspec.json.Encoder().encode
_value: Final = json.JSONDecoder(strict=False).raw_decode
_BEGINNING: Final = 256
"""Characters of a body that was cut, to see whether it is an error's; a multiple of four, as base64 is read."""
_FIXED: Final = {1: 8, 5: 4}
"""Bytes of fields of protocol buffers, by their type."""
_BODY_OF_UBRE: Final = re.compile("body|headers|data|text|detail")
_BODY_OF_JREP: Final = re.compile("PolybusHeaders|Value|ErrorMessage|AdditionalDetails|Throwable|Polybus(Frame|Detail)")
_BODY_OF_UPROTOCOL: Final = re.compile("data|data_base64")
_STATUS: Final = re.compile(
    rb"\n.(?:type\.googleapis\.com)?/(?:google\.rpc\.Status|uprotocol\.v1\.UStatus)"
    rb"(?:\x12[\x80-\xff]*[\0-\x7f]\x08([\x01-\x10]))?",
    re.S,
)
"""An error in an ``Any``: its code, where it is one of those that there are."""
_COMMSTATUS: Final = b"\x2a\x10\n\ncommstatus\x12"
"""An attribute of a CloudEvent, up to the length of its value."""
_UBRE: Final = struct.Struct(">BHI")
_ROUTING: Final = re.compile(r"ToSubject|ReplyTo|ErrorTo|CommandType|PriorityProcessing|Polybus(?!(Frame|Detail)$).*", re.S)
_FIRST_RESERVED: Final = 0xFFFF0000
_WITH_MORE: Final = (0xFFFF0005, 0xFFFF0006, 0xFFFF0007)
_WITH_SUBJECT: Final = (0xFFFF0001, 0xFFFF0002, 0xFFFF0003, 0xFFFF0004)
_WITHOUT_BODY: Final = (0xFFFF0008, 0xFFFF000A, 0xFFFF000C)
_NUMBERED: Final = 0xFFFF


def headers_only(protocol: str, options: str, frame: bytes, *, cut: bool = False) -> bytes:
    """The frame without bodies; empty where that cannot be done (it is no frame of the protocol, or that of a plugin).

    One that was `cut` off by who recorded it is read as well, where the cut is in a body.
    """
    strip = _STRIP.get(protocol)
    if strip is None:
        return b""
    try:
        return strip(frame, json.loads(options) if options else {}, cut)
    except (ValueError, RecursionError, struct.error, IndexError, TypeError):
        return b""


def _objects(frame: bytes, cut: bool, body: re.Pattern[str]) -> list[dict[str, Raw]]:
    """The members of an object, or of those in an array; of one that is cut those before, and the beginning of its body."""
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
    """Members of the object at a place, and the name of the one whose value is not whole; None where the cut is elsewhere.

    Of that value there is the beginning, but not of one `within` it: each level is read once more.
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
                members[name] = Raw(_encode(_before_the_cut(text, start, within=True)[0]))
            elif text[start : start + 1] == '"' and not within:
                members[name] = Raw(_encode(text[start + 1 : start + 1 + min(_BEGINNING, (len(text) - start - 1) // 4 * 4)]))
            return members, name
        members[name] = Raw(text[start:end].encode())
        at = _after_blanks(text, end)


def _after_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _parted(frame: bytes, cut: bool, bodies: range) -> tuple[bytes, bytes]:
    """The fields of a message of protocol buffers, but for those that are bodies, and the last one of these."""
    kept, body, at = list[bytes](), b"", 0
    while at < len(frame):
        start, (tag, at) = at, read_varint(frame, at)
        size, at = read_varint(frame, at) if tag & 7 in (0, 2) else (_FIXED.get(tag & 7, len(frame)), at)
        after = at if tag & 7 == 0 else at + size
        if tag >> 3 in bodies:
            body = frame[at:after]
        else:
            kept.append(frame[start:after])
        if len(kept) > MOST_FIELDS or (after > len(frame) and not (cut and tag >> 3 in bodies)):
            raise ValueError("cut off, or of too many fields")
        at = after
    return b"".join(kept), body


def _ubre(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    if frame[:1] in (b"{", b" ", b"\t", b"\r", b"\n"):
        (kept,) = _objects(frame, cut, _BODY_OF_UBRE)
        body = kept.pop("body", None)
        for name in ("data", "text", "detail"):
            kept.pop(name, None)
        if body is not None and "request" in kept and "id" not in kept:  # the document's dialect: a subject inside
            subject = msgspec.json.decode(bytes(body)).get("subject", "")
            if cut and not (subject and options.get("dialect") == "spec"):
                raise ValueError("its id, or its subject, may stand behind the cut")
            kept["body"] = Raw(_encode({"subject": subject}))
        return _encode(kept)
    letter, name_length, _ = _UBRE.unpack_from(frame)
    text = frame[7 : 7 + name_length]
    if len(text) != name_length:
        raise ValueError("cut off")
    return _UBRE.pack(letter, name_length, 0) + text


def _csb(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    front = 4 if options.get("side") == "broker-server" else 0
    head = frame[front : front + 8]
    if len(head) < 8:
        raise ValueError("cut off")
    action = int.from_bytes(head[4:], "big")
    end = front + 8
    if head[0] >> 4 == 1 and action >= _FIRST_RESERVED:
        end = _csb_payload(frame, front, action)
    # Binary: no payload at all is one that can be read.
    return frame[:front] + bytes((head[0] & 0xF0,)) + frame[front + 1 : end]


def _csb_payload(frame: bytes, front: int, action: int) -> int:
    """The place of the body in an action of the bus itself."""
    start = front + 8
    if action in _WITH_SUBJECT:
        size = int.from_bytes(frame[start : start + 2], "big")
        return start + 2 + (4 if size == _NUMBERED else size)
    if action in _WITH_MORE:
        size, more = struct.unpack_from(">HH", frame, start)
        return start + 8 + (4 if size == _NUMBERED else size) + int(more)
    return len(frame) if action in _WITHOUT_BODY else start


def _jrep(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    if not frame.strip():
        return frame
    kept = []
    for parts in _objects(frame, cut, _BODY_OF_JREP):
        control = bytes(parts.get("ToSubject", Raw(b""))) in (b'"ServerBus"', b'"ClientBus"')
        kept.append({name: value for name, value in parts.items() if control or _ROUTING.fullmatch(name)})
    return _encode(kept) if kept else b""


def _uprotocol(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    if options.get("format") == "protobuf":
        kept, body = _parted(frame, cut, range(6, 9))
        code = _code_in(body)
        return kept if code is None else kept + _COMMSTATUS + bytes((2, 16, code))
    found = []
    for event in _objects(frame, cut, _BODY_OF_UPROTOCOL):
        event.pop("data", None)
        if (body64 := event.pop("data_base64", None)) is not None:
            code = _code_in(base64.b64decode(msgspec.json.decode(bytes(body64), type=str)[:_BEGINNING]))
            if code is not None:
                event["commstatus"] = Raw(b"%d" % code)
        found.append(event)
    return _encode(found if frame.lstrip()[:1] == b"[" else found[0])


def _code_in(body: bytes) -> int | None:
    """The code of an error, whose body it is; None of other bodies."""
    found = _STATUS.match(body)
    return None if found is None else found[1][0] if found[1] else Code.UNKNOWN


def _nats(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    line, end, rest = frame.partition(b"\r\n")
    verb, *names = line.split()
    kind = verb.upper()
    if kind in (b"PUB", b"MSG"):
        said = _said_to_engine(names[0], rest[: int(names[-1])])
        return b" ".join((verb, *names[:-1], b"%d" % len(said))) + b"\r\n" + said + b"\r\n"
    if kind not in (b"HPUB", b"HMSG"):
        return line + end
    block = _told_by_nats(rest[: int(names[-2])])
    return b" ".join((verb, *names[:-2], b"%d" % len(block), b"%d" % len(block))) + b"\r\n" + block + b"\r\n"


def _said_to_engine(subject: bytes, payload: bytes) -> bytes:
    """The words by which a stored publication is settled, and those of the engine that it is stored; nothing of any other."""
    if subject.startswith(_ACKS):
        return payload.partition(b" ")[0] if payload.startswith(_WORDS) else b""
    is_answer = subject.startswith(_INBOX) or node_word(subject.decode("utf-8", "replace")) == "a"
    return payload if is_answer and engine_says(payload) is not None else b""


def _told_by_nats(block: bytes) -> bytes:
    """Headers without what the text of an error says."""
    lines = block.split(b"\r\n")
    return b"\r\n".join(line for line in lines if line.partition(b":")[0].lower() not in _TEXTS_OF_NATS)


def _up(frame: bytes, options: Mapping[str, Any], cut: bool) -> bytes:
    attributes, _ = split_message(_parted(frame, cut, range(2, 3))[0])
    kept = read_attributes(attributes or b"")
    kept.payload_format = 0
    return write_message(write_attributes(kept), None)


_ACKS, _INBOX = ACKS.encode(), INBOX.encode()
_WORDS: Final = (b"+ACK", b"+NXT", b"-NAK", b"+TERM", b"+WPI")
_TEXTS_OF_NATS: Final = (b"nats-service-error", b"polybus-text")
_STRIP: Final = {"ubre": _ubre, "csb": _csb, "jrep": _jrep, "nats": _nats, "up": _up, "uprotocol": _uprotocol}
