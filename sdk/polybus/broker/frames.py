"""Frames that the broker itself creates or decodes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..errors import Code
from ..message import Kind, Message
from ..protocols.csb import wire
from ..protocols.csb.bodies import error_payload

BROKER: Final = 0
"""Client number of frames addressed to the broker itself."""
HEAD: Final = struct.Struct(">IB")
"""First five bytes of a frame: the client number, then the kind and encoding."""
_SAYABLE: Final = range(1000, 5000)
_encode: Final = msgspec.json.Encoder().encode


def control(number: int, kind: int, facts: Mapping[str, Any] | None = None) -> bytes:
    """Create a Connected or Closed frame. Polybus servers also receive facts about the client."""
    encoding, payload = (wire.BINARY, b"") if facts is None else (wire.JSON, _encode(facts))
    return wire.CLIENT.pack(number) + wire.HEADER.pack(kind << 4 | encoding, 0, 0, 0) + payload


def introduction(frame: bytes) -> tuple[str, str] | None:
    """Parse the id and instance from a polybus server's introduction. Returns None for other frames."""
    first, _, _, action = wire.HEADER.unpack_from(frame, 4)
    said = object_in(frame[12:]) if first >> 4 == wire.REQUEST and action == wire.HELLO else {}
    id, instance = said.get("server"), said.get("instance")
    if isinstance(id, str) and 0 < len(id) <= 256 and isinstance(instance, str):
        return id, instance[:64]
    return None


def welcome(frame: bytes, taken: str = "") -> bytes:
    """Create the answer to an introduction. If the id is already in use, `taken` is the error text."""
    if taken:
        return wire.CLIENT.pack(BROKER) + refusal(frame[4:], taken, Code.ALREADY_EXISTS)
    _, _, number, _ = wire.HEADER.unpack_from(frame, 4)
    head = wire.HEADER.pack(wire.RESPONSE << 4 | wire.JSON, 0, number, wire.HELLO)
    return wire.CLIENT.pack(BROKER) + head + _encode({"v": 1})


def refusal(frame: bytes, text: str, code: Code = Code.INVALID_ARGUMENT, **reason: str) -> bytes:
    _, _, number, action = wire.HEADER.unpack_from(frame)
    result, payload = error_payload(Message(Kind.ERROR, code=code, attributes={"text": text, **reason}))
    return wire.HEADER.pack(wire.RESPONSE << 4 | wire.JSON, result, number, action) + payload


def closing(frame: bytes) -> tuple[int, str]:
    """Parse the code and reason of a Close frame. Only polybus servers send these."""
    said = object_in(frame[12:]) if len(frame) > 12 else {}
    code, reason = said.get("code"), said.get("reason")
    shown = reason[:100] if isinstance(reason, str) else ""
    return (code, shown) if type(code) is int and code in _SAYABLE else (1000, shown)


def object_in(data: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
