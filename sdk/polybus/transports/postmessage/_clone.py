"""Structured clone, as a browser does it to everything that is posted, in terms of Python.

What may be posted: None, bool, int, float, str, bytes, datetime, exceptions, and list, tuple, set, str-keyed dict, bytearray
and `ArrayBuffer` of these, with shared and circular references. What arrives is a copy; a tuple arrives as a list, an
exception as `ClonedError`. Everything else is refused, instances of classes too, of which a browser would send the fields.
`Unreadable` can be posted, and then not be read.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

LARGEST: Final = 2**53 - 1
"""A JavaScript number holds no larger integer exactly; beyond it there is only BigInt."""


class DataCloneError(ValueError):
    """Something that was posted cannot be cloned or transferred. Nothing was sent."""


@frozen
class ClonedError:
    """The copy of an exception that arrives: no traceback, and no fields of its own."""

    name: str
    message: str


class ArrayBuffer:
    """Bytes that can be handed over without a copy; afterwards the sender has none."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._data: bytes | bytearray | None = data

    @property
    def detached(self) -> bool:
        """True if it was handed over."""
        return self._data is None

    def __len__(self) -> int:
        """0 once it was handed over, as ``byteLength`` is."""
        return 0 if self._data is None else len(self._data)

    def tobytes(self) -> bytes:
        """The content.

        Raises:
            DataCloneError: It was handed over.
        """
        if self._data is None:
            raise DataCloneError("this ArrayBuffer was transferred: its bytes belong to the receiver")
        return bytes(self._data)

    def _shell(self) -> ArrayBuffer:
        """The copy that arrives in its place."""
        return ArrayBuffer()

    def _move_to(self, new: ArrayBuffer) -> None:
        """Give up the content."""
        new._data, self._data = self._data, None


class Unreadable:
    """Stands in a message for what can be posted and cannot be read where it arrives, as code for another site: who gets
    it is told of a message error in place of the message."""

    __slots__ = ()


_PLAIN: Final = frozenset({type(None), bool, float, str, bytes, datetime.datetime})
_CONTAINERS: Final[Mapping[type, type]] = {list: list, tuple: list, dict: dict, set: set}


def clone(data: Any, transferred: Mapping[int, Any] | None = None, *, big_ints: bool = True) -> Any:
    """A copy of what is posted; all of it is `Unreadable` if something in it is.

    Args:
        data: Anything.
        transferred: What takes the place of objects in the transfer list, by their `id`.
        big_ints: Let integers beyond 53 bits pass (a BigInt in a browser). JSON there would round them.

    Raises:
        DataCloneError: It contains something that cannot be cloned.
    """
    if type(data) is str or type(data) is bytes:
        return data
    cloner = _Cloner(transferred or {}, big_ints)
    try:
        copied = cloner.copy(data)
    except RecursionError:
        raise DataCloneError("nested too deeply") from None
    return copied if cloner.unreadable is None else cloner.unreadable


class _Cloner:
    """One walk; shared and circular references stay what they are."""

    def __init__(self, transferred: Mapping[int, Any], big_ints: bool) -> None:
        self._seen: dict[int, Any] = dict(transferred)
        self._big_ints = big_ints
        self.unreadable: Unreadable | None = None

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            if not self._big_ints and not -LARGEST <= value <= LARGEST:
                raise DataCloneError(f"{value} is beyond the 53 bits of a JavaScript number: post it as text")
            return value
        known = self._seen.get(id(value))
        if known is not None:
            return known
        if isinstance(value, Unreadable):
            self.unreadable = value
            return value
        made: Any = _CONTAINERS[kind]() if kind in _CONTAINERS else _copied(value)
        self._seen[id(value)] = made
        if kind is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise DataCloneError(f"a key of type {type(key).__name__}: the keys of an object are text")
                made[key] = self.copy(item)
        elif kind is set:
            for item in value:
                if type(item) is tuple:
                    raise DataCloneError("a tuple in a set: it would arrive as a list, which no set of Python holds")
                made.add(self.copy(item))
        elif kind in _CONTAINERS:
            made.extend(self.copy(item) for item in value)
        return made


def _copied(value: Any) -> Any:
    """A copy of what holds no other objects. May raise `DataCloneError`: there is none of this type."""
    if type(value) is bytearray:
        return bytearray(value)
    if type(value) is ArrayBuffer:
        return ArrayBuffer(value.tobytes())
    if not isinstance(value, BaseException):
        name = type(value).__name__
        raise DataCloneError(f"{name} cannot be cloned: post plain values, or text and bytes of your own making")
    try:
        text = str(value)
    except Exception:  # it is of the application's making
        text = ""
    return ClonedError(type(value).__name__, text)
