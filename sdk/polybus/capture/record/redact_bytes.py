"""Blanks secrets in the bytes of a frame. The length does not change, so the frame remains readable. A frame that takes too
long to search is truncated.

The search finds values with secret names (`is_secret`) in JSON (bodies, headers, J.REP parts, uProtocol attributes, and JSON
strings that contain JSON), next to their name (`_found_pairs`), in protobuf maps (uProtocol attributes,
``google.protobuf.Struct``), in forms, in URL queries, after ``name=`` in text, and in base64 that contains any of these. It
also finds tokens after ``Bearer``, passwords in URLs, and strings that look like a JSON Web Token (RFC 7519).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

from ...plugins.tools import is_secret, is_secret_of_query
from ...secrets import JWT
from .redact_search import BASE64, MOST, NAME, NAMES, Parts, is_name, is_named, name_of, names, places, whole_base64, within

_KEY: Final = re.compile(rf'((?<!\\)\\*|\\{{0,7}})"({NAME})\1"\s*:\s*'.encode())
"""Matches a whole run of backslashes before a quote, or the end of a run. It must not match every possible end, because a frame
that consisted only of backslashes would take minutes.
"""
_BEARER: Final = re.compile(rb"(?i)bearer\s+([A-Za-z0-9._~+/=-]+)")
_JWT: Final = re.compile(rb"(?:(?<![\w-])|(?<=\\[nrt]))" + JWT.encode())
_EQUALS: Final = re.compile(rb"=|%(?:25){0,3}3[dD]")
_OF_NAMES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.%+-"
_LONGEST: Final = 96
"""Maximum characters of a name before ``=``, including percent escapes."""
_ESCAPED_AND: Final = b"\\u0026"
_QUERY: Final = (b"?", b"&", b"#", b";")
_OF_QUERY: Final = re.compile("[?&#;]")
_ASSIGNED: Final = re.compile(rb"(?!=)[^\s&#\"'<>\\\x00-\x1f]+")
_LOGIN: Final = re.compile(
    rb":\\{0,2}/\\{0,2}/(?:[^\s/?#:@\"\\\[]{0,255}:(?:([^\s/?#\"\\]{1,255})|(?!\d*(?:[/?#\"\\\s]|$))([^\s\"\\]{1,255}))"
    rb"|([^\s/?#:@\"\\\[]{1,255}))@"
)
"""Matches the password of a URL, or a user without a password, which may be a token, but not a port."""
_BY_SHAPE: Final = (((b"earer", b"EARER"), _BEARER), ((b"@",), _LOGIN), ((b"eyJ",), _JWT))
"""Secrets recognised by their shape or the word before them: bytes that occur with each, and an expression with a group."""
_COLON: Final = re.compile(rb"[ \t\r\n]*:")
_SCALAR: Final = re.compile(rb"[-+.0-9eEa-z]+")
_MARKER: Final = re.compile(rb'(\\*)"\^(?:ObjectID\1"\s*:\s*\1"-?\d+|EncodedType\1"\s*:\s*\1"[\w.$;\[]{1,200})\1"')
"""Members that J.REP writes next to the values of objects. They stay readable."""
_NUMBER: Final = re.compile(rb'(\\*)"\^NumVal\1"\s*:\s*\1"(-?\d+)\1"')
_LONG: Final = re.compile(rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{512,}")
_ENDS: Final = 128
"""Bytes at each end of long base64 that may be part of a name or secret. The middle contains neither."""
_FILLER: Final = b"_"
"""Replacement for the middle part. It is not a base64 character, but is allowed in a token."""
_DEPTH: Final = 4
_NAMED: Final = re.compile(rf'[:\[]\s*(\\*)"({NAME})\1"\s*(?:[,}}\]]|$)'.encode())
_FAR: Final = 64 << 10
"""Number of bytes around a suspicious place that are searched for the rest of an object."""


def blank(frame: bytes) -> bytes:
    """Return the frame with secrets blanked, or the same object if nothing changes."""
    return _blank(frame, _DEPTH, _Looks(), MOST)


class _Looks:
    """Counts the bytes that may still be searched in all base64 of a frame, at any depth."""

    def __init__(self) -> None:
        self.left: int = MOST


class _Frame:
    def __init__(self, frame: bytes) -> None:
        self.data = bytearray(frame)
        self.changed = False
        self.left = MOST
        """Number of remaining steps through values."""

    def fill(self, start: int, end: int) -> None:
        if end > start:
            self.data[start:end] = b"*" * (end - start)
            self.changed = True

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def json(self, parts: Parts) -> None:
        """Blank the values of members with secret names, at any level of strings within strings."""
        place = 0
        for start, end in parts:
            place = max(place, start)
            while (found := _KEY.search(self.data, place, end)) is not None:
                place = found.end()
                if is_secret(name_of(bytes(found[2]))):
                    place = self.value(place, bytes(found[1]))

    def pairs(self, parts: Parts) -> None:
        """Blank values next to a secret name."""
        place = 0
        for start, escape in _found_pairs(self.data, parts, self.close):
            if start >= place:
                place = self.value(start, escape)

    def value(self, start: int, escape: bytes) -> int:
        """Blank a JSON value and return its end. `escape` precedes each quote in the value."""
        data, end = self.data, len(self.data)
        quote = escape + b'"'
        depth, place = 0, start
        while place < end:
            self.left -= 1
            if self.left < 0:
                del data[place:]
                self.changed = True
                return place
            if data.startswith(quote, place):
                begin = place + len(quote)
                close = self.close(begin, escape)
                place = close + len(quote)
                if depth and _COLON.match(data, place):  # a member's name
                    marker = _MARKER.match(data, begin - len(quote))
                    number = _NUMBER.match(data, begin - len(quote))
                    if number is not None:
                        self.scalar(*number.span(2))
                    place = next((found.end() for found in (marker, number) if found is not None), place)
                else:
                    self.fill(begin, close)
            elif data[place] in b"}],\x00" and depth == 0:
                return place
            elif (scalar := _SCALAR.match(data, place)) is not None:
                self.scalar(*scalar.span())
                place = scalar.end()
            else:
                closes = data[place] in b"}]"
                depth += (data[place] in b"{[") - closes
                place += 1
                if not closes:
                    continue
            if depth == 0:
                return place
        return end

    def close(self, begin: int, escape: bytes) -> int:
        data, place = self.data, begin
        while (place := data.find(b'"', place)) >= 0:
            slashes = 0
            while data[place - slashes - 1] == 0x5C and place - slashes - 1 >= begin:
                slashes += 1
            if slashes == len(escape) or (not escape and slashes % 2 == 0):
                return place - len(escape)
            place += 1
        return len(data)

    def scalar(self, start: int, end: int) -> None:
        """Replace a number with another of the same kind. True, false and null are not secret."""
        if self.data[start] in b"-0123456789":
            self.data[start:end] = b"0" if end - start == 1 else b"1" + b"0" * (end - start - 1)
            self.changed = True

    # -- the rest --------------------------------------------------------------------------------------------------------

    def assigned(self, parts: Parts) -> None:
        """Blank values after ``name=`` in forms, queries (including nested URLs) and text."""
        place = 0
        for found in self.all(_EQUALS, parts):
            if found.start() < place:
                continue  # inside the previous value
            before = bytes(self.data[max(0, found.start() - _LONGEST) : found.start()])
            name = before[len(before.rstrip(_OF_NAMES)) :]
            sign = before[-len(name) - 1 : -len(name)]
            if name.startswith(_ESCAPED_AND[1:]) and sign == _ESCAPED_AND[:1]:
                name, sign = name[len(_ESCAPED_AND) - 1 :], b"&"
            *query, text = _OF_QUERY.split(_unquoted(name))
            if (is_secret_of_query if query or sign in _QUERY else is_secret)(text):
                value = _ASSIGNED.match(self.data, found.end())
                if value is not None:
                    self.fill(*value.span())
                    place = value.end()

    def base64(self, parts: Parts, depth: int, looks: _Looks) -> None:
        place = 0
        for start, end in parts:
            place = max(place, start)
            while (found := BASE64.search(self.data, place, end)) is not None:
                text = whole_base64(self.data, found.start())
                place = found.start() + len(text)
                inner = binascii.a2b_base64(text[: len(text) // 4 * 4])
                clean = _blank(inner, depth, looks, looks.left)
                if clean is not inner:
                    written = binascii.b2a_base64(clean.ljust(len(inner), b"*"), newline=False)
                    self.data[found.start() : found.start() + len(written)] = written
                    self.changed = True

    def show(self, runs: Parts, frame: bytes) -> None:
        """Restore the omitted parts of a frame unless they belong to a secret."""
        for begin, stop in runs:
            start, end = begin + _ENDS, min(stop - _ENDS, len(self.data))
            if self.data.count(_FILLER, start, end) == end - start:
                self.data[start:end] = frame[start:end]
            else:
                self.fill(start, end)

    def all(self, expression: re.Pattern[bytes], parts: Parts) -> list[re.Match[bytes]]:
        return [found for start, end in parts for found in expression.finditer(self.data, start, end)]


def _blank(frame: bytes, depth: int, looks: _Looks, most: int) -> bytes:
    parts = places(frame)
    if not parts:
        return frame
    parts, cut = within(parts, most)
    runs: Parts = ()
    seen = frame
    if cut is not None and (runs := [one.span() for one in _LONG.finditer(frame)]):
        # Random bytes contain every short word by chance: much to search, nothing to find.
        without = bytearray(frame)
        for start, end in runs:
            without[start + _ENDS : end - _ENDS] = _FILLER * (end - start - 2 * _ENDS)
        seen = bytes(without)
        parts, cut = within(places(seen), most)
    work = _Frame(seen[:cut])
    work.changed = cut is not None
    if depth < _DEPTH:
        looks.left -= sum(end - start for start, end in parts)
    work.json(parts)
    work.pairs(parts)
    if b"\n" in frame and b"\x12" in frame:  # tags of a key and a value
        _Protobuf(work).parts(parts)
    for signs, expression in _BY_SHAPE:
        if any(sign in frame for sign in signs):
            for found in work.all(expression, parts):
                work.fill(*found.span(found.lastindex or 0))
    if b"=" in frame or b"%" in frame:
        work.assigned(parts)
    work.show(runs, frame)
    if depth:
        work.base64(sorted([*parts, *runs]), depth - 1, looks)
    return bytes(work.data) if work.changed else frame


def _unquoted(raw: bytes) -> str:
    """Decode percent escapes, twice if necessary, as in a URL within a query."""
    for _ in range(_DEPTH):
        if b"%" not in raw:
            break
        raw = unquote_to_bytes(raw)
    return raw.replace(b"+", b" ").decode("utf-8", "replace")


# -- values beside a name -----------------------------------------------------------------------------------------------


def _found_pairs(data: bytearray, parts: Parts, close: Callable[[int, bytes], int]) -> list[tuple[int, bytes]]:
    """Find values next to a secret name, with the text before each quote. `close` returns the closing quote of a string."""
    found: set[tuple[int, bytes]] = set()
    for start, end in parts:
        named = _NAMED.finditer(data, start, end)
        for escape in {bytes(one[1]) for one in named if is_name(name_of(bytes(one[2])))}:
            found.update((place, escape) for place in _walk(data, start, end, escape, close))
    return sorted(found)


class _Open:
    def __init__(self, sign: int) -> None:
        self._list = sign == 0x5B
        self._naming = self._list  # whether the next text names the values beside it
        self._commas = 0
        self._values: list[int] = []
        self.secret = False

    def member(self, name: str, place: int) -> None:
        self._naming = names(name)
        if is_named(name):
            self._values.append(place)

    def text(self, text: str) -> bool:
        """True if this is the first string that makes values at this level secret."""
        first = not self.secret and self._naming and is_name(text)
        self.secret |= first
        return first

    def comma(self, place: int) -> None:
        self._naming = False
        self._commas += 1
        if self._list:
            self._values.append(place)

    def secrets(self) -> list[int]:
        """Return the positions of secret values. A list is considered only if it is a pair."""
        return self._values if self.secret and not (self._list and self._commas > 1) else []


def _walk(data: bytearray, start: int, end: int, escape: bytes, close: Callable[[int, bytes], int]) -> list[int]:
    quote = escape + b'"'
    text = rb"(?<!\\)" + re.escape(quote)
    sign_or_text = re.compile(rb"[{}\[\],]|" + text)
    opening = re.compile(rb"[{\[](?=\s*" + text + rb")")  # elsewhere a quote may belong to anything
    start = max(0, start - _FAR)
    found: list[int] = []
    within: list[_Open] = []
    waiting = 0  # open ones with secrets
    while (here := (sign_or_text if within else opening).search(data, start, end + _FAR)) is not None:
        start = here.end()
        sign = data[here.start()]
        if sign in b"{[":
            within.append(_Open(sign))
        elif sign in b"}]":
            waiting -= within[-1].secret
            found += within.pop().secrets()
        elif sign in b",":
            within[-1].comma(start)
        else:
            stop = close(start, escape)
            name = name_of(bytes(data[start : min(stop, start + 256)]))
            colon = _COLON.match(data, stop + len(quote))
            start = stop + len(quote) if colon is None else colon.end()
            if colon is None:
                waiting += within[-1].text(name)
            else:
                within[-1].member(name, start)
        if start > end and not waiting:
            break
    return found + [place for one in within for place in one.secrets()]


# -- protobuf: entries of maps, and google.protobuf.Struct --------------------------------------------------------------------

Field: TypeAlias = tuple[int, int, int, int]
"""Field number, wire type, start and end."""

_NAME: Final = re.compile(f"(?i){NAMES}".encode())
_OF_MAP: Final = 0x0A
_OF_VALUE: Final = 0x1A
"""Tags of an entry's key, and of a string in a ``google.protobuf.Value``."""
_SHORT: Final = 128
"""The length of a shorter string takes a single byte."""
_TEXT: Final = re.compile(rb"[\n\x1a](?=[\0-\x7f])")
_ANY: Final = re.compile(rb"google\.protobuf\.(Value|Struct|ListValue)\x12")
_FIELDS_OF_VALUES: Final = frozenset({(1, 0), (2, 0), (2, 1), (3, 2), (4, 0), (4, 2), (5, 2), (6, 2), (7, 2)})
"""Field numbers and wire types in ``google.protobuf.Value`` and in CloudEvents attributes."""
_STRUCT: Final = 5
_LIST: Final = 6
_LEVELS: Final = 100
"""Maximum nesting depth of Values."""


