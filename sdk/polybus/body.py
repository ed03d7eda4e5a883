"""Body formats, which encode values as message bodies and decode them again.

A body is stored as bytes together with its `BodyFormat`. The bus encodes each body once, in the format of the first connection,
and re-encodes it only for protocols that cannot carry that format. The formats in this module are shared by all protocols.
Protocols can define their own, such as ``google.protobuf.Any`` in uProtocol.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import math
import os
import re
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, Final, NoReturn, Protocol

import attrs
import msgspec

from .errors import BadRequest, BusError, EncodeError
from .speedups import native

__all__ = [
    "JSON", "OCTETS", "TEXT", "BodyFormat", "JsonFormat", "OctetsFormat", "TextFormat", "check_depth", "check_json",
    "check_levels", "items_of", "part_that_fails", "read_body",
]  # fmt: skip


class BodyFormat(Protocol):
    """Encodes and decodes bodies.

    Formats are compared by identity: messages share encoded bytes only if they use the same format object.
    """

    @property
    def content_type(self) -> str:
        """The media type, for example ``application/json``."""
        ...

    def encode(self, value: Any) -> bytes:
        """Encode a value.

        Raises:
            EncodeError: If the format cannot represent the value. The error contains the path of the offending part.
        """
        ...

    def decode(self, data: bytes) -> Any:
        """Decode bytes that have already been validated.

        Raises:
            BadRequest: If the bytes cannot be decoded.
        """
        ...


# -- objects of other libraries ----------------------------------------------------------------------------------------------

MASK: Final = "**********"
"""Placeholder that pydantic writes instead of a secret."""
_EXACT: Mapping[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
    bytearray: bytes,
    memoryview: bytes,
    datetime.datetime: lambda value: datetime.datetime.combine(_date(value), _time(value.timetz())),
    datetime.date: lambda value: _date(value),
    datetime.time: lambda value: _time(value),
    datetime.timedelta: lambda value: datetime.timedelta(value.days, value.seconds, value.microseconds),
    decimal.Decimal: decimal.Decimal,
}
"""Conversion functions for built-in types. Frames never depend on an overridden ``str()`` or ``repr()`` in a subclass."""
_OF_TEXT: Final = ("ipaddress", "fractions", "zoneinfo")
"""Modules with classes that are encoded as strings."""
_NANOSECONDS: Final = ("nanosecond", "nanoseconds")
_SCALARS: Final = (str, int, float)


def scalar_form(value: Any) -> Any:
    """Convert a numpy scalar, or an instance of a subclass of a built-in type, to a plain string or number.

    Other objects are returned unchanged."""
    for kind in _SCALARS:
        if isinstance(value, kind):
            return value if type(value) is bool else _EXACT[kind](value)
    scalar = _scalar_of_numpy(value)
    return value if scalar is None else scalar


def _date(value: Any) -> datetime.date:
    return datetime.date(value.year, value.month, value.day)


def _time(value: Any) -> datetime.time:
    return datetime.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)


def plain_form(value: Any) -> Any:
    """Return the built-in equivalent of an object, or the JSON representation that its library defines.

    Raises:
        TypeError: If the object has neither.
    """
    if isinstance(value, type):
        raise TypeError(f"{value.__name__} is a class: pass an instance")
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json", by_alias=writes_aliases(type(value)))
    for kind, exact in _EXACT.items():
        if isinstance(value, kind):
            if any(getattr(value, name, 0) for name in _NANOSECONDS):
                raise TypeError(
                    f"{type(value).__name__} has nanoseconds, but a {kind.__name__} only has microseconds: round it first"
                )
            return exact(value)
    if (scalar := _scalar_of_numpy(value)) is not None:
        return scalar
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, (os.PathLike, complex)) or type(value).__module__ in _OF_TEXT:  # the form that pydantic uses
        return str(value).strip("()")
    if is_of_pydantic(type(value)):
        own: type = type(value)
        return _dumper(own)(value, mode="json")
    if inspect.isawaitable(value):
        raise TypeError(f"{type(value).__name__} is awaitable: is an await missing?")
    if isinstance(value, BaseException):
        raise TypeError(f"{type(value).__name__} is an exception: raise it instead of returning it")
    raise TypeError(f"{type(value).__name__} is not a plain value, attrs class, dataclass, msgspec.Struct or pydantic model")


def is_of_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__get_pydantic_core_schema__") or str(kind.__module__).partition(".")[0] == "pydantic_core"


def _scalar_of_numpy(value: Any) -> Any:
    """Convert a numpy scalar to a number or bool. Return None for other objects and for scalars without a Python equivalent."""
    if getattr(getattr(value, "dtype", None), "kind", "") not in ("b", "i", "u", "f") or getattr(value, "shape", None) != ():
        return None
    made = value.item()
    return made if type(made) in (bool, int, float) else None


def writes_aliases(model: Any) -> bool:
    """Return True if a model is serialized by alias. As in FastAPI, this is the default unless the model configures it."""
    said = getattr(model, "model_config", {}).get("serialize_by_alias")
    return True if said is None else bool(said)


@lru_cache(256)
def _dumper(kind: type) -> Callable[..., Any]:
    from pydantic import TypeAdapter  # installed, because the class comes from pydantic

    return TypeAdapter(kind).dump_python


# -- the formats -------------------------------------------------------------------------------------------------------------


class JsonFormat:
    """Encodes values as JSON (RFC 8259) using msgspec. Attrs classes, dataclasses, datetimes, enums and UUIDs are supported."""

    content_type = "application/json"

    def __init__(self, depth: int = 128) -> None:
        self._depth = depth
        self._short = 2 * depth
        self._levels = min(depth, 200)
        self._encode = msgspec.json.Encoder(enc_hook=plain_form).encode
        self._decode = msgspec.json.Decoder().decode
        if native is not None and type(self) is JsonFormat:  # a subclass may override any method
            longest = min(self._short, sys.maxsize)
            self.encode = native.Twin((self._encode, self._check, self._refuse, None), (), longest, 0, 0, 0).encode  # type: ignore[method-assign]  # the same in C

    def encode(self, value: Any) -> bytes:
        try:
            data = self._encode(value)
        except Exception as error:  # TypeError, OverflowError, UnicodeEncodeError, RecursionError, or any error of a hook
            return self._refuse(value, error)
        # Most bodies contain none of these, and shorter JSON cannot be nested too deep. `partition` is faster than `find`.
        if len(data) > self._short or _T in data or _STAR in data or data.partition(b"null")[1]:
            return self._check(value, data)
        return data

    def _refuse(self, value: Any, error: Exception) -> NoReturn:
        raise _explain(value, error) from error

    def _check(self, value: Any, data: bytes) -> bytes:
        if _is_flat(value, self._levels):
            return data
        check_levels(data, self._depth)
        # msgspec silently writes NaN and Infinity as null.
        if data.find(b"null") >= 0 and _has_nan(value):
            _refuse(value, "$", _not_finite)
        if _T in data and _OFFSET in data.translate(_DIGITS):
            _refuse(value, "$", _odd_offset)
        if _STAR in data and MASKED in data:
            refuse_secrets(value)
        return data

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except (ValueError, RecursionError) as error:  # ValueError: msgspec's errors, and UnicodeDecodeError
            raise BadRequest(f"the body is not JSON: {error}") from error


class OctetsFormat:
    """Passes bytes through unchanged."""

    content_type = "application/octet-stream"

    def encode(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(memoryview(value))
        raise EncodeError(f"this body must be bytes, not {type(value).__name__}")

    def decode(self, data: bytes) -> Any:
        return bytes(data)


class TextFormat:
    """Encodes strings as UTF-8."""

    content_type = "text/plain"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise EncodeError(f"this body must be a string, not {type(value).__name__}")
        try:
            return str.encode(value)
        except UnicodeEncodeError as error:
            raise EncodeError(f"lone surrogate at character {error.start}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise BadRequest(f"the body is not UTF-8 at byte {error.start}") from error


def check_json(frame: bytes, depth: int = 128) -> None:
    """Validate a received JSON frame before it is parsed.

    Raises:
        ValueError: If the frame is not UTF-8, or is nested deeper than `depth`.
    """
    if not frame.isascii():
        str(frame, "utf-8")  # UnicodeDecodeError is a ValueError
    check_levels(frame, depth)


def check_levels(data: bytes, depth: int) -> None:
    """Raise `EncodeError` if JSON is nested deeper than `depth`. The exact depth is computed only for many brackets."""
    if len(data) > 2 * depth and not _is_shallow(data, depth):
        check_depth(data, depth)


def read_body(data: bytes, body_format: BodyFormat) -> Any:
    """Decode bytes that have not been validated. Raises `EncodeError` if they are not in this format."""
    try:
        if body_format is JSON:
            check_json(data)
        return body_format.decode(data)
    except EncodeError:
        raise
    except (BusError, ValueError, RecursionError) as error:
        why = getattr(error, "text", error)
        raise EncodeError(f"the body is not {body_format.content_type}, although its format says so: {why}") from error


_T, _STAR = b"T*"
"""Integers, because searching for a bytes object is seven times slower: CPython raises and discards an exception."""
_DIGITS = bytes.maketrans(b"123456789-", b"000000000+")
_OFFSET = b'0+00:00"'
"""Ending of a datetime with an offset other than UTC, after translation by `_DIGITS`. This is faster than a regular
expression."""
MASKED = b'"%b"' % MASK.encode()
"""A masked pydantic secret in JSON."""
_WITHOUT_NAN = frozenset({str, int, bool, bytes, type(None)})


def _is_flat_at_sight(value: Any, levels: int) -> bool:
    """Return True if a value and its items have plain types that need no further checks. The C version checks `levels` levels
    of items."""
    if type(value) is dict:
        return levels > 0 and _WITHOUT_NAN.issuperset(map(type, value)) and _WITHOUT_NAN.issuperset(map(type, value.values()))
    return type(value) in _WITHOUT_NAN


_is_flat: Callable[[Any, int], bool] = _is_flat_at_sight if native is None else native.is_flat


_OUTSIDE_OF_MARKS = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_MARKED_STRING = re.compile(rb'"[^"]*"')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_STEPS = bytes(1 if byte == ord("[") else 255 for byte in range(256))  # 255 is -1 in a signed byte
_PEELED = 8
"""Number of nesting levels to strip one by one before computing the sum. Few bodies are nested deeper, and each pass is cheaper
than the sum."""
_HOPS = 4096
"""Size in bytes above which searching for each bracket is cheaper than counting all of them."""


def _has_few_brackets(data: bytes, most: int) -> bool:
    """Return True if there are at most `most` opening brackets. Brackets in strings count too."""
    if len(data) < _HOPS:
        return data.count(b"[") + data.count(b"{") <= most
    count = 0
    for bracket in (b"[", b"{"):
        place = data.find(bracket)
        while place >= 0:
            count += 1
            if count > most:
                return False
            place = data.find(bracket, place + 1)
    return True


_is_shallow: Callable[[bytes, int], bool] = _has_few_brackets if native is None else native.is_shallow


def check_depth(data: bytes, limit: int, shown: int | None = None) -> None:
    """Check the exact depth, ignoring strings. This avoids Python loops because large, flat lists of objects are common.

    Args:
        data: The JSON.
        limit: Maximum nesting of the JSON.
        shown: Nesting of the value itself that corresponds to `limit`, if the format adds levels.

    Raises:
        EncodeError: If the JSON is nested deeper than `limit`.
    """
    if b"\\" in data:  # escaped backslashes first, so that the remaining ones escape quotes
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = data.translate(None, _OUTSIDE_OF_MARKS).replace(b'""', b"")  # drops strings without brackets
    if b'"' in marks:
        marks = _MARKED_STRING.sub(b"", marks)
    marks, depth = marks.translate(_ALIKE), 0
    while marks and depth < _PEELED and len(peeled := marks.replace(b"[]", b"")) < len(marks):
        marks, depth = peeled, depth + 1
    if depth + max(accumulate(array("b", marks.translate(_STEPS)), initial=0)) > limit:
        raise EncodeError(f"nested deeper than {shown or limit} levels (limit: depth)")


_LEVELS = 200
_MOST_PARTS, _FEW_PARTS = 20_000, 1_000
"""Limits on the search for the path of an invalid part. The path only helps with debugging, so an invalid body must not make
the search slow."""


def items_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type):
        return iter(())
    if isinstance(value, dict):
        return ((f"{path}.{key}", item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"{path}[{index}]", item) for index, item in enumerate(value))
    if attrs.has(type(value)):
        return ((f"{path}.{a.name}", getattr(value, a.name, None)) for a in attrs.fields(type(value)))
    if hasattr(value, "model_dump") and isinstance(value, Iterable):  # a pydantic model iterates over its fields
        return ((f"{path}.{name}", item) for name, item in value)
    names: Any = getattr(value, "__dataclass_fields__", None) or getattr(value, "__struct_fields__", ())
    return ((f"{path}.{name}", getattr(value, name, None)) for name in names)


def part_that_fails(value: Any, is_written: Callable[[Any], bool]) -> tuple[str, Any]:
    """Return the path and value of the innermost part that cannot be encoded, or the whole value after 20,000 leaf values."""
    count = 0
    for where, part in islice(_innermost(value, "$"), _MOST_PARTS):
        if not is_written(part):
            return where, part
        count += 1
    return _container_that_fails(value, is_written) if count < _FEW_PARTS else ("$", value)


def _innermost(value: Any, path: str, level: int = 0) -> Iterator[tuple[str, Any]]:
    alone = True
    for where, part in items_of(value, path) if level < _LEVELS else ():
        alone = False
        yield from _innermost(part, where, level + 1)
    if alone:
        yield path, value


def _container_that_fails(value: Any, is_written: Callable[[Any], bool]) -> tuple[str, Any]:
    """Find the container that cannot be encoded in a small value, by trying each level. All leaf values can be encoded."""
    path = "$"
    for _ in range(_LEVELS):
        for where, part in items_of(value, path):
            if not is_written(part):
                path, value = where, part
                break
        else:
            break
    return path, value


def _has_nan(value: Any) -> bool:
    """Return True if a value contains a number that JSON cannot represent. Bodies with a ``null`` can be large and rarely
    contain such a number, so the search goes level by level and doesn't track paths."""
    level: list[Any] = [[value]]
    while level:
        below = []
        for part in level:
            kind = type(part)
            items: Any = part.values() if kind is dict else part if kind is list else [item for _, item in items_of(part, "")]
            for item in items:
                if type(item) not in _WITHOUT_NAN:
                    if not isinstance(item, float):
                        below.append(item)
                    elif not math.isfinite(item):
                        return True
        level = below
    return False


