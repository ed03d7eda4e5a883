"""Finding the token of a UMessage, a field that has a number and no name, and blanking it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...protocols._protobuf.wire import read_varint
from .redact_bytes import starred

MORE_UP: Final = "|(?-i:R)"
"""Besides names this makes a frame worth a look: the tag of the token, which is the letter R."""

_ATTRIBUTES: Final = 1
_TOKEN: Final = 10


def blank_up(frame: bytes) -> bytes:
    """The frame with its token blanked, also where it is cut off; the same object where there is none."""
    attributes = _fields(frame, 0, len(frame), _ATTRIBUTES)
    return starred(frame, (place for part in attributes for place in _fields(frame, *part, _TOKEN)))


def _fields(frame: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Places at which the bytes of the fields of a number begin and end, as far as the message goes."""
    while at < end:
        try:
            tag, at = read_varint(frame, at)
            kind = tag & 7
            if kind == 0:
                _, at = read_varint(frame, at)
                continue
            if kind not in (1, 2, 5):
                return
            size, at = read_varint(frame, at) if kind == 2 else (8 if kind == 1 else 4, at)
        except (ValueError, IndexError):
            return
        stop = min(at + size, end)
        if kind == 2 and tag >> 3 == wanted:
            yield at, stop
        at = stop
