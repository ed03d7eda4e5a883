"""Finding secrets in the bytes of a frame, and blanking them in place: the length stays, so the frame can still be read.

What is looked for are members whose name says that they are secret (`is_secret`), wherever they stand: in JSON (a body,
headers, the parts of J.REP, the attributes of uProtocol, also in JSON that is written as text inside JSON), in protobuf maps
(attributes of uProtocol, ``google.protobuf.Struct``), in forms, in the query of URLs, in all of these inside base64. Besides
them what follows ``Bearer``, the password of a URL, and what has the shape of a JSON Web Token (RFC 7519).
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from ..._secrets import ENDINGS, JWT, OF_QUERIES, SHORT, WORDS, is_secret, is_secret_of_query

_BETWEEN: Final = "[-_ ]?"
_PARTED: Final = re.compile("(?=key$|id$|number$)|(?<=mot)(?=de)|(?<=de)(?=passe)")
_WORDS: Final = "|".join(_PARTED.sub(_BETWEEN, word) for word in WORDS)
_CAPITALS: Final = "|".join(form for word in SHORT for form in (word.title(), word.upper()))
_SHORT: Final = (
    rf"(?:(?:\b|_|[0-9])(?:{'|'.join(SHORT)})|(?-i:[a-z](?:{_CAPITALS}))){_BETWEEN}(?:{'|'.join(ENDINGS)})?[0-9]*(?:\b|_)"
)
_IN_QUERY: Final = rf"[?&#;](?:{'|'.join(OF_QUERIES)})="
_OF_LOGIN: Final = r"://[^\s/?#:@]{0,255}:[^\s/?#@]{1,255}@"
_JWT_SEEN: Final = r"(?-i:eyJ[\w-]{8,}\.)"
PLAIN: Final = rf"(?i){_WORDS}|{_SHORT}|{_IN_QUERY}|{_OF_LOGIN}|{_JWT_SEEN}|\\u00"
SUSPECT: Final = rf"{PLAIN}|[a-z0-9+/]{{20}}={{0,2}}[\"\\]"
"""An expression for RE2, linear and fast: where it finds nothing there is no secret. It finds too much."""

_EVENT_DATA: Final = '"data_base64'
_OTHER_MEMBERS: Final = "|".join(f"[^{letter}]{_EVENT_DATA[place + 1 :]}" for place, letter in enumerate(_EVENT_DATA))
SUSPECT_EVENT: Final = (
    rf"{PLAIN}|base64\"(?:[^:]|:[^\"])|(?-i:{_OTHER_MEMBERS})\"\s*:\s*\"[a-z0-9+/]{{21}}|[,\[]\s*\"[a-z0-9+/]{{21}}"
)
"""`SUSPECT` for events in JSON, whose ``"data_base64":"`` is looked at by itself: base64 is what is there as a rule. Written
with a space between, or in another member, it is found here."""

_KEY: Final = re.compile(rb'((?<!\\)\\*|\\{0,7})"((?:[^"\\]|\\u[0-9a-fA-F]{4}){1,256})\1"\s*:\s*')
"""The part before its quotes is a whole run of backslashes, or the end of one: but not any end, or a frame of nothing but
backslashes, of which each may be the first, took minutes."""
_BEARER: Final = re.compile(rb"(?i)(bearer\s+)([A-Za-z0-9._~+/=-]+)")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{20,}={0,2}")
_FIELD: Final = re.compile(rb"(?:^|(?<=[&?]))([^=&]{1,256})=([^&]*)")
_WORD: Final = re.compile(rf"(?i){_WORDS}|{_SHORT}".encode())
_HINTS: Final = tuple(
    {hint.encode() for hint in (*(_PARTED.split(word)[0] for word in WORDS), *SHORT, "=", "://", "eyj", r"\u00")}
)
"""One of these is in all lower-case bytes that hold a secret. Looking for them is ten times as fast as an expression."""
_JWT: Final = re.compile(rb"(?:(?<![\w-])|(?<=\\[nrt]))" + JWT.encode())
_MEMBER_OF_QUERY: Final = re.compile(rb"(?:[?&#;]|\\u0026)([\w.%-]{1,64})=([^\s&#\"'<>\\\x00-\x1f]+)")
_LOGIN: Final = re.compile(rb"://[^\s/?#:@\"\\]{0,255}:([^\s/?#@\"\\]{1,255})@")
_COLON: Final = re.compile(rb"[ \t\r\n]*:")
_SCALAR: Final = re.compile(rb"[-+.0-9eEa-z]+")
_MARKER: Final = re.compile(rb'(\\*)"\^(?:ObjectID\1"\s*:\s*\1"-?\d+|EncodedType\1"\s*:\s*\1"[\w.$;\[]{1,200})\1"')
"""Members that J.REP writes into objects beside their values, so that they can be read."""
_NUMBER: Final = re.compile(rb'(\\*)"\^NumVal\1"\s*:\s*\1"(-?\d+)\1"')
_FIELDS_OF_VALUES: Final = frozenset({(1, 0), (2, 0), (2, 1), (3, 2), (4, 0), (4, 2), (5, 2), (6, 2), (7, 2)})
"""Numbers and wire types of the fields of ``google.protobuf.Value`` and of the attributes of CloudEvents."""
_DEPTH: Final = 3
"""Base64 within base64."""


def blank(frame: bytes, *, form: int | None = None, encoded: int | None = None) -> bytes:
    """The frame with its secrets blanked; the same object where there are none.

    Args:
        frame: Any bytes.
        form: Where a payload begins that is ``application/x-www-form-urlencoded``.
        encoded: Where a payload begins that is base64 as a whole.
    """
    work = _Frame(frame)
    if form is not None:
        work.form(form)
    work.base64(0 if encoded is None else encoded, _DEPTH)
    return bytes(work.data) if work.changed else frame


def starred(frame: bytes, places: Iterable[tuple[int, int]]) -> bytes:
    """The frame with stars from one place to another; the same object where there is nothing between them."""
    some = [(start, end) for start, end in places if start < end]
    data = bytearray(frame)
    for start, end in some:
        data[start:end] = b"*" * (end - start)
    return bytes(data) if some else frame


class _Frame:
    """The bytes while they are blanked: what stands in them as it is at once."""

    def __init__(self, frame: bytes) -> None:
        self.data = bytearray(frame)
        self.changed = False
        lower = frame.lower()
        if not any(hint in lower for hint in _HINTS):
            return
        self.json()
        if b"\n" in frame:  # the tag of a key
            self.protobuf()
        if b"bearer" in lower:
            for found in list(_BEARER.finditer(self.data)):
                self.fill(*found.span(2))
        if b"=" in frame or b"://" in frame:
            self.urls()
        if b"eyJ" in frame:
            for found in list(_JWT.finditer(self.data)):
                self.fill(*found.span())

    def fill(self, start: int, end: int) -> None:
        """Stars, from one place to another."""
        if end > start:
            self.data[start:end] = b"*" * (end - start)
            self.changed = True

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def json(self) -> None:
        """Values of members with secret names, at any level of text inside text."""
        place = 0
        while (found := _KEY.search(self.data, place)) is not None:
            place = found.end()
            if is_secret(_name(bytes(found[2]))):
                place = self.value(place, bytes(found[1]))

    def value(self, start: int, escape: bytes) -> int:
        """Blank one JSON value; where it ends. `escape` is what stands before each of its quotes."""
        data, end = self.data, len(self.data)
        quote = escape + b'"'
        depth, place = 0, start
        while place < end:
            if data.startswith(quote, place):
                begin = place + len(quote)
                close = self.close(begin, escape)
                place = close + len(quote)
                if depth and _COLON.match(data, place):  # the name of a member
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
        """The place of the closing quote of a string that begins here."""
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
        """A number becomes another one, of the same kind; true, false and null say nothing and stay."""
        if self.data[start] in b"-0123456789":
            self.data[start:end] = b"0" if end - start == 1 else b"1" + b"0" * (end - start - 1)
            self.changed = True

    # -- the rest --------------------------------------------------------------------------------------------------------

    def protobuf(self) -> None:
        """Entries of maps: a key (field 1, text) and a value (field 2)."""
        data = self.data
        for found in list(_WORD.finditer(data)):
            first, last = found.span()
            for begin in range(first, max(1, first - 127), -1):
                if data[begin - 2] == 0x0A and data[begin - 1] < 128 and begin + data[begin - 1] >= last:
                    end = begin + data[begin - 1]
                    if is_secret(data[begin:end].decode("utf-8", "replace")):
                        self.entry(end)

    def entry(self, place: int) -> None:
        """The value of an entry, if there is one here."""
        if self.data[place : place + 1] != b"\x12":
            return
        size, begin = _varint(self.data, place + 1)
        if size is not None and begin + size <= len(self.data):
            self.message(begin, begin + size)

    def message(self, start: int, end: int) -> None:
        """A ``google.protobuf.Value`` or an attribute of a CloudEvent; what is neither is text."""
        fields = _fields(self.data, start, end)
        if fields is None or any(field[:2] not in _FIELDS_OF_VALUES for field in fields):
            self.fill(start, end)
            return
        for number, kind, begin, stop in fields:
            if kind == 2 and number in (5, 6):
                self.items(begin, stop)
            elif kind == 2:
                self.fill(begin, stop)
            elif number == 2:  # a number; the others are true, false and null
                self.data[begin:stop] = bytes(stop - begin) if kind else bytes(byte & 128 for byte in self.data[begin:stop])
                self.changed = True

    def items(self, start: int, end: int) -> None:
        """The entries of a Struct or the values of a ListValue; else it is the text of an address."""
        fields = _fields(self.data, start, end)
        if fields is None or any((number, kind) != (1, 2) for number, kind, _, _ in fields):
            self.fill(start, end)
            return
        for _, _, begin, stop in fields:
            parts = _fields(self.data, begin, stop)
            if parts is not None and [part[:2] for part in parts] == [(1, 2), (2, 2)]:
                self.message(*parts[1][2:])
            else:
                self.message(begin, stop)

    def urls(self) -> None:
        """Members of queries with secret names, and passwords."""
        for found in list(_MEMBER_OF_QUERY.finditer(self.data)):
            if is_secret_of_query(_unquoted(found[1])):
                self.fill(*found.span(2))
        for found in list(_LOGIN.finditer(self.data)):
            self.fill(*found.span(1))

    def form(self, start: int) -> None:
        """The fields of a form."""
        for found in list(_FIELD.finditer(self.data, start)):
            if is_secret(_unquoted(found[1])):
                self.fill(*found.span(2))

    def base64(self, start: int, depth: int) -> None:
        """All that is base64 and holds a secret."""
        for found in list(_BASE64.finditer(self.data, start)):
            text = bytes(found[0])
            try:
                inner = binascii.a2b_base64(text[: len(text) // 4 * 4])
            except ValueError:
                continue
            clean = _inner(inner, depth)
            if clean is not inner:
                written = binascii.b2a_base64(clean, newline=False)
                self.data[found.start() : found.start() + len(written)] = written
                self.changed = True


def _inner(data: bytes, depth: int) -> bytes:
    work = _Frame(data)
    if depth:
        work.base64(0, depth - 1)
    return bytes(work.data) if work.changed else data


def _unquoted(raw: bytes | bytearray) -> str:
    return unquote_to_bytes(bytes(raw).replace(b"+", b" ")).decode("utf-8", "replace")


def _name(raw: bytes) -> str:
    try:
        decoded: Any = json.loads(b'"%s"' % raw) if b"\\" in raw else raw.decode("utf-8", "replace")
    except ValueError:
        return raw.decode("utf-8", "replace")
    return str(decoded)


def _varint(data: bytearray, place: int) -> tuple[int | None, int]:
    value = 0
    for shift, byte in zip(range(0, 35, 7), data[place : place + 5], strict=False):
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
    return None, place


def _fields(data: bytearray, start: int, end: int) -> list[tuple[int, int, int, int]] | None:
    """Number, wire type and extent of the fields of a protobuf message; None where it is none."""
    found: list[tuple[int, int, int, int]] = []
    place = start
    while place < end:
        tag, place = _varint(data, place)
        if tag is None or tag < 8:
            return None
        kind = tag & 7
        stop = place + {1: 8, 5: 4}.get(kind, 0)
        if kind == 0:
            _, stop = _varint(data, place)
        elif kind == 2:
            size, place = _varint(data, place)
            stop = end + 1 if size is None else place + size
        elif kind not in (1, 5):
            return None
        if stop > end:
            return None
        found.append((tag >> 3, kind, place, stop))
        place = stop
    return found or None
