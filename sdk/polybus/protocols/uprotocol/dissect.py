"""A protobuf event field by field, for people: from the bytes alone, also where it does not decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...plugins import FrameField
from .._protobuf.wire import read_varint

# By number, from 1.
_FIELDS: Final = dict(enumerate("id source spec_version type attribute binary_data text_data proto_data".split(), 1))
_VALUES: Final = dict(enumerate("ce_boolean ce_integer ce_string ce_bytes ce_uri ce_uri_ref ce_timestamp".split(), 1))
_SECRET: Final = "token"
_SHOWN: Final = 200


def dissect(frame: bytes) -> Iterator[FrameField]:
    """The fields of an event, in the order in which they stand; the last one says where it is cut off."""
    at, end = 0, len(frame)
    while at < end:
        start = at
        try:
            tag, at = read_varint(frame, at)
            if tag & 7 != 2:
                shown = frame[start:].hex(" ")[:_SHOWN]
                yield FrameField(start, end - start, f"field {tag >> 3}", shown, "not of a CloudEvent")
                return
            size, at = read_varint(frame, at)
        except (ValueError, IndexError):
            yield FrameField(start, end - start, "field", frame[start:].hex(" ")[:_SHOWN], "cut off")
            return
        part, number = frame[at : at + size], tag >> 3
        name = _FIELDS.get(number, f"field {number}")
        note = f"cut off: {size} bytes, {len(part)} are there" if len(part) < size else ""
        if number == 5 and not note:
            name, text, note = _attribute(part)
        else:
            text = _text(part) if number < 5 or number == 7 else part.hex(" ")
        yield FrameField(start, at + len(part) - start, name, text[:_SHOWN], note)
        at += size


def _attribute(entry: bytes) -> tuple[str, str, str]:
    """Name, value and kind of an attribute; the value of a token is not shown."""
    try:
        parts = dict(_parts(entry))
        name = _text(parts.get(1, b""))
        (kind, value), *_ = [*_parts(parts.get(2, b"")), (0, b"")]
    except (ValueError, IndexError):
        return "attribute", entry.hex(" "), "no entry of a map"
    if name == _SECRET:
        return name, "...", "not shown"
    shown = value.hex(" ") if kind in (4, 7) else _text(value)
    return name, shown, _VALUES.get(kind, "of no kind")


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            number, at = read_varint(data, at)
            yield tag >> 3, str(number).encode()
        elif tag & 7 == 2:
            size, at = read_varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
