"""Values with references, and their size when these are written out."""

from __future__ import annotations

from typing import Any, Final

import attrs

from ....errors import BadRequest
from .java import JavaObject

_MAX_NODES: Final = 1_000_000
_SINGLE: Final = frozenset((type(None), bool, int, float, str, bytes))


class Measure:
    """Size of the values of one message when their references are written out: a few bytes may stand for billions."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[int, int]] = {}
        """Of what has been looked at, by its `id()`: values, and levels. The message's values live longer than this."""
        self._total = 0

    def add(self, value: Any, depth: int) -> None:
        """One more value of the message. May raise `BadRequest`: it is too much, or all of them together are."""
        self._total += self._size_of(value, depth)[0]
        self._check(self._total, 0, depth)

    def _size_of(self, value: Any, depth: int) -> tuple[int, int]:
        if type(value) in _SINGLE:
            return 1, 1
        sizes = self._sizes
        found = sizes.get(id(value))
        if found is not None:
            return found
        sizes[id(value)] = 1, 1  # a cycle is seen once
        size, deep = 1, 0
        for item in _content_of(value):
            more, below = self._size_of(item, depth)
            size, deep = size + more, max(deep, below)
        self._check(size, deep, depth)
        sizes[id(value)] = size, deep + 1
        return size, deep + 1

    def _check(self, size: int, deep: int, depth: int) -> None:
        if size > _MAX_NODES or deep > depth:
            text = f"with its references written out a message of more than {_MAX_NODES} values or {depth} levels"
            raise BadRequest(text)


def _content_of(value: Any) -> Any:
    if isinstance(value, JavaObject):
        return (*value.values(), value.value)
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, set)):
        return value
    if attrs.has(type(value)):
        return [getattr(value, one.name) for one in attrs.fields(type(value))]
    return ()
