"""Frames without their bodies: the purpose, the addressee and the result of a message, but not its content."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from ...protocols.nats.cluster.subjects import node_word
from ...protocols.nats.codec import INBOX
from ...protocols.nats.stored import ACKS
from ...protocols.up.wire import read_attributes, split_message, write_attributes, write_message
from .nats_events import engine_says

_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_elements: Final = msgspec.json.Decoder(list[Raw]).decode
_encode: Final = msgspec.json.Encoder().encode
_UBRE: Final = struct.Struct(">BHI")
_ROUTING: Final = re.compile(r"ToSubject|ReplyTo|ErrorTo|CommandType|PriorityProcessing|Polybus(?!(Frame|Detail)$).*", re.S)
_FIRST_RESERVED: Final = 0xFFFF0000
_WITH_MORE: Final = (0xFFFF0005, 0xFFFF0006, 0xFFFF0007)
_WITH_SUBJECT: Final = (0xFFFF0001, 0xFFFF0002, 0xFFFF0003, 0xFFFF0004)
_WITHOUT_BODY: Final = (0xFFFF0008, 0xFFFF000A, 0xFFFF000C)
_NUMBERED: Final = 0xFFFF


def headers_only(protocol: str, options: str, frame: bytes) -> bytes:
    """The frame without bodies; empty where that cannot be done (it is no frame of the protocol, or that of a plugin)."""
    strip = _STRIP.get(protocol)
    if strip is None:
        return b""
    try:
        return strip(frame, json.loads(options) if options else {})
    except (ValueError, RecursionError, struct.error, IndexError, TypeError):
        return b""


def _ubre(frame: bytes, options: Mapping[str, Any]) -> bytes:
    if frame[:1] in (b"{", b" ", b"\t", b"\r", b"\n"):
        kept = _members(frame)
        body = kept.pop("body", None)
        for name in ("data", "text", "detail"):
            kept.pop(name, None)
        if body is not None and "request" in kept and "id" not in kept:  # the document's dialect: a subject inside
            subject = msgspec.json.decode(bytes(body)).get("subject", "")
            kept["body"] = Raw(_encode({"subject": subject}))
        return _encode(kept)
    letter, name_length, _ = _UBRE.unpack_from(frame)
    text = frame[7 : 7 + name_length]
    if len(text) != name_length:
        raise ValueError("cut off")
    return _UBRE.pack(letter, name_length, 0) + text


def _csb(frame: bytes, options: Mapping[str, Any]) -> bytes:
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


def _jrep(frame: bytes, options: Mapping[str, Any]) -> bytes:
    text = frame.strip()
    if not text:
        return frame
    elements = [Raw(text)] if text[:1] == b"{" else _elements(text)
    kept = []
    for element in elements:
        parts = _members(bytes(element))
        control = bytes(parts.get("ToSubject", Raw(b""))) in (b'"ServerBus"', b'"ClientBus"')
        kept.append({name: value for name, value in parts.items() if control or _ROUTING.fullmatch(name)})
    return _encode(kept)


def _uprotocol(frame: bytes, options: Mapping[str, Any]) -> bytes:
    if options.get("format") == "protobuf":
        from google.protobuf.message import DecodeError

        from ...protocols.uprotocol.cloudevents.cloudevents_pb2 import CloudEvent

        event = CloudEvent()
        try:
            event.ParseFromString(frame)
        except DecodeError as error:
            raise ValueError("no event") from error
        data = event.WhichOneof("data")
        if data is not None:
            event.ClearField(data)
        return bytes(event.SerializeToString())
    if frame.lstrip()[:1] == b"[":
        return _encode([_without_data(bytes(event)) for event in _elements(frame)])
    return _encode(_without_data(frame))


def _without_data(frame: bytes) -> dict[str, Raw]:
    return {name: value for name, value in _members(frame).items() if name not in ("data", "data_base64")}


def _nats(frame: bytes, options: Mapping[str, Any]) -> bytes:
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


def _up(frame: bytes, options: Mapping[str, Any]) -> bytes:
    attributes, _ = split_message(frame)
    kept = read_attributes(attributes or b"")
    kept.payload_format = 0
    return write_message(write_attributes(kept), None)


_ACKS, _INBOX = ACKS.encode(), INBOX.encode()
_WORDS: Final = (b"+ACK", b"+NXT", b"-NAK", b"+TERM", b"+WPI")
_TEXTS_OF_NATS: Final = (b"nats-service-error", b"polybus-text")
_STRIP: Final = {"ubre": _ubre, "csb": _csb, "jrep": _jrep, "nats": _nats, "up": _up, "uprotocol": _uprotocol}
