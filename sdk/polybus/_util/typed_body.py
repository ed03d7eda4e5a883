"""Converts decoded bodies to the declared type."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from operator import is_ as _is_same
from typing import Any, Final, Never, NoReturn, TypeVar, get_args, get_origin
from uuid import UUID

import attrs
import msgspec
import msgspec.inspect
from msgspec import Struct

from .._validation import in_one_line, shown
from ..body import JSON, OCTETS, plain_form
from ..errors import BadRequest
from ..message import Message
from .class_shapes import opened
from .pydantic_types import adapter_of, ambiguous, has_own

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("polybus")


class _Itself:
    """Cache key that is compared by identity, for unhashable types such as ``Annotated[int, {"unit": "m"}]``."""

    __slots__ = ("target",)

    def __init__(self, target: Any) -> None:
        self.target = target

    def __hash__(self) -> int:
        return id(self.target)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.target is self.target


def remembered(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache the results of a function of a type. The type may be unhashable."""
    by_hash: Callable[[Any], T] = lru_cache(1024)(make)
    by_identity: Callable[[_Itself], T] = lru_cache(1024)(lambda key: make(key.target))

    def made(target: Any) -> T:
        try:
            return by_hash(target)
        except TypeError:
            if has_hash(target):
                raise
        return by_identity(_Itself(target))

    return made


def has_hash(target: Any) -> bool:
    try:
        hash(target)
    except TypeError:
        return False
    return True


def convert(value: Any, target: Any) -> Any:
    """Convert and validate a decoded body, with pydantic if its type contains pydantic or annotated-types, else with msgspec.

    Raises:
        ValueError: If the value doesn't fit the type. The message names the path and the expected type.
        TypeError, NameError: If nothing can be decoded as the type; see `unreadable`.
    """
    if target is Any or (isinstance(value, enum.Enum) and type(value) is target):
        return value
    make = _reader(target).make
    try:
        return make(value)
    except ValueError:
        try:
            bare = _without_members(value)
        except RecursionError:  # the value contains itself
            bare = value
        if bare is value:
            raise
        return make(bare)


def _without_members(value: Any) -> Any:
    """Replace enum members with their values. Some protocols (J.REP) decode enums themselves, but msgspec expects values."""
    if isinstance(value, enum.Enum):
        return value.value
    if type(value) is dict:
        made: Any = {_without_members(name): _without_members(item) for name, item in value.items()}
        same = all(map(_is_same, made, value)) and all(map(_is_same, made.values(), value.values()))
    elif type(value) in (list, tuple, set, frozenset):
        made = type(value)(map(_without_members, value))
        same = all(map(_is_same, made, value))
    else:
        return value
    return value if same else made


def conforming(value: Any, target: Any) -> Any:
    """Validate a value against its annotation, and remove fields that the type doesn't have.

    pydantic models aren't validated again, because a model may not be able to decode its own encoded form. Types that cannot be
    decoded from bodies, such as protobuf classes, are checked by `isinstance`.

    Raises:
        ValueError, TypeError: If the value doesn't fit. The message names the path and the expected type.
    """
    return _conforming_to(target)(value)


def _make_conforming(target: Any) -> Callable[[Any], Any]:
    if target is Any or target is object:
        return lambda value: value
    if unreadable(target) is not None:
        return partial(_of_class, kind=target)
    if is_read_by_pydantic(target):
        narrow = adapter_of(target, narrows=True).validate_python
        return lambda value: narrow(opened(value), from_attributes=True)
    return partial(_reread, target=target)


_conforming_to: Final = remembered(_make_conforming)


def uncheckable(target: Any) -> str | None:
    """Return the reason why `conforming` can check only the class of an annotation. Returns None if it can check more."""
    if target in (object, NoReturn, Never):
        return None
    why = unreadable(target)
    if why is None and is_read_by_pydantic(target) and (union := ambiguous(target)) is not None:
        return f"which class of {union} an object becomes cannot be told: make them models, or Structs with tags"
    return why


def _of_class(value: Any, kind: Any) -> Any:
    if isinstance(kind, type) and not isinstance(value, kind):
        raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
    return value


def _reread(value: Any, target: Any) -> Any:
    try:
        plain = msgspec.to_builtins(value, builtin_types=_LEAVES, enc_hook=plain_form)
    except (TypeError, ValueError, RecursionError):  # an object that only has attributes, such as a database row
        return msgspec.convert(value, target, from_attributes=True, str_keys=True)
    return convert(plain, target)


