"""Blanking of secrets in the entries of protobuf maps and in ``google.protobuf.Struct``, in place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

from ...plugins.tools import is_secret
from .redact_search import NAMES, Parts, is_name, is_named, names

Field: TypeAlias = tuple[int, int, int, int]
"""Number, wire type, begin and end."""

_NAME: Final = re.compile(f"(?i){NAMES}".encode())
_OF_MAP: Final = 0x0A
_OF_VALUE: Final = 0x1A
"""Tags of the key of an entry, and of a text in a ``google.protobuf.Value``."""
_SHORT: Final = 128
"""The size of a shorter text is one byte."""
_TEXT: Final = re.compile(rb"[\n\x1a](?=[\0-\x7f])")
_ANY: Final = re.compile(rb"google\.protobuf\.(Value|Struct|ListValue)\x12")
_FIELDS_OF_VALUES: Final = frozenset({(1, 0), (2, 0), (2, 1), (3, 2), (4, 0), (4, 2), (5, 2), (6, 2), (7, 2)})
"""Numbers and wire types of the fields of ``google.protobuf.Value`` and of the attributes of CloudEvents."""
_STRUCT: Final = 5
_LIST: Final = 6
_DEPTH: Final = 100
"""Levels of a Value within another."""


def blank_protobuf(data: bytearray, parts: Parts) -> bool:
    """Blank values with secret names in some parts of a frame; True if anything was blanked."""
    work = _Protobuf(data)
    work.parts(parts)
    return work.changed


class _Protobuf:
    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.changed = False

    def parts(self, parts: Parts) -> None:
        """Blank map entries: a key (field 1, text) and a value (field 2)."""
        beside = False
        for tag, begin, end in self.names(parts):
            text = self.text(begin, end)
            if tag == _OF_MAP and is_secret(text):
                self.entry(end)
            beside |= tag == _OF_VALUE and is_name(text)
        for found in _ANY.finditer(self.data) if beside else ():
            size, begin = _varint(self.data, found.end())
            field = (0, 2, begin, min(begin + (size or 0), len(self.data)))
            if found[1] == b"Value":
                self.pairs(_fields(self.data, *field[2:]), _DEPTH)
            else:
                self.pairs([(_STRUCT if found[1] == b"Struct" else _LIST, *field[1:])], _DEPTH)

    def names(self, parts: Parts) -> Iterator[tuple[int, int, int]]:
        """Yield texts with the names of secrets: tag, beginning and end."""
        for start, end in parts:
            found = [(name.start(), name.end() - 1) for name in _NAME.finditer(self.data, start, end)]
            yield from list(self.around(found, start, end)) if found else ()

    def around(self, names: list[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield texts that contain some names, the first in each; names and tags are walked once, side by side."""
        at = 0
        for tag in _TEXT.finditer(self.data, max(0, start - _SHORT), end):
            begin = tag.end() + 1
            stop = begin + self.data[begin - 1]
            while at < len(names) and names[at][0] < begin:
                at += 1
            if at == len(names):
                return
            if names[at][1] <= stop:
                yield tag[0][0], begin, stop

    def text(self, begin: int, end: int) -> str:
        return self.data[begin:end].decode("utf-8", "replace")

    def entry(self, place: int) -> None:
        """Blank the value of a map entry, if one begins here."""
        if self.data[place : place + 1] != b"\x12":
            return
        size, begin = _varint(self.data, place + 1)
        if size is not None and begin + size <= len(self.data):
            self.message(begin, begin + size)

    def message(self, start: int, end: int) -> None:
        """Blank a ``google.protobuf.Value`` or an attribute of a CloudEvent; anything else as text."""
        fields = _fields(self.data, start, end)
        if not fields or any(field[:2] not in _FIELDS_OF_VALUES for field in fields):
            self.fill(start, end)
            return
        for number, kind, begin, stop in fields:
            if kind == 2 and number in (_STRUCT, _LIST):
                self.items(begin, stop)
            elif kind == 2:
                self.fill(begin, stop)
            elif number == 2:  # a number; true, false and null are not secret
                self.data[begin:stop] = bytes(stop - begin) if kind else bytes(byte & 128 for byte in self.data[begin:stop])
                self.changed = True

    def items(self, start: int, end: int) -> None:
        """Blank the entries of a Struct or the values of a ListValue; anything else as text."""
        fields = _fields(self.data, start, end)
        if not fields or any(field[:2] != (1, 2) for field in fields):
            self.fill(start, end)
            return
        for _, _, begin, stop in fields:
            parts = _fields(self.data, begin, stop)
            if [part[:2] for part in parts] == [(1, 2), (2, 2)]:
                self.message(*parts[1][2:])
            else:
                self.message(begin, stop)

    def pairs(self, value: list[Field], depth: int) -> None:
        for number, _, begin, end in value if depth else ():
            fields = _fields(self.data, begin, end) if number in (_STRUCT, _LIST) else []
            if number == _LIST:
                values = [(place, _fields(self.data, *place)) for *_, first, last in fields for place in [(first, last)]]
                if len(values) == 2 and self.is_name(values[0][1]):
                    self.message(*values[1][0])
            else:
                entries = [_fields(self.data, *field[2:]) for field in fields]
                members = [(self.text(*parts[0][2:]), parts[1][2:]) for parts in entries if len(parts) == 2]
                values = [(place, _fields(self.data, *place)) for _, place in members]
                if any(names(name) and self.is_name(inner) for (name, _), (_, inner) in zip(members, values, strict=True)):
                    for name, place in members:
                        if is_named(name):
                            self.message(*place)
            for _, inner in values:
                self.pairs(inner, depth - 1)

    def is_name(self, value: list[Field]) -> bool:
        return len(value) == 1 and value[0][:2] == (3, 2) and is_name(self.text(*value[0][2:]))

    def fill(self, start: int, end: int) -> None:
        if end > start:
            self.data[start:end] = b"*" * (end - start)
            self.changed = True


def _varint(data: bytearray, place: int) -> tuple[int | None, int]:
    value = 0
    for shift, byte in zip(range(0, 35, 7), data[place : place + 5], strict=False):
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
    return None, place


def _fields(data: bytearray, start: int, end: int) -> list[Field]:
    found: list[Field] = []
    place = start
    while place < end:
        tag, place = _varint(data, place)
        if tag is None or tag < 8:
            return []
        kind = tag & 7
        stop = place + {1: 8, 5: 4}.get(kind, 0)
        if kind == 0:
            _, stop = _varint(data, place)
        elif kind == 2:
            size, place = _varint(data, place)
            stop = end + 1 if size is None else place + size
        elif kind not in (1, 5):
            return []
        if stop > end:
            return []
        found.append((tag >> 3, kind, place, stop))
        place = stop
    return found
