"""The ``google.protobuf.Any`` body format, and errors as ``google.rpc.Status``.

Protobuf messages are packed unchanged. Any other value is packed as a ``google.protobuf.Value``. Decoding returns a plain value
for ``Value`` and the wrapper types, a message object for any other known type, and the ``Any`` itself for an unknown type.

Plain values are converted without the `protobuf` package, which is not available in Pyodide and takes two to four times as
long. ``Value`` stores all numbers as doubles. Whole numbers are read as ``int``, and integers larger than 2^53 are rejected
because they would be rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from struct import Struct
from typing import Any, Final

import msgspec

from ..body import JSON, part_that_fails
from ..errors import BadRequest, BusError, Code, EncodeError
from ..message import Message
from ..plugins.protobuf import field, length, read_fields, read_varint, varint


def known_class(name: str) -> type[Any] | None:
    from google.protobuf import descriptor_pool, message_factory

    try:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        return None
    return message_factory.GetMessageClass(descriptor)


def is_message(value: Any) -> bool:
    """Return True for a protobuf message, without importing the package."""
    return hasattr(value, "DESCRIPTOR") and hasattr(value, "SerializeToString")


_DOUBLE: Final = Struct("<d")
_EXACT: Final = 2**53
_pack: Final = _DOUBLE.pack
_unpack: Final = _DOUBLE.unpack_from
# Tags of Value's fields, of the only field of Struct and ListValue, and of a map entry's value.
_NULL, _NUMBER, _STRING, _BOOL, _STRUCT, _LIST, _ITEM, _ENTRY_VALUE = 0x08, 0x11, 0x1A, 0x20, 0x2A, 0x32, 0x0A, 0x12


class Unwritable(ValueError):
    """The value cannot be represented as a ``google.protobuf.Value``."""


# -- writing -------------------------------------------------------------------------------------------------------------


def write_value(value: Any, depth: int) -> bytes:
    """Encode a ``Value``. Raises `Unwritable`, or `UnicodeEncodeError` for a lone surrogate."""
    kind = type(value)
    if kind is str:
        text: bytes = value.encode()
        return b"\x1a" + length(text) + text
    if kind is int or kind is float:
        if not (-_EXACT <= value <= _EXACT if kind is int else isfinite(value)):
            raise Unwritable("numbers must be finite, and integers within 2^53, to keep all digits: send them as strings")
        number: bytes = _pack(value)
        return b"\x11" + number
    write = _WRITERS.get(kind)
    if write is None:
        raise Unwritable(f"{kind.__name__} is not a plain value")
    if depth <= 0:
        raise Unwritable("nested too deeply (limit: depth)")
    return write(value, depth)


def write_dict(value: dict[str, Any], depth: int) -> bytes:
    parts: list[bytes] = []
    for key, item in value.items():
        if type(key) is not str:
            raise Unwritable(f"a key must be a string, not {type(key).__name__}")
        name = _key(key) if len(key) < 64 else _key.__wrapped__(key)
        kind = type(item)
        if kind is str:  # fast path: most values are short text, with all lengths in one byte
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
    try:
        return _value(data, 0, len(data), depth)
    except IndexError as error:
        raise ValueError("it is truncated") from error


def read_value_at(data: bytes, at: int, depth: int) -> Any:
    """Decode a ``Value`` that extends from a position to the end of the data. Truncated data may also raise `IndexError`."""
    end = len(data)
    if at + 2 < end and data[at] == _STRUCT and data[at + 1] == end - at - 2 < 128:
        return _struct(data, at + 2, end, depth - 1)
    return _value(data, at, end, depth)


def _size(data: bytes, at: int, end: int) -> tuple[int, int]:
    size = data[at]
    at += 1
    if size > 127:
        size, at = read_varint(data, at - 1)
    if at + size > end:
        raise ValueError("a field extends beyond its message")
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
                raise ValueError("a number extends beyond its message")
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
                raise ValueError("a number extends beyond its message")
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
        begin = name_end + 2
        # Fast path: all lengths in one byte, the key first, then only the value.
        if (
            at - here > 127
            or at > end
            or data[here] != _ITEM
            or begin >= at
            or data[name_end] != _ENTRY_VALUE
            or begin + data[name_end + 1] != at
        ):
            here, at = _size(data, here - 1, end)
            key, value = _entry(data, here, at, depth)
            members[key] = value
            continue
        key = data[here + 2 : name_end].decode()
        if data[begin] == _STRING and data[begin + 1] == at - begin - 2:
            members[key] = data[begin + 2 : at].decode()
        else:
            members[key] = _value(data, begin, at, depth)
    return members


def _entry(data: bytes, here: int, end: int, depth: int) -> tuple[str, Any]:
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


_PREFIX: Final = "type.googleapis.com/"
_DEPTH: Final = 128
_WRAPPED: Final = "Double Float Int64 UInt64 Int32 UInt32 Bool String Bytes"
_WRAPPERS: Final = frozenset(f"google.protobuf.{name}Value" for name in _WRAPPED.split())


def _head(name: str) -> bytes:
    return field(b"\n", (_PREFIX + name).encode()) + b"\x12"


_VALUE_HEAD: Final = _head("google.protobuf.Value")
_VALUE_END: Final = len(_VALUE_HEAD)
_cached_head: Final = lru_cache(256)(_head)


def pack(name: str, data: bytes) -> bytes:
    return _cached_head(name) + length(data) + data


def pack_value(value: Any) -> bytes:
    try:
        data = write_value(value, _DEPTH)
    except (ValueError, RecursionError):
        data = _write_converted(value)
    return _VALUE_HEAD + length(data) + data


def _write_converted(value: Any) -> bytes:
    """Write a value that first has to be converted to JSON, such as an attrs object or a datetime."""
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
    url, value = "", b""
    for number, part in read_fields(data):
        if number == 1 and type(part) is bytes:
            url = str(part, "utf-8")
        elif number == 2 and type(part) is bytes:
            value = part
    return url, value


def check_any(data: bytes) -> bool:
    """Check that the bytes are an ``Any``, without checking its content."""
    try:
        head = data[1] + 2
        size = data[head + 1]
        # Fast path: lengths in one byte, type, message, and nothing more, as all libraries write small messages.
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
    """Return the full type name in a type URL. up-java and the document's examples put only a slash before the type name."""
    return url.rpartition("/")[2]