def misfit(error: Exception) -> tuple[str, list[dict[str, str]]]:
    """Describe for the sender why a body is invalid. Messages of unexpected exceptions are logged but not included.

    Returns a short text, and for programs a list of errors with ``path`` (such as ``$.user.name``), ``text`` and ``type``.
    """
    found: Any = getattr(error, "errors", None)
    counted: Callable[[], int] | None = getattr(error, "error_count", None)
    if callable(found) and counted is not None:
        if (count := counted()) > _FEW:
            return f"{count} errors, too many to list", []
        said_by_pydantic: Any = found(include_url=False, include_context=False, include_input=False)
        faults = [_fault_of_pydantic(one) for one in said_by_pydantic[:_MOST]]
    elif isinstance(error, (ValueError, TypeError, BadRequest)):
        faults, count = [_fault_of_text(error)], 1
    else:
        logger.error(
            "validation of a body raised %s instead of ValueError or TypeError; the sender receives only this name",
            type(error).__name__,
            exc_info=error,
        )
        return f"validation raised {type(error).__name__}", []
    said = [f"{fault['text']} (at {fault['path']})" if fault["path"] != "$" else fault["text"] for fault in faults[:_TOLD]]
    more = f"; and {count - _TOLD} more" if count > _TOLD else ""
    return "; ".join(said) + more, faults


