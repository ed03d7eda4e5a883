"""Usual frames of UBRE: requests with an id, good answers, publications."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ....limits import Limits
from ....protocols._rules import fault_in_headers
from .bodies import JSON_TYPE, is_json, is_shallow

_HEADER: Final = struct.Struct(">BHI")
_LONGEST_TTL: Final = 1 << 40


class _Members(Struct, gc=False, forbid_unknown_fields=True):
    body: Raw = Raw()
    headers: dict[str, str] | None = None


class _Request(_Members, kw_only=True):
    request: str
    id: str
    ttl: Any = None


class _Success(_Members, kw_only=True):
    success: str


class _Publish(_Members, kw_only=True):
    publish: str


class _Extras(Struct, gc=False, forbid_unknown_fields=True):
    ttl: Any = None


_request: Final = msgspec.json.Decoder(_Request).decode
_success: Final = msgspec.json.Decoder(_Success).decode
_publish: Final = msgspec.json.Decoder(_Publish).decode
_extras: Final = msgspec.json.Decoder(_Extras).decode


def ubre_reader(reads: Collection[str], body: str, limits: Limits) -> Callable[[bytes], list[Any] | None]:
    """A reader of text, of binary frames with bodies of JSON, or of both."""
    text, binary = "text" in reads, "binary" in reads and body == "json"
    longest, depth = limits.subject // 4, limits.depth
    longest_id = limits.id // 4

    def fields(
        kind: str, subject: str | None, id: str | None, ttl: Any, data: bytes | None, trace: str | None = None
    ) -> list[Any] | None:
        if ttl is not None and (type(ttl) is not int or not 0 <= ttl < _LONGEST_TTL):
            return None
        if id is not None and not 0 < len(id) <= longest_id:
            return None
        if subject is not None and (len(subject) > longest or not subject.isprintable() or not (subject or id)):
            return None
        code, name = (0, "OK") if subject is None else (None, None)
        media = None if data is None else JSON_TYPE
        return [kind, subject, None, None, media, None, data, id, code, name, ttl, None, None, "", None, trace]

    def read_text(frame: bytes) -> list[Any] | None:
        # As far as the codec allows: around a body are two levels.
        if not is_shallow(frame, depth + 2):
            return None
        said: Any
        try:
            letter = frame[2]
            said = (_request if letter == 0x72 else _success if letter == 0x73 else _publish)(frame)
            data = bytes(said.body) or None
            if data is not None and not is_json(data, depth):
                return None
        except (ValueError, RecursionError, IndexError):
            return None
        if said.headers is not None and fault_in_headers(said.headers, limits.headers) is not None:
            return None
        trace = said.headers.get("traceparent") if said.headers else None
        if letter == 0x72:
            return fields("request", said.request, said.id, said.ttl, data, trace)
        if letter == 0x73:
            return fields("response", None, said.success, None, data, trace)
        return fields("publish", said.publish, None, None, data, trace)

    def read_binary(frame: bytes) -> list[Any] | None:
        if len(frame) < 7:
            return None
        letter, size, length = _HEADER.unpack_from(frame)
        start = 7 + size
        if start + length != len(frame):
            return None
        data = frame[start:] or None
        try:
            name = str(frame[7:start], "utf-8")
            if data is not None and not is_json(data, depth):
                return None
            if letter == 0x52:
                id, named, rest = name.partition("\0")
                subject, more, text = rest.partition("\0")
                if not named or len(text) > depth:
                    return None
                return fields("request", subject, id, _extras(text).ttl if more else None, data)
        except (ValueError, RecursionError):
            return None
        if "\0" in name:
            return None
        if letter == 0x73:
            return fields("response", None, name, None, data)
        return fields("publish", name, None, None, data) if letter == 0x50 else None

    if not binary:
        return read_text if text else lambda frame: None
    if not text:
        return read_binary
    return lambda frame: read_text(frame) if frame[:1] == b"{" else read_binary(frame)