class AnyFormat:
    content_type = "application/protobuf"

    def encode(self, value: Any) -> bytes:
        """Pack a value. If a part cannot be encoded, the `EncodeError` contains its path."""
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
        """Unpack a value. Raises `BadRequest` if the data is not an ``Any``."""
        if not data:
            return None  # an empty ``Any``
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
            raise BadRequest(f"the body is not a google.protobuf.Any: {error}") from error


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


# -- errors: ``uprotocol.v1.UStatus`` has the same fields ------------------------------------------------------------------

_ERROR_INFO: Final = "google.rpc.ErrorInfo"
_DOMAIN: Final = field(b"\x12", b"polybus")


def status_of(message: Message) -> bytes:
    """Write an error or a failed end of a stream as a Status, with reason and detail in ``details``."""
    given = message.attributes
    reason, detail = given.get("reason"), given.get("detail")
    data = b"\x08" + varint(int(message.code or Code.UNKNOWN)) + field(b"\x12", str(given.get("text") or "").encode())
    if reason is not None:
        data += field(b"\x1a", pack(_ERROR_INFO, field(b"\n", str(reason).encode()) + _DOMAIN))
    if detail is not None:
        data += field(b"\x1a", ANY.encode(detail))
    return data


def facts_of(status: bytes) -> tuple[int, dict[str, Any]]:
    code, facts = 0, {"text": "", "reason": None, "detail": None}
    for number, part in read_fields(status):
        if number == 1 and isinstance(part, int):
            code = part if part < 2**63 else part - 2**64
        elif number == 2 and type(part) is bytes:
            facts["text"] = str(part, "utf-8")
        elif number == 3 and type(part) is bytes:
            _add_detail(facts, part)
    return code, facts


def _add_detail(facts: dict[str, Any], data: bytes) -> None:
    url, inner = unpack(data)
    if type_name(url) == _ERROR_INFO and facts["reason"] is None:
        for number, part in read_fields(inner):
            if number == 1 and type(part) is bytes:
                facts["reason"] = str(part, "utf-8")
    elif facts["detail"] is None:
        try:
            facts["detail"] = ANY.decode(data)
        except BusError as error:
            raise ValueError(str(error)) from error


def code_of(number: int) -> tuple[Code, str]:
    """Return the code for a number. For an unknown number, return UNKNOWN with an error message that contains the number."""
    try:
        return Code(number), ""
    except ValueError:
        return Code.UNKNOWN, f"UNKNOWN({number}): not a google.rpc.Code"
