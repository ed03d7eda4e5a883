"""Lists the fields of a binary frame for people (document UBRE, "Binary Message Format"), with little validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ...plugins import FrameField
from .binary_format import HEADER, REST_OF_FRAME

_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "S": ("subscribe", "subject"),
    "U": ("unsubscribe", "subject"),
    "P": ("publish", "subject"),
    "R": ("request", "id"),
    "s": ("success", "id"),
    "f": ("fail", "id"),
    "c": ("fail, as the document's table writes it in hex", "id"),
    "C": ("cancel", "id"),
    "O": ("open, the body is JSON", "id"),
    "o": ("open, the body is bytes", "id"),
    "I": ("item, the body is JSON", "id"),
    "i": ("item, the body is bytes", "id"),
    "K": ("credit", "id"),
    "E": ("end", "id"),
}
_SHOWN: Final = 200


def dissect(frame: bytes) -> Iterator[FrameField]:
    if frame[:1] in (b"{", b" ", b"\t", b"\r", b"\n"):
        return
    if len(frame) < HEADER.size:
        yield FrameField(0, len(frame), "header", frame.hex(" "), f"cut off: a header has {HEADER.size} bytes")
        return
    letter, name_length, body_length = HEADER.unpack_from(frame)
    kind, first = _TYPES.get(chr(letter), ("unknown", "name"))
    yield FrameField(0, 1, "type", f"{letter:#04x} {chr(letter)!r}" if 32 < letter < 127 else f"{letter:#04x}", kind)
    there = len(frame) - HEADER.size
    short = f"cut off: {there} bytes follow the header" if name_length > there else ""
    yield FrameField(1, 2, "name length", str(name_length), short)
    rest = max(0, there - name_length)
    yield FrameField(3, 4, "body length", *_length(body_length, rest))
    yield from _name(frame[HEADER.size : HEADER.size + name_length], first)
    start = HEADER.size + name_length
    size = rest if body_length == REST_OF_FRAME else min(body_length, rest)
    if size:
        yield FrameField(start, size, "body", _text(frame[start : start + size]))
    if rest > size:
        yield FrameField(start + size, rest - size, "trailing", frame[start + size :][:32].hex(" "), "belongs to nothing")


def _length(announced: int, there: int) -> tuple[str, str]:
    if announced == REST_OF_FRAME:
        return "-1", f"the rest of the frame: {there} bytes"
    return str(announced), f"cut off: {there} bytes are there" if announced > there else ""


def _name(name: bytes, first: str) -> Iterator[FrameField]:
    """The parts of a name, separated by NUL: the first one, then the subject (of a request or open) and a JSON object."""
    offset = HEADER.size
    for index, part in enumerate(name.split(b"\0", 2)):
        if index and (index == 2 or part[:1] == b"{"):
            yield FrameField(offset, len(part), "extras", _text(part), "further members")
        elif index == 0 or part:
            yield FrameField(offset, len(part), "subject" if index else first, _text(part))
        offset += len(part) + 1


def _text(data: bytes) -> str:
    more = f" ... {len(data)} bytes" if len(data) > _SHOWN else ""
    try:
        text = str(data if not more else data[:_SHOWN].decode("utf-8", "ignore").encode(), "utf-8")
    except UnicodeDecodeError:
        return data[: _SHOWN // 4].hex(" ") + (f" ... {len(data)} bytes" if len(data) > _SHOWN // 4 else "")
    return (text if text.isprintable() else repr(text)) + more
