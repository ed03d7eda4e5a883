"""The body format ``google.protobuf.Any``.

A message of protocol buffers is packed as it is, any other value as ``google.protobuf.Value``. Read again, ``Value`` and the
wrapper types are plain values, messages that the program knows are such messages, and of the rest the ``Any`` itself is given.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from ...body import JSON, part_that_fails
from ...errors import BadRequest, EncodeError
from .classes import is_message, known_class
from .values import Unwritable, read_value, read_value_at, write_dict, write_value
from .wire import field, length, read_fields

_PREFIX: Final = "type.googleapis.com/"
_DEPTH: Final = 128
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def _head(name: str) -> bytes:
    return field(b"\n", (_PREFIX + name).encode()) + b"\x12"


_VALUE_HEAD: Final = _head("google.protobuf.Value")
_VALUE_END: Final = len(_VALUE_HEAD)
_cached_head: Final = lru_cache(256)(_head)


def pack(name: str, data: bytes) -> bytes:
    """An ``Any`` of a message, given by its full name and its bytes."""
    return _cached_head(name) + length(data) + data


def pack_value(value: Any) -> bytes:
    """An ``Any`` of a plain value. May raise `EncodeError`: the value has no place in one; the error names the path."""
    try:
        data = write_value(value, _DEPTH)
    except (ValueError, RecursionError):
        data = _write_converted(value)
    return _VALUE_HEAD + length(data) + data


def _write_converted(value: Any) -> bytes:
    """Attrs classes, dataclasses, datetimes, bytes and so on, as in a JSON body, which also knows the path of what is wrong."""
    data = JSON.encode(value)  # raises with the path
    try:
        return write_value(msgspec.json.decode(data), _DEPTH)
    except RecursionError as error:
        raise EncodeError(str(error), "$") from error
    except ValueError as error:
        raise EncodeError(str(error), part_that_fails(msgspec.json.decode(data), _is_written)[0]) from error


def _is_written(part: Any) -> bool:
    try:
        write_value(part, _DEPTH)
    except Unwritable:
        return False
    return True


def unpack(data: bytes) -> tuple[str, bytes]:
    """Type URL and bytes of an ``Any``. May raise `ValueError`: it is none."""
    url, value = "", b""
    for number, part in read_fields(data):
        if number == 1 and isinstance(part, bytes):
            url = str(part, "utf-8")
        elif number == 2 and isinstance(part, bytes):
            value = part
    return url, value


def check_any(data: bytes) -> bool:
    """True if the bytes are an ``Any``. What is in it is not looked at."""
    try:
        head = data[1] + 2
        size = data[head + 1]
        # One byte of length, the type, one byte of length, the message and no more: as all libraries write what is not large.
        if data[0] == 10 and head < 130 and data[head] == 18 and size < 128 and head + 2 + size == len(data):
            if data[2:head].isascii():
                return True
    except IndexError:
        pass
    try:
        unpack(data)
    except ValueError:
        return False
    return True


def type_name(url: str) -> str:
    """The full name of a message from its type URL; up-java and the document's examples write it with one leading slash."""
    return url.rpartition("/")[2]


class AnyFormat:
    """The body format ``google.protobuf.Any``."""

    content_type = "application/protobuf"

    def encode(self, value: Any) -> bytes:
        """Pack a value. May raise `EncodeError`: it cannot be written; the error names the path of what does not fit."""
        if type(value) is dict:
            try:
                data = write_dict(value, _DEPTH)
            except (ValueError, RecursionError):
                return pack_value(value)
            return _VALUE_HEAD + length(data) + data
        if not is_message(value):
            return pack_value(value)
        data = value.SerializeToString()
        name: str = value.DESCRIPTOR.full_name
        return data if name == "google.protobuf.Any" else pack(name, data)

    def decode(self, data: bytes) -> Any:
        """Unpack it. May raise `BadRequest`: the bytes do not decode."""
        if not data:
            return None  # an ``Any()``: nothing is in it
        try:
            size = data[_VALUE_END] if data.startswith(_VALUE_HEAD) else 128
            if size < 128 and _VALUE_END + 1 + size == len(data):
                return read_value_at(data, _VALUE_END + 1, _DEPTH)
            url, inner = unpack(data)
            name = type_name(url)
            if name == "google.protobuf.Value":
                return read_value(inner, _DEPTH)
            return _message(name, inner, data)
        except (ValueError, IndexError, RecursionError) as error:
            raise BadRequest(f"the body is no google.protobuf.Any: {error}") from error


def _message(name: str, inner: bytes, whole: bytes) -> Any:
    from google.protobuf import any_pb2, wrappers_pb2
    from google.protobuf.message import DecodeError

    if name in _WRAPPERS:
        kind: Any = getattr(wrappers_pb2, name.rpartition(".")[2])
    else:
        kind = known_class(name)
    try:
        if kind is None:
            return any_pb2.Any.FromString(whole)
        message = kind.FromString(inner)
    except DecodeError as error:
        raise ValueError(f"{name}: {error}") from error
    return message.value if name in _WRAPPERS else message


ANY: Final = AnyFormat()
