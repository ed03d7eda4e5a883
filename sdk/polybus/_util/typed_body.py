"""Conversion of decoded bodies to the type that is wanted."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import lru_cache
from operator import is_ as _is_same
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from ..body import JSON
from ..errors import BadRequest

if TYPE_CHECKING:
    from ..message import Message


def convert(value: Any, target: Any) -> Any:
    """Convert a decoded body to the wanted type.

    attrs, dataclasses, msgspec structs, TypedDict, NamedTuple and all they contain are made by msgspec; pydantic models, where
    pydantic is installed, by pydantic.

    Raises:
        ValueError: It does not fit; the text names the path and what was expected.
    """
    if target is Any or (isinstance(value, enum.Enum) and type(value) is target):
        return value
    validate = _pydantic(target)
    if validate is not None:
        return validate(value)
    try:
        return msgspec.convert(value, target, str_keys=True)
    except msgspec.ValidationError:
        try:
            bare = _without_members(value)
        except RecursionError:  # it contains itself
            bare = value
        if bare is value:
            raise
        return msgspec.convert(bare, target, str_keys=True)


def _without_members(value: Any) -> Any:
    """Put values in place of members of enums: a wire may know these as such (J.REP), and msgspec makes them anew."""
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


def misfit(error: Exception) -> str:
    """Explain to its sender why a body does not fit: in the words of a check, but without those of an unexpected failure."""
    told = isinstance(error, (ValueError, TypeError, BadRequest))
    return str(error) if told else f"a check of it ended in {type(error).__name__}"


def convert_text(text: str, target: Any) -> Any:
    """Convert a token of a subject to the wanted type: ``"7"`` is the number 7 where a number is wanted.

    Raises:
        ValueError: It does not fit; the text says what was expected.
    """
    return msgspec.convert(text, target, strict=False)


def unreadable(target: Any) -> str | None:
    """Explain why no body can ever be read as a type; None where it can (or where only the first body will show)."""
    try:
        _cached_reader(target)
    except TypeError as error:
        return str(error)
    except Exception:
        return None  # a name that is defined later in its module
    return None


def _pydantic(target: Any) -> Callable[[Any], Any] | None:
    """Find the function that makes a pydantic model, or a type that contains one; None where msgspec makes it."""
    validate: Callable[[Any], Any] | None = getattr(target, "model_validate", None)
    if validate is None and get_args(target) and _contains_model(target):
        validate = _adapter(target)
    return validate


def _contains_model(target: Any) -> bool:
    return hasattr(target, "model_validate") or any(map(_contains_model, get_args(target)))


@lru_cache(256)
def _adapter(target: Any) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter  # it is there: the type contains one of its models

    return TypeAdapter(target).validate_python


def typed_body(message: Message, target: Any) -> Any:
    """Convert the body of a message to the wanted type, straight from its bytes where they are JSON.

    Raises:
        ValueError, BadRequest: It does not fit; the text names the path and what was expected.
    """
    if target is Any:
        return message.body
    kind, decode = _reader(target)
    if kind is not None:
        value = message.body
        if type(value) is kind:
            return value  # what JSON gives already
    elif decode is not None and message.format is JSON and message.raw is not None:
        return decode(message.raw)
    return convert(message.body, target)


# As they come out of a decoder, with nothing in them to convert.
_PLAIN_TYPES: tuple[tuple[Any, type], ...] = (
    (dict, dict),
    (dict[str, Any], dict),
    (list, list),
    (list[Any], list),
    (str, str),
    (int, int),
    (bool, bool),
    (bytes, bytes),  # of wires that carry bytes as they are
)


def _reader(target: Any) -> tuple[type | None, Callable[[bytes], Any] | None]:
    """Find the reader of a type: the plain type that it is, or msgspec's decoder; neither where another library reads it."""
    try:
        return _cached_reader(target)
    except TypeError:  # not hashable, or not a type that msgspec knows: `convert` says which
        return None, None


@lru_cache(1024)
def _cached_reader(target: Any) -> tuple[type | None, Callable[[bytes], Any] | None]:
    for plain, kind in _PLAIN_TYPES:
        if target == plain:
            return kind, None
    if _contains_model(target):
        return None, None
    return None, msgspec.json.Decoder(target).decode
