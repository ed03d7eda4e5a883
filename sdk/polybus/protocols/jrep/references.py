"""What values with references are when these are written out."""

from __future__ import annotations

from typing import Any, Final

import attrs

from ...errors import BadRequest
from .java import JavaObject

__all__ = ["measure"]

_MAX_NODES: Final = 1_000_000


def measure(value: Any, depth: int) -> None:
    """What a value with references is when they are written out: a few bytes may stand for billions, and for any depth.

    Raises:
        BadRequest: It is too much.
    """
    sizes: dict[int, tuple[int, int]] = {}

    def size_of(value: Any) -> tuple[int, int]:
        found = sizes.get(id(value))
        if found is not None:
            return found
        sizes[id(value)] = 1, 1  # a cycle is seen once
        size, deep = 1, 0
        for item in _content_of(value):
            more, below = size_of(item)
            size, deep = size + more, max(deep, below)
        if size > _MAX_NODES or deep > depth:
            raise BadRequest(f"with its references written out a body of more than {_MAX_NODES} values or {depth} levels")
        sizes[id(value)] = size, deep + 1
        return size, deep + 1

    size_of(value)


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
