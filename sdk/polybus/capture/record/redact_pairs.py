"""Finding values that stand beside the name of a secret in JSON: ``{"name": "pin", "value": ...}``, ``["password", ...]``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from ..._secrets import is_secret, words_of
from .redact_search import Parts

NAME: Final = r'(?:[^"\\]|\\u[0-9a-fA-F]{4}){1,256}'
"""An expression for the text between the quotes of a name."""

OF_NAMES: Final = frozenset(
    "name key k field id label header parameter param property attribute variable setting option".split()
)
OF_VALUES: Final = frozenset("value values val v content contents default current input".split())
"""Last words of the members of an object of which the first names the second."""

_NAMED: Final = re.compile(rf'[:\[]\s*(\\*)"({NAME})\1"\s*(?:[,}}\]]|$)'.encode())
_COLON: Final = re.compile(rb"\s*:")
_WORDS: Final = 3
"""Words of a name: more are a sentence."""
_FAR: Final = 64 << 10
"""Bytes, before and behind a place worth a look, within which the rest of an object is looked for."""


def found_pairs(data: bytearray, parts: Parts, close: Callable[[int, bytes], int]) -> list[tuple[int, bytes]]:
    """Find values that are secrets by a name beside them: where they begin, and what stands before each of their quotes.

    Args:
        data: A frame.
        parts: The parts of it that are worth a look.
        close: Gives the place of the closing quote of a string, by where it begins and what stands before its quotes.
    """
    found: set[tuple[int, bytes]] = set()
    for start, end in parts:
        named = _NAMED.finditer(data, start, end)
        for escape in {bytes(one[1]) for one in named if is_name(name_of(bytes(one[2])))}:
            found.update((place, escape) for place in _walk(data, start, end, escape, close))
    return sorted(found)


def name_of(raw: bytes) -> str:
    """The text between the quotes of a name."""
    try:
        text: Any = json.loads(b'"%s"' % raw) if b"\\" in raw else raw.decode("utf-8", "replace")
    except ValueError:
        return raw.decode("utf-8", "replace")
    return str(text)


class _Open:
    """An object or a list that has begun."""

    def __init__(self, sign: int) -> None:
        self._list = sign == 0x5B
        self._naming = self._list  # what comes next names what is beside it
        self._commas = 0
        self._values: list[int] = []
        self.secret = False

    def member(self, name: str, place: int) -> None:
        self._naming = names(name)
        if is_named(name):
            self._values.append(place)

    def text(self, text: str) -> bool:
        """True if this is the first that makes values here secret."""
        first = not self.secret and self._naming and is_name(text)
        self.secret |= first
        return first

    def comma(self, place: int) -> None:
        self._naming = False
        self._commas += 1
        if self._list:
            self._values.append(place)

    def secrets(self) -> list[int]:
        """The begins of the values that are secret. Of lists only pairs are meant."""
        return self._values if self.secret and not (self._list and self._commas > 1) else []


def _walk(data: bytearray, start: int, end: int, escape: bytes, close: Callable[[int, bytes], int]) -> list[int]:
    quote = escape + b'"'
    text = rb"(?<!\\)" + re.escape(quote)
    sign_or_text = re.compile(rb"[{}\[\],]|" + text)
    opening = re.compile(rb"[{\[](?=\s*" + text + rb")")  # in all else, quotes may be of anything
    start = max(0, start - _FAR)
    found: list[int] = []
    within: list[_Open] = []
    waiting = 0  # of these, those with secrets
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


def names(member: str) -> bool:
    """True for the member of an object that names another."""
    return words_of(member)[-1] in OF_NAMES


def is_named(member: str) -> bool:
    """True for a member that another one names."""
    return words_of(member)[-1] in OF_VALUES


def is_name(text: str) -> bool:
    """True for the name of a secret where it is a value itself."""
    return is_secret(text) and len(text.split()) <= _WORDS
