"""A cheap search for possible secrets, using Arrow expressions that scan all bytes once."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from ...plugins.tools import is_secret
from ...secrets import ENDINGS, OF_QUERIES, SHORT, TAIL, WORDS, words_of
from ..store.compute import pc

Parts: TypeAlias = Sequence[tuple[int, int]]
"""Start and end positions of the suspicious parts of a frame."""

NAME: Final = r'(?:[^"\\]|\\u[0-9a-fA-F]{4}){1,256}'
"""Expression for the text between the quotes around a name."""
OF_NAMES: Final = frozenset(
    "name key k field id label header parameter param property attribute variable setting option".split()
)
OF_VALUES: Final = frozenset("value values val v content contents default current input".split())
"""Last words of member names: members in `OF_NAMES` contain the name of a value, members in `OF_VALUES` the value."""
_WORDS: Final = 3
"""Maximum number of words in a name. A longer text is a sentence."""
_CAPITALS: Final = "|".join(form for word in SHORT for form in (word.title(), word.upper()))
_TITLES: Final = "|".join(word.title() for word in SHORT)
_BORDER: Final = r"(?:\b|_|[0-9])"
_SHORT: Final = (
    rf"(?:{_BORDER}(?:{'|'.join(SHORT)})|2fa|(?-i:[a-z](?:{_CAPITALS})|[A-Z](?:{_TITLES})))"
    rf"[-_ ]?(?:(?:{'|'.join(ENDINGS)})s?)?{TAIL}"
    r"[\"\\=:%\x12]"
)
"""Expression for short names, up to a quote, the sign before the value, or the tag of a protobuf value."""
NAMES: Final = rf"{'|'.join(WORDS).replace('_', '[-_ .]?')}|{_SHORT}"
"""Expression for the names of secrets, case-insensitive."""

SUSPECT: Final = (
    rf"(?i){NAMES}|[?&#;](?:{'|'.join(OF_QUERIES)})=|%[2-7][0-9a-f][\w.%+-]*=|"
    r":\\*/\\*/[^\s\"/?#]+@|:\\*/\\*/[^\s\"/?#]*:[^\s\"]*@|"
    r"(?-i:eyJ[\w-]{8,}\.)|\\u00"
)
"""Expression for RE2, which is linear and fast. If a frame does not match, it contains no secret outside base64."""

_HINTS: Final = tuple(
    {hint.encode() for hint in (*(word.split("_")[0] for word in WORDS), *SHORT, *map("{}=".format, OF_QUERIES))}
    | {b"://", b":\\/", b"eyj", rb"\u00"}
)
"""Lower-case bytes with a secret contain one of these strings or match the next expression."""
_PERCENT: Final = re.compile(rb"%[2-7][0-9a-f][\w.%+-]*=")
_HIDING: Final = "[A-Za-z0-9+/]{20}"
BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{20,}={0,2}")
_REST_OF_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_DECODED: Final = f"{SUSPECT.replace(_BORDER, '')}|{_HIDING}"
"""Expression for decoded base64, where a short name may directly follow the end of other base64."""

MOST: Final = 128 << 10
"""Maximum suspicious bytes of a frame to search, in a tenth of a second. The frame is truncated at that point."""
_PIECE: Final = 8 << 10
_OVERLAP: Final = 1 << 10
"""Bytes of the next piece that are searched together with each piece. No name, login or start of a token is longer."""


def suspicious(frames: pa.Array, more: str = "") -> list[int]:
    either = _matching(frames, rf"{SUSPECT}|(?-i:{_HIDING}){more}")
    if not either:
        return []
    some = frames if len(either) == len(frames) else frames.take(pa.array(either))
    found = _matching(some, SUSPECT + more)
    hiding = sorted({*range(len(some))}.difference(found))
    if hiding:
        texts = (some if len(hiding) == len(some) else some.take(pa.array(hiding))).to_pylist()
        found += [hiding[row] for row in _matching(decoded(texts), _DECODED)]
    return [either[row] for row in sorted(found)]


def places(frame: bytes) -> Parts:
    """Return the suspicious parts of a frame. A short frame is a single part."""
    if len(frame) <= _PIECE:
        return [(0, len(frame))] if _hides(frame) else []
    pieces = list(_pieces(frame))
    rows = suspicious(pa.array([frame[start:end] for start, end in pieces], pa.binary()))
    found: list[tuple[int, int]] = []
    for start, end in (pieces[row] for row in rows):
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        found.append((start, end))
    return found


def within(parts: Parts, most: int) -> tuple[Parts, int | None]:
    """Return the first `most` bytes of the parts and their end position, or `None` if the parts are not longer than that."""
    taken: list[tuple[int, int]] = []
    for start, end in parts:
        if end - start > most:
            return [*taken, (start, start + most)], start + most
        taken.append((start, end))
        most -= end - start
    return taken, None


def whole_base64(frame: bytes | bytearray, start: int) -> bytes:
    rest = _REST_OF_BASE64.match(frame, start)
    assert rest is not None
    return bytes(rest[0])


def _hides(text: bytes) -> bool:
    """Return True if a short text may contain a secret. For one text, words are cheaper than an Arrow expression."""
    found = _may_hide(text)
    if not found and BASE64.search(text) is not None:
        plain = decoded([text])[0].as_py()
        found = _may_hide(plain) or BASE64.search(plain) is not None
    return found


def _may_hide(text: bytes) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS) or _PERCENT.search(lower) is not None


def decoded(texts: list[bytes]) -> pa.Array:
    """Decode all base64 in each text, piece by piece. Words also count as base64."""
    octets = np.frombuffer(b"\n".join([b"", *texts, b""]), np.uint8)
    kept = (octets | 32) - np.uint8(97) < 26
    kept |= octets - np.uint8(47) < 11
    kept |= octets == 43
    edges = np.flatnonzero(kept[1:] != kept[:-1])
    last = edges[1::2]
    left = (last - edges[::2]) & 3
    for place in range(3):
        kept[last[left > place] - place] = False
    sizes = np.array([len(text) + 1 for text in texts])
    counts = np.add.reduceat(kept, 1 + np.cumsum(sizes) - sizes, dtype=np.int32)
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(counts // 4 * 3, out=offsets[1:])
    plain = binascii.a2b_base64(octets[kept].data)
    return pa.Array.from_buffers(pa.binary(), len(texts), [None, pa.py_buffer(offsets), pa.py_buffer(plain)])


def _pieces(frame: bytes) -> Iterator[tuple[int, int]]:
    """Yield pieces that do not start within base64, because base64 could not be decoded from there."""
    start = 0
    while start < len(frame):
        stop = min(start + _PIECE, len(frame))
        stop += len(whole_base64(frame, stop))
        yield start, min(stop + _OVERLAP, len(frame))
        start = stop


def _matching(array: pa.Array, expression: str) -> list[int]:
    found = pc.match_substring_regex(array, expression)
    return pc.indices_nonzero(found).to_pylist() if found.true_count else []


def name_of(raw: bytes) -> str:
    try:
        text: Any = json.loads(b'"%s"' % raw) if b"\\" in raw else raw.decode("utf-8", "replace")
    except ValueError:
        return raw.decode("utf-8", "replace")
    return str(text)


def names(member: str) -> bool:
    """Return True for an object member that contains a name."""
    return words_of(member)[-1] in OF_NAMES


def is_named(member: str) -> bool:
    """Return True for the object member that contains the named value."""
    return words_of(member)[-1] in OF_VALUES


def is_name(text: str) -> bool:
    """Return True for the name of a secret that is itself used as a value."""
    return is_secret(text) and len(text.split()) <= _WORDS
