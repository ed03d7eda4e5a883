"""Usual frames of CSB: requests and good answers of applications, and messages by name without extras."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from ....body import OCTETS
from ....limits import Limits
from ....protocols._rules import fault_in_subject
from ....protocols.csb import wire
from .bodies import JSON_TYPE, is_json
from .remembered import Remembered

_MORE: Final = struct.Struct(">HHI")
_NUMBERED: Final = 0xFFFF
_NO_TTL: Final = 0xFFFFFFFF
_unpack: Final = wire.HEADER.unpack_from


def csb_reader(wrapped: bool, names: Mapping[int, str], limits: Limits) -> Callable[[bytes], list[Any] | None]:
    """A reader of frames whose payload is bytes or JSON, with the number of a client in front where they are `wrapped`."""
    front = 4 if wrapped else 0

    def named(text: bytes) -> str | None:
        """A subject; None where the codec has something to say."""
        try:
            subject = str(text, "utf-8")
        except UnicodeDecodeError:
            return None
        return subject if subject and fault_in_subject(subject, limits.subject) is None else None

    subjects = Remembered(named)

    def read(frame: bytes) -> list[Any] | None:
        at = front + 8
        if len(frame) < at:
            return None
        first, result, number, action = _unpack(frame, front)
        encoding = first & 15
        if result or (encoding != wire.JSON and encoding != wire.BINARY):
            return None
        kind, subject, ttl, code, name = "request", None, None, None, None
        if first >> 4 == wire.RESPONSE:
            if action >= wire.ITEM:
                return None
            kind, code, name = "response", 0, "OK"
        elif first >> 4 != wire.REQUEST:
            return None
        elif action >= wire.FIRST_RESERVED:
            if (action != wire.REQUEST_MORE and action != wire.PUBLISH_MORE) or len(frame) < at + 8:
                return None
            size, more, ttl = _MORE.unpack_from(frame, at)
            at += 8 + size
            if more or size == _NUMBERED or at > len(frame) or (subject := subjects[frame[at - size : at]]) is None:
                return None
            ttl = None if ttl == _NO_TTL else ttl
            if action == wire.PUBLISH_MORE:
                kind = "publish"
        data, media = frame[at:] or None, None
        if data is not None:
            media = OCTETS.content_type
            if encoding == wire.JSON:
                media = JSON_TYPE
                if not is_json(data, limits.depth):
                    return None
        if subject is None and action < wire.FIRST_RESERVED:
            subject = names.get(action) or f"0x{action:08X}"
        key = None if kind == "publish" else f"{number:04x}{action:08x}"
        client = str(int.from_bytes(frame[:4], "big")) if wrapped else ""
        return [kind, subject, None, None, media, None, data, key, code, name, ttl, None, None, client, None, None]

    return read
