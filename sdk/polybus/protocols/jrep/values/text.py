"""JSON text as Errai reads it, the ids of a message and the words of the markers, for all writers of marked values.

Escapes have upper case only (`MAR/server/JSONStreamDecoder`, notes sections 0.3, 1.2, 1.4 and 1.5).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ....errors import EncodeError

_encode: Final = msgspec.json.Encoder().encode
_ESCAPE: Final = re.compile(rb"\\(u[0-9a-f]{4}|.)", re.DOTALL)


def quoted(text: str, ids: object = None) -> bytes:
    """A text as a JSON string (`ids` is what other writers take). May raise `EncodeError`: it has a lone surrogate."""
    try:
        data = _encode(text)
    except UnicodeEncodeError as error:
        raise EncodeError(f"lone surrogate at character {error.start}") from error
    return upper_case(data) if b"\\u" in data else data


def json_text(value: object) -> bytes:
    """The JSON of plain values: what a decoder gave, or text and numbers of our own."""
    data = _encode(value)
    return upper_case(data) if b"\\u" in data else data


def upper_case(data: bytes) -> bytes:
    """The same JSON with its ``\\uXXXX`` escapes in upper case; escaped backslashes are stepped over."""
    return _ESCAPE.sub(_upper, data)


def _upper(found: re.Match[bytes]) -> bytes:
    escape: bytes = found[1]
    return b"\\u" + escape[1:].upper() if len(escape) == 5 else found[0]


def number(value: float) -> bytes:
    """A finite float in Java's notation: ``2.5``, ``1.0E21``."""
    text = float.__repr__(value)
    if "e" not in text:
        return text.encode()
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}".encode()


KEY_PREFIX: Final = "^${$JSON$}$::"
NULL_KEY: Final = "^NullVal"
HASHED_TYPES: Final = frozenset(
    "java.math.BigInteger java.math.BigDecimal java.util.Date java.sql.Date java.sql.Time java.sql.Timestamp "
    "java.util.Optional".split()
)
"""Types that write a hash code in ``^ObjectID``: it names nothing (notes section 1.4)."""
LIST: Final = b'{"^EncodedType":"java.util.ArrayList","^ObjectID":"%d","^Value":[%b]}'
SET: Final = b'{"^EncodedType":"java.util.HashSet","^ObjectID":"%d","^Value":[%b]}'
MAP: Final = b'{"^EncodedType":"java.util.LinkedHashMap","^ObjectID":"%d","^Value":{%b}}'


class Numbering:
    """The ids of one message: every object in it has its own, counted from 1 across all parts."""

    __slots__ = ("copied", "keep", "next", "seen")

    def __init__(self, first: int = 1) -> None:
        self.next: int = first
        self.seen: dict[int, int] = {}
        """From `id()` to the id on the wire."""
        self.copied: bool = False
        """True if something came in with levels that have no ids."""
        self.keep: list[Any] = []
        """Objects made on the way: while one lives, no other has its `id()`."""

    def add(self, value: object) -> int:
        """The id of an object that is met for the first time."""
        given = self.next
        self.next = given + 1
        self.seen[id(value)] = given
        return given

    def one(self) -> int:
        """The id of an object that is not met again."""
        given = self.next
        self.next = given + 1
        return given


def throwable(text: str, ids: Numbering, of: object = None) -> bytes:
    """A RuntimeException, which every Errai client knows, without a stack."""
    first, second = ids.add(of if of is not None else ids), ids.one()
    return (
        b'{"^EncodedType":"java.lang.RuntimeException","^ObjectID":"%d","stackTrace":{"^EncodedType":'
        b'"[Ljava.lang.StackTraceElement;","^ObjectID":"%d","^Value":[]},"message":%b,"cause":null}'
    ) % (first, second, quoted(text))