_LEAVES: Final = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
"""Types that some protocols transmit natively. Their values are left unchanged if the declared type allows it."""
_MOST: Final = 32
"""Maximum number of errors reported to the sender."""
_FEW: Final = 10_000
"""Maximum number of errors to get from pydantic. It returns all or none, and each takes some microseconds."""
_TOLD: Final = 3
"""Maximum number of errors in the error text."""
_LONGEST: Final = 500
"""Maximum length of a path or message. Both may contain names that the sender chose."""
_PLACE: Final = re.compile(r"(?P<text>.*) - at `(?P<path>[^`]*)`", re.DOTALL)
_CLASS: Final = re.compile(r"function-\w+\[(\w+)\(.*", re.DOTALL)
"""Name that pydantic gives to a member of a union that a function validates. The rest always matches, because the sender may
have chosen a name such as this."""
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]*)`")


def _fault_of_pydantic(found: Any) -> dict[str, str]:
    places = (_CLASS.sub(r"\1", place) if isinstance(place, str) else place for place in found["loc"])
    path = "$" + "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)
    return _fault(path, str(found["msg"]), str(found["type"]))


def _fault_of_text(error: Exception) -> dict[str, str]:
    text, path = str(error), "$"
    if place := _PLACE.fullmatch(text):
        text, path = place["text"], place["path"].removeprefix("key in ")
    if missing := _MISSING.fullmatch(text):
        return _fault(f"{path}.{missing['name']}", "Field required", "missing")
    if not isinstance(error, msgspec.ValidationError):
        return _fault(path, text, "value_error")
    return _fault(path, text, "wrong_type" if text.startswith("Expected `") and ", got `" in text else "invalid")


def _fault(path: str, text: str, kind: str) -> dict[str, str]:
    shorter = [part if len(part) <= _LONGEST else f"{part[:_LONGEST]}..." for part in (path, text)]
    return {"path": shorter[0], "text": shorter[1], "type": kind}


def convert_text(text: str, target: Any) -> Any:
    """Convert a subject token to the declared type, for example ``"7"`` to 7. Raises `ValueError` if it doesn't fit."""
    return _reader(target).of_text(text)


def unreadable(target: Any) -> str | None:
    """Return the reason why no body can be decoded as a type. Returns None if one can be, or if this is not known yet."""
    try:
        return _fault_of(target)
    except NameError:
        return None  # may be defined later in its module
    except Exception as error:  # any error of the libraries
        return str(error) or type(error).__name__


def _problem_of(target: Any) -> str | None:
    if target is Message or get_origin(target) is Message:
        return "name the type of its body"
    if target is Any:
        return None
    if is_read_by_pydantic(target):
        _reader(target)  # raises `TypeError`
        return None
    made = _unknown_class(target)
    if made is None:
        return None
    return (
        f"no decoder makes a {made.__qualname__}: a body is an attrs class, a dataclass, a TypedDict or a model, "
        "and Any takes what an adapter of your own makes"
    )


_fault_of: Final = remembered(_problem_of)


def is_read_by_pydantic(target: Any) -> bool:
    """Return True if pydantic decodes a type, because it contains pydantic types or msgspec doesn't support it.

    Raises `NameError` and `TypeError` as `has_own` does.
    """
    if has_own(target):
        return True
    try:
        if _unknown_class(target, left_out=False) is None:
            return False
    except NameError:
        raise
    except Exception:  # msgspec doesn't support the type
        pass
    try:
        return bool(adapter_of(target).pydantic_complete)
    except Exception:  # any error of pydantic, or it is not installed
        return False


def _unknown_class(target: Any, *, left_out: bool = True) -> type | None:
    """Return a class in a type that msgspec cannot create, or None. With `left_out`, optional fields are not searched.

    Raises `NameError` for an undefined name in an annotation, and any exception if msgspec doesn't support the type.
    """
    msgspec.json.Decoder(target)
    found = _own_classes(msgspec.inspect.type_info(target), [], left_out)
    return next((kind for kind in found if not _is_made(kind)), None)


def _own_classes(info: Any, seen: list[Any], left_out: bool) -> Iterator[type]:
    if any(info is one for one in seen):
        return
    seen.append(info)
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    for name in ("item_type", "item_types", "key_type", "value_type", "types"):
        inner = getattr(info, name, ())
        for one in inner if isinstance(inner, tuple) else (inner,):
            yield from _own_classes(one, seen, left_out)
    cls = getattr(info, "cls", None)
    converted = {one.name for one in attrs.fields(cls) if one.converter} if isinstance(cls, type) and attrs.has(cls) else ()
    for field in getattr(info, "fields", ()):
        if (field.required or not left_out) and field.name not in converted:
            yield from _own_classes(field.type, seen, left_out)


def _is_made(kind: type) -> bool:
    """Return True if a body can be an instance of a class that msgspec doesn't know."""
    if hasattr(kind, "DESCRIPTOR") or str(kind.__module__).startswith("polybus."):
        return True
    try:
        return any(isinstance(value, kind) for value in _BODIES)
    except TypeError:  # a protocol
        return False


_BODIES: Final[tuple[Any, ...]] = (None, True, 1, 1.0, "", b"", [], {})
"""A value of each type that decoders produce."""


def body_of(target: Any) -> Any:
    """Return the body type of ``Message`` or ``Message[User]``. Returns None for other types."""
    if target is Message:
        return Any
    return next(iter(get_args(target)), Any) if get_origin(target) is Message else None


def check_returns(returns: Any, name: str = "returns", *, whole: bool = False) -> None:
    """Raise `TypeError` if no body can be decoded as a ``returns=`` argument. If `whole` is set, it may be a `Message`."""
    if isinstance(returns, str):
        raise TypeError(f"{name}={shown(returns)} must be the type itself, for example {name}=dict, not its name as a string")
    why = unreadable(returns)
    if why is not None and whole and (body := body_of(returns)) is not None:
        why = unreadable(body)
    if why is not None:
        raise TypeError(f"{name}={shown(returns)} must be a type, for example {name}=dict; {in_one_line(why[:200])}")


def typed_body(message: Message, target: Any) -> Any:
    """Return the body of a message converted to a type. Raises `ValueError` or `BadRequest` if the body doesn't fit."""
    if target is Any:
        return message.body
    reader = _reader(target)
    kind = reader.plain
    if kind is not None:
        value = message.body
        if type(value) is kind:
            return value  # decoded as this type already
        if kind is bytes and value is None and message.raw is None and message.format is OCTETS:
            return b""  # an empty payload of a wire whose payloads are bytes
    elif reader.decode is not None and message.format is JSON and message.raw is not None:
        return reader.decode(message.raw)
    return convert(message.body, target)


_PLAIN_TYPES: Final = (dict, dict[str, Any], list, list[Any], str, int, bool, bytes)
"""Types that decoders produce, with nothing to convert. Decoders of binary bodies produce bytes."""


class Reader(Struct, frozen=True, eq=False):
    """Functions that convert decoded bodies, strings that may represent numbers, and JSON to a type."""

    make: Callable[[Any], Any]
    of_text: Callable[[str], Any]
    plain: type | None = None
    """The type itself, if decoders produce it."""
    decode: Callable[[bytes], Any] | None = None
    """Decodes JSON directly, if msgspec supports that."""


def _make_reader(target: Any) -> Reader:
    if is_read_by_pydantic(target):
        read = adapter_of(target).validate_python
        return Reader(read, read)
    make = partial(msgspec.convert, type=target, str_keys=True)
    of_text = partial(msgspec.convert, type=target, strict=False)
    if target in _PLAIN_TYPES:
        return Reader(make, of_text, get_origin(target) or target)
    try:
        return Reader(make, of_text, None, msgspec.json.Decoder(target).decode)
    except TypeError:  # for example dictionary keys that JSON doesn't allow but other formats do
        return Reader(make, of_text)


_reader: Final = remembered(_make_reader)