class _Protobuf:
    def __init__(self, frame: _Frame) -> None:
        self.frame, self.data = frame, frame.data

    def parts(self, parts: Parts) -> None:
        """Blank map entries, which consist of a key (field 1, a string) and a value (field 2)."""
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
                self.pairs(_fields(self.data, *field[2:]), _LEVELS)
            else:
                self.pairs([(_STRUCT if found[1] == b"Struct" else _LIST, *field[1:])], _LEVELS)

    def names(self, parts: Parts) -> Iterator[tuple[int, int, int]]:
        """Yield strings that contain names of secrets, as tag, start and end."""
        for start, end in parts:
            found = [(name.start(), name.end() - 1) for name in _NAME.finditer(self.data, start, end)]
            yield from list(self.around(found, start, end)) if found else ()

    def around(self, names: list[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield strings that contain names, with the first name in each. Names and tags are traversed once, in parallel."""
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
        """Blank the value of a map entry if an entry begins here."""
        if self.data[place : place + 1] != b"\x12":
            return
        size, begin = _varint(self.data, place + 1)
        if size is not None and begin + size <= len(self.data):
            self.message(begin, begin + size)

    def message(self, start: int, end: int) -> None:
        """Blank a ``google.protobuf.Value`` or a CloudEvents attribute. Anything else is handled as text."""
        fields = _fields(self.data, start, end)
        if not fields or any(field[:2] not in _FIELDS_OF_VALUES for field in fields):
            self.frame.fill(start, end)
            return
        for number, kind, begin, stop in fields:
            if kind == 2 and number in (_STRUCT, _LIST):
                self.items(begin, stop)
            elif kind == 2:
                self.frame.fill(begin, stop)
            elif number == 2:  # a number; true, false and null are not secret
                self.data[begin:stop] = bytes(stop - begin) if kind else bytes(byte & 128 for byte in self.data[begin:stop])
                self.frame.changed = True

    def items(self, start: int, end: int) -> None:
        """Blank the entries of a Struct or the values of a ListValue. Anything else is handled as text."""
        fields = _fields(self.data, start, end)
        if not fields or any(field[:2] != (1, 2) for field in fields):
            self.frame.fill(start, end)
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
