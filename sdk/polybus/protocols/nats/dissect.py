"""Lists the parts of an operation for people, with little validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ...plugins import FrameField
from .operations import CRLF, announced, words_of

_PARTS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "MSG": (("subject", "sid", "size"), ("subject", "sid", "reply to", "size")),
    "HMSG": (("subject", "sid", "headers' size", "size"), ("subject", "sid", "reply to", "headers' size", "size")),
    "PUB": (("subject", "size"), ("subject", "reply to", "size")),
    "HPUB": (("subject", "headers' size", "size"), ("subject", "reply to", "headers' size", "size")),
    "SUB": (("subject", "sid"), ("subject", "queue", "sid")),
    "UNSUB": (("sid",), ("sid", "messages")),
}
_SHOWN: Final = 200


def dissect(frame: bytes) -> Iterator[FrameField]:
    end = frame.find(CRLF)
    line = frame if end < 0 else frame[:end]
    if not line:
        return
    verb, *_ = line.split(None, 1) or [line]
    name = verb.decode("utf-8", "replace").upper()
    start = line.find(verb)
    yield FrameField(start, len(verb), "operation", name, "cut off: the line has no end" if end < 0 else "")
    rest = start + len(verb)
    forms = _PARTS.get(name)
    if forms is None:
        if line[rest:].strip():
            yield FrameField(rest, len(line) - rest, "text", _text(line[rest:].strip()))
    else:
        yield from _parts(line, rest, forms)
    if end >= 0:
        yield from _payload(frame, end, name)


def _parts(line: bytes, start: int, forms: tuple[tuple[str, ...], ...]) -> Iterator[FrameField]:
    tokens = words_of(line[start:])
    names = next((form for form in forms if len(form) == len(tokens)), None)
    for index, token in enumerate(tokens):
        start = line.find(token, start)
        note = f"{len(tokens)} parts where there are {' or '.join(str(len(form)) for form in forms)}" if names is None else ""
        yield FrameField(start, len(token), "part" if names is None else names[index], _text(token), note)
        start += len(token)


def _payload(frame: bytes, end: int, name: str) -> Iterator[FrameField]:
    start = end + 2
    try:
        size = announced(frame[:end])
    except ValueError:
        size = None
    if size is None:
        if len(frame) > start:
            yield FrameField(start, len(frame) - start, "trailing", _text(frame[start:]), "belongs to nothing")
        return
    there = frame[start : start + size]
    head = _headers_size(frame[:end], len(there)) if name[:1] == "H" else 0
    if head:
        yield from _headers(there[:head], start)
    note = f"cut off: {len(there)} of {size} bytes" if len(there) < size else ""
    if len(there) > head or note:
        yield FrameField(start + head, len(there) - head, "payload", _text(there[head:]), note)
    trailing = frame[start + size + 2 :]
    if trailing:
        yield FrameField(start + size + 2, len(trailing), "trailing", _text(trailing), "belongs to nothing")


def _headers_size(line: bytes, most: int) -> int:
    tokens = words_of(line)
    given = tokens[-2] if len(tokens) > 1 else b""
    return min(int(given), most) if given.isdigit() and len(given) < 11 else 0


def _headers(block: bytes, start: int) -> Iterator[FrameField]:
    for line in block.split(CRLF):
        if line:
            yield FrameField(start, len(line), "header", _text(line))
        start += len(line) + 2


def _text(data: bytes) -> str:
    more = f" ... {len(data)} bytes" if len(data) > _SHOWN else ""
    text = data[:_SHOWN].decode("utf-8", "replace")
    return (text if text.isprintable() else repr(text)) + more
