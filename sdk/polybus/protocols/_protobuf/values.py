"""Plain values as ``google.protobuf.Value``, written and read by hand: with the package they cost ten times as much.

Numbers are doubles there. A whole number comes back as ``int``, and one beyond 2^53 is refused rather than rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from struct import Struct
from typing import Any, Final

from .wire import length, read_varint, varint

_DOUBLE: Final = Struct("<d")
_EXACT: Final = 2**53
_pack: Final = _DOUBLE.pack
_unpack: Final = _DOUBLE.unpack_from
# Fields of Value, of Struct's and ListValue's only field, and of a map's entry.
_NULL, _NUMBER, _STRING, _BOOL, _STRUCT, _LIST, _ITEM, _ENTRY_VALUE = 0x08, 0x11, 0x1A, 0x20, 0x2A, 0x32, 0x0A, 0x12


class Unwritable(ValueError):
    """A value that has no place in a ``google.protobuf.Value``; the text says why."""


# -- writing -------------------------------------------------------------------------------------------------------------


def write_value(value: Any, depth: int) -> bytes:
    """The bytes of a ``Value``. May raise `Unwritable`, or `UnicodeEncodeError`: a lone surrogate."""
    kind = type(value)
    if kind is str:
        text: bytes = value.encode()
        return b"\x1a" + length(text) + text
    if kind is int or kind is float:
        if not (-_EXACT <= value <= _EXACT if kind is int else isfinite(value)):
            raise Unwritable("numbers are finite, and whole ones within 2^53, or they would lose digits: send them as text")
        number: bytes = _pack(value)
        return b"\x11" + number
    write = _WRITERS.get(kind)
    if write is None:
        raise Unwritable(f"{kind.__name__} is no plain value")
    if depth <= 0:
        raise Unwritable("nested too deeply (limit: depth)")
    return write(value, depth)


def write_dict(value: dict[str, Any], depth: int) -> bytes:
    """`write_value` of a dict."""
    parts: list[bytes] = []
    for key, item in value.items():
        if type(key) is not str:
            raise Unwritable(f"a key is text, not {type(key).__name__}")
        name = _key(key) if len(key) < 64 else _key.__wrapped__(key)
        kind = type(item)
        if kind is str:  # most values are short text: at once, with all lengths in one byte
            text: bytes = item.encode()
            size = len(text)
            if size + len(name) < 120:
                parts.append(b"\n%c%b%c\x1a%c%b" % (size + len(name) + 3, name, size + 2, size, text))
                continue
        entry = write_value(item, depth - 1)
        size = len(entry)
        if size + len(name) < 120:
            parts.append(b"\n%c%b%c%b" % (size + len(name) + 1, name, size, entry))
        else:
            prefix = varint(size)
            parts += (b"\n", varint(len(name) + len(prefix) + size), name, prefix, entry)
    inner = b"".join(parts)
    return b"\x2a" + length(inner) + inner


def _write_list(value: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    parts: list[bytes] = []
    for item in value:
        entry = write_value(item, depth - 1)
        parts += (b"\n", length(entry), entry)
    inner = b"".join(parts)
    return b"\x32" + length(inner) + inner


@lru_cache(1024)
def _key(key: str) -> bytes:
    """The key of an entry, and the tag of its value."""
    name = key.encode()
    return b"\n" + length(name) + name + b"\x12"


_WRITERS: Final[dict[type, Callable[[Any, int], bytes]]] = {
    dict: write_dict,
    list: _write_list,
    tuple: _write_list,
    bool: lambda value, depth: b"\x20\x01" if value else b"\x20\x00",
    type(None): lambda value, depth: b"\x08\x00",
}


# -- reading -------------------------------------------------------------------------------------------------------------


def read_value(data: bytes, depth: int) -> Any:
    """The plain value of a ``Value``. May raise `ValueError`: the bytes are none, or it is nested deeper than `depth`."""
    try:
        return _value(data, 0, len(data), depth)
    except IndexError as error:
        raise ValueError("it ends too early") from error


def read_value_at(data: bytes, at: int, depth: int) -> Any:
    """`read_value` of the end of some bytes. May raise `ValueError` or `IndexError`: as it does."""
    end = len(data)
    if at + 2 < end and data[at] == _STRUCT and data[at + 1] == end - at - 2 < 128:
        return _struct(data, at + 2, end, depth - 1)
    return _value(data, at, end, depth)


def _size(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Begin and end of a field of bytes whose length stands at `at`."""
    size = data[at]
    at += 1
    if size > 127:
        size, at = read_varint(data, at - 1)
    if at + size > end:
        raise ValueError("a field ends behind its message")
    return at, at + size


def _value(data: bytes, at: int, end: int, depth: int) -> Any:
    value: Any = None
    while at < end:
        tag = data[at]
        if tag == _STRING:
            begin, at = _size(data, at + 1, end)
            value = data[begin:at].decode()
        elif tag == _NUMBER:
            if at + 9 > end:
                raise ValueError("a number ends behind its message")
            (number,) = _unpack(data, at + 1)
            value = int(number) if number.is_integer() and -_EXACT <= number <= _EXACT else number
            at += 9
        elif tag == _STRUCT or tag == _LIST:
            if depth <= 0:
                raise ValueError("nested too deeply (limit: depth)")
            begin, at = _size(data, at + 1, end)
            value = (_struct if tag == _STRUCT else _list)(data, begin, at, depth - 1)
        elif tag == _BOOL or tag == _NULL:
            flag, at = read_varint(data, at + 1)
            value = flag != 0 if tag == _BOOL else None
            if at > end:
                raise ValueError("a number ends behind its message")
        else:
            raise ValueError(f"tag {tag} is not of google.protobuf.Value")
    return value


def _list(data: bytes, at: int, end: int, depth: int) -> list[Any]:
    items = []
    while at < end:
        if data[at] != _ITEM:
            raise ValueError("not of google.protobuf.ListValue")
        begin, at = _size(data, at + 1, end)
        items.append(_value(data, begin, at, depth))
    return items


def _struct(data: bytes, at: int, end: int, depth: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    while at < end:
        if data[at] != _ITEM:
            raise ValueError("not of google.protobuf.Struct")
        here, at = at + 2, at + 2 + data[at + 1]
        name_end = here + 2 + data[here + 1]
        # The usual entry: all lengths in one byte, the key first, then the value and nothing else.
        if at - here > 127 or at > end or data[here] != _ITEM or name_end + 2 >= at or data[name_end] != _ENTRY_VALUE:
            here, at = _size(data, here - 1, end)
            key, value = _entry(data, here, at, depth)
            members[key] = value
            continue
        key = data[here + 2 : name_end].decode()
        begin, size = name_end + 2, data[name_end + 1]
        if begin + size != at:
            key, value = _entry(data, here, at, depth)
            members[key] = value
            continue
        if data[begin] == _STRING and data[begin + 1] == size - 2:
            members[key] = data[begin + 2 : at].decode()
        else:
            members[key] = _value(data, begin, at, depth)
    return members


def _entry(data: bytes, here: int, end: int, depth: int) -> tuple[str, Any]:
    """Key and value of an entry, in any order, and the last of each."""
    key, value = "", None
    while here < end:
        tag = data[here]
        begin, here = _size(data, here + 1, end)
        if tag == _ITEM:
            key = data[begin:here].decode()
        elif tag == _ENTRY_VALUE:
            value = _value(data, begin, here, depth)
        else:
            raise ValueError("not an entry of google.protobuf.Struct")
    return key, value
