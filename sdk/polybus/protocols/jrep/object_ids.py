"""Ids of a message, and the words of the markers, for all writers of marked values (notes sections 1.2 and 1.4)."""

from __future__ import annotations

from typing import Any, Final

from .messages.text import quoted

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