def _refuse(value: Any, path: str, fault_of: Callable[[Any], str | None], level: int = 0) -> None:
    fault = fault_of(value)
    if fault is not None:
        raise EncodeError(fault, path)
    if level < 200:
        for key in value if isinstance(value, dict) else ():
            if (fault := fault_of(key)) is not None:
                raise EncodeError(f"a key: {fault}", path)
        for where, item in items_of(value, path):
            _refuse(item, where, fault_of, level + 1)


def _not_finite(value: Any) -> str | None:
    if not isinstance(value, float) or math.isfinite(value):
        return None
    return f"{float.__repr__(value)} is not a JSON number (send None or a string)"


def _odd_offset(value: Any) -> str | None:
    """Return an error message if a UTC offset has seconds. ISO 8601 cannot represent them, and rounding would change the
    time."""
    offset = value.utcoffset() if isinstance(value, datetime.datetime) else None
    if offset is None or not offset % _MINUTE:
        return None
    return f"the UTC offset {offset} has seconds, which text cannot represent: send value.astimezone(datetime.UTC)"


_MINUTE = datetime.timedelta(minutes=1)


def refuse_secrets(value: Any) -> None:
    """Raise `EncodeError` if a value contains a masked secret. Call this if the JSON contains pydantic's mask."""
    _refuse(value, "$", _hidden)


def _hidden(value: Any) -> str | None:
    if not hasattr(value, "get_secret_value"):
        return None
    remedy = "send the result of get_secret_value(), or use a field_serializer"
    return f"a {type(value).__name__} would arrive as {MASK!r}: {remedy}"


def _explain(value: Any, error: Exception) -> EncodeError:
    if isinstance(error, RecursionError):
        return EncodeError("nested too deeply, or contains itself", "$")
    try:
        path, part = part_that_fails(value, _is_json)
    except Exception:  # the object fails again when its parts are read
        path, part = "$", value
    return EncodeError(f"{type(part).__name__} cannot be written as JSON: {error}", path)


def _is_json(part: Any) -> bool:
    try:
        msgspec.json.encode(part, enc_hook=plain_form)
    except Exception:
        return False
    return True


JSON = JsonFormat()
OCTETS = OctetsFormat()
TEXT = TextFormat()
