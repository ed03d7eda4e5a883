"""The parts of the Protocol Buffers wire format that polybus encodes by hand: varints and length-delimited fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

LENGTHS: Final = tuple(bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7)) for n in range(16384))
"""Encoded varints below 2^14."""


def varint(number: int) -> bytes:
    """Encode a non-negative integer as a varint."""
    if number < 16384:
        return LENGTHS[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def length(data: bytes) -> bytes:
    """Encode the length of data as a varint."""
    size = len(data)
    return LENGTHS[size] if size < 16384 else varint(size)


def field(tag: bytes, data: bytes) -> bytes:
    """Encode a length-delimited field."""
    return tag + length(data) + data


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint, and return the number and the position after it. Raises `ValueError` if it is longer than ten bytes, and
    `IndexError` if the data ends within it."""
    number = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise ValueError("a varint of more than ten bytes")


_FIXED: Final = {1: 8, 5: 4}
_LARGEST_NUMBER: Final = 2**29 - 1
MOST_FIELDS: Final = 4096
"""Maximum number of fields in a message. Valid messages have only a few, and a field takes up more memory than 100 bytes of a
body."""


class Fixed(bytes):
    """The value of a fixed32 or fixed64 field."""

    __slots__ = ()


def read_fields(data: bytes, most: int = MOST_FIELDS) -> list[tuple[int, int | bytes]]:
    """Decode a message, and return its fields as pairs of a field number and a value: an integer for a varint, `Fixed` for a
    fixed32 or fixed64, otherwise bytes.

    Raises:
        ValueError: If the message is invalid, contains groups, or has more than `most` fields.
    """
    fields: list[tuple[int, int | bytes]] = []
    at, end = 0, len(data)
    try:
        while at < end:
            if len(fields) >= most:
                raise ValueError(f"more than {most} fields")
            tag, at = (data[at], at + 1) if data[at] < 128 else read_varint(data, at)  # nearly all have one byte
            number, kind = tag >> 3, tag & 7
            if not 0 < number <= _LARGEST_NUMBER:
                raise ValueError(f"a field with the number {number}")
            if kind == 0 or kind == 2:
                size, at = (data[at], at + 1) if data[at] < 128 else read_varint(data, at)
                if kind == 0:
                    fields.append((number, size))
                    continue
            else:
                size = _FIXED[kind]
            if at + size > end:
                raise ValueError("a field extends beyond the message")
            value = data[at : at + size]
            fields.append((number, value if kind == 2 else Fixed(value)))
            at += size
    except IndexError as error:
        raise ValueError("the message is cut off") from error
    except KeyError as error:
        raise ValueError("not a protobuf message") from error
    return fields


def walk_fields(frame: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int | bytes, int | None, str]]:
    """Yield the fields of arbitrary bytes, for display.

    Each field is a tuple of start, end, field number (0 if invalid), value, start of a length-delimited value or None, and
    error. If the bytes are invalid or truncated, the last field contains the error.
    """
    while at < end:
        start = at
        try:
            tag, at = read_varint(frame, at)
            kind, part = tag & 7, None
            if kind == 0:
                value, at = read_varint(frame, at)
                if at > end:
                    raise IndexError
                yield start, at, tag >> 3, value, None, ""
                continue
            if kind not in (1, 2, 5):
                raise ValueError
            size, part = read_varint(frame, at) if kind == 2 else (8 if kind == 1 else 4, at)
            if part > end:
                raise IndexError
        except (ValueError, IndexError) as error:
            yield start, end, 0, frame[start:end], None, "cut off" if isinstance(error, IndexError) else "no protocol buffers"
            return
        at = min(part + size, end)
        note = f"cut off: {size} bytes, {at - part} are there" if part + size > end else ""
        yield start, at, tag >> 3, frame[part:at], part if kind == 2 else None, note
