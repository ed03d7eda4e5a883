"""JSON text as Errai reads it, ids of a message, and marker strings, for all writers of marked values.

Escapes are upper case only (`MAR/server/JSONStreamDecoder`, notes sections 0.3, 1.2, 1.4 and 1.5).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ....errors import EncodeError

_encode: Final = msgspec.json.Encoder().encode
_ESCAPE: Final = re.compile(rb"\\(u[0-9a-f]{4}|.)", re.DOTALL)


def quoted(text: str, ids: object = None) -> bytes:
    """Write a JSON string (`ids` is unused, as writers take it). May raise `EncodeError`: lone surrogate."""
    try:
        data = _encode(text)
    except UnicodeEncodeError as error:
        raise EncodeError(f"lone surrogate at character {error.start}") from error
    return upper_case(data) if b"\\u" in data else data


def json_text(value: object) -> bytes:
    data = _encode(value)
    return upper_case(data) if b"\\u" in data else data


def upper_case(data: bytes) -> bytes:
    """Convert ``\\uXXXX`` escapes to upper case; escaped backslashes are skipped."""
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
"""Types with a hash code in ``^ObjectID``, which is not an id (notes section 1.4)."""
LIST: Final = b'{"^EncodedType":"java.util.ArrayList","^ObjectID":"%d","^Value":[%b]}'
SET: Final = b'{"^EncodedType":"java.util.HashSet","^ObjectID":"%d","^Value":[%b]}'
MAP: Final = b'{"^EncodedType":"java.util.LinkedHashMap","^ObjectID":"%d","^Value":{%b}}'


class Numbering:
    """The ids of one message: each object gets its own, counted from 1 across all parts."""

    __slots__ = ("copied", "keep", "next", "seen")

    def __init__(self, first: int = 1) -> None:
        self.next: int = first
        self.seen: dict[int, int] = {}
        self.copied: bool = False
        """True if a received part may have levels without ids."""
        self.keep: list[Any] = []
        """Temporary objects, kept alive so that no other object gets the same `id()`."""

    def add(self, value: object) -> int:
        """Assign the id of an object that may be referred to."""
        given = self.next
        self.next = given + 1
        self.seen[id(value)] = given
        return given

    def one(self) -> int:
        given = self.next
        self.next = given + 1
        return given


def throwable(text: str, ids: Numbering, of: object = None) -> bytes:
    """Write a RuntimeException, which each Errai client knows, without a stack."""
    first, second = ids.add(of if of is not None else ids), ids.one()
    return (
        b'{"^EncodedType":"java.lang.RuntimeException","^ObjectID":"%d","stackTrace":{"^EncodedType":'
        b'"[Ljava.lang.StackTraceElement;","^ObjectID":"%d","^Value":[]},"message":%b,"cause":null}'
    ) % (first, second, quoted(text))
