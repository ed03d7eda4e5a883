"""Lists the fields of a frame for people (document CSB, "Common Message Structure")."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Final

from ...plugins import FrameField
from . import wire
from .bodies import LAST_USER, RESULTS
from .reader import NO_TTL, NUMBERED

_ENCODINGS: Final[Mapping[int, str]] = {number: word for word, number in wire.ENCODINGS.items()}
_RESERVED: Final[Mapping[int, str]] = dict(
    enumerate(
        "hello/subscribe/unsubscribe/publish/request by name/request with extras/publish with extras/open/cancel/item/credit/"
        "end/deadline".split("/"),
        wire.HELLO,
    )
)
_WITH_SUBJECT: Final = frozenset((wire.SUBSCRIBE, wire.UNSUBSCRIBE, wire.PUBLISH, wire.REQUEST_NAMED))
_WITH_MORE: Final = frozenset((wire.REQUEST_MORE, wire.PUBLISH_MORE, wire.OPEN))
_SHOWN: Final = 200


def dissect(frame: bytes, wrapped: bool, names: Mapping[int, str]) -> Iterator[FrameField]:
    start = 0
    if wrapped:
        if len(frame) < 4:
            yield FrameField(0, len(frame), "client id", frame.hex(" "), "cut off: it has 4 bytes")
            return
        (client,) = wire.CLIENT.unpack_from(frame)
        yield FrameField(0, 4, "client id", str(client), "" if client else "the broker itself")
        start = 4
    if len(frame) - start < wire.HEADER_SIZE:
        note = f"cut off: a header has {wire.HEADER_SIZE} bytes"
        yield FrameField(start, len(frame) - start, "header", frame[start:].hex(" "), note)
        return
    first, result, number, action = wire.HEADER.unpack_from(frame, start)
    kind, encoding = first >> 4, first & 15
    yield FrameField(start, 1, "kind", f"{kind:#x}", wire.KIND_WORDS.get(kind, "not defined") + " (high four bits)")
    yield FrameField(start, 1, "encoding", f"{encoding:#x}", _ENCODINGS.get(encoding, "not defined") + " (low four bits)")
    yield FrameField(start + 1, 1, "result code", f"{result:#04x}", _result(kind, result))
    yield FrameField(start + 2, 2, "message id", str(number))
    yield FrameField(start + 4, 4, "action id", f"{action:#010x}", _RESERVED.get(action) or names.get(action, ""))
    at = start + wire.HEADER_SIZE
    if kind == wire.REQUEST and action in _WITH_SUBJECT | _WITH_MORE:
        at = yield from _subject(frame, at, action in _WITH_MORE)
        if at < 0:
            return
    if len(frame) > at:
        yield FrameField(at, len(frame) - at, "payload", _text(frame[at:], encoding))


def _result(kind: int, result: int) -> str:
    if kind != wire.RESPONSE:
        return "" if not result else "must be 0 here"
    if not result:
        return "Ok"
    if result <= LAST_USER:
        return "of the application"
    known = RESULTS.get(result)
    return "reserved, not defined" if known is None else known[2].partition(":")[0]


def _subject(frame: bytes, at: int, more: bool) -> Generator[FrameField, None, int]:
    """The fields before the body, and its position; -1 if the frame is cut off before."""
    sizes = (("subject length", 2), ("extras length", 2), ("ttl", 4)) if more else (("subject length", 2),)
    read = []
    for name, width in sizes:
        if len(frame) < at + width:
            yield FrameField(at, len(frame) - at, name, frame[at:].hex(" "), f"cut off: it has {width} bytes")
            return -1
        value = int.from_bytes(frame[at : at + width])
        note = ""
        if value == (NUMBERED if width == 2 else NO_TTL) and name != "extras length":
            note = "an action's number in 4 bytes" if width == 2 else "none"
        yield FrameField(at, width, name, str(value), note or ("milliseconds" if name == "ttl" else ""))
        read.append(value)
        at += width
    parts = [("subject", 4 if read[0] == NUMBERED else read[0]), *([("extras", read[1])] if more and read[1] else [])]
    for name, size in parts:
        part = frame[at : at + size]
        numbered = name == "subject" and read[0] == NUMBERED
        shown = f"{int.from_bytes(part):#010x}" if numbered else part[:_SHOWN].decode(errors="replace")
        yield FrameField(at, len(part), name, shown, "" if len(part) == size else f"cut off: it has {size} bytes")
        if len(part) < size:
            return -1
        at += size
    return at


def _text(payload: bytes, encoding: int) -> str:
    shown = payload[:_SHOWN]
    if encoding == wire.BINARY or encoding not in _ENCODINGS:
        return shown.hex(" ")
    return shown.decode(errors="replace")
