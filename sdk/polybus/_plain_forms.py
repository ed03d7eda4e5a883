"""Built-in equivalents for objects that no protocol can write: instances of subclasses, and values of numpy and pydantic."""

from __future__ import annotations

import datetime
import decimal
import inspect
import os
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

MASK: Final = "**********"
"""The text that pydantic shows instead of a secret."""
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
"""Conversions of the built-in types, so that an overridden ``str()`` or ``repr()`` of a subclass never affects a frame."""
_OF_TEXT: Final = ("ipaddress", "fractions", "zoneinfo")
"""Modules whose classes are written as strings."""
_NANOSECONDS: Final = ("nanosecond", "nanoseconds")
_SCALARS: Final = (str, int, float)


def scalar_form(value: Any) -> Any:
    """Convert an instance of a subclass or of numpy to a string or number. Returns any other object unchanged."""
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
    """Return the value to write for an object: its built-in equivalent, or the JSON form that its library defines.

    Raises:
        TypeError: The object has no such form.
    """
    if isinstance(value, type):
        raise TypeError(f"{value.__name__} is a class: one of its objects is meant")
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json", by_alias=writes_aliases(type(value)))
    for kind, exact in _EXACT.items():
        if isinstance(value, kind):
            if any(getattr(value, name, 0) for name in _NANOSECONDS):
                raise TypeError(f"{type(value).__name__} with nanoseconds: a {kind.__name__} has microseconds, round it first")
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
        raise TypeError(f"{type(value).__name__} has no JSON form: a missing await?")
    if isinstance(value, BaseException):
        raise TypeError(f"{type(value).__name__} has no JSON form: raise it, errors are not returned")
    raise TypeError(
        f"{type(value).__name__} has no JSON form (plain values, attrs classes, dataclasses, msgspec.Structs, models have one)"
    )


def is_of_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__get_pydantic_core_schema__") or str(kind.__module__).partition(".")[0] == "pydantic_core"


def _scalar_of_numpy(value: Any) -> Any:
    """Return the number or bool for a numpy scalar; None for other objects, and for numbers too large for Python types."""
    if getattr(getattr(value, "dtype", None), "kind", "") not in ("b", "i", "u", "f") or getattr(value, "shape", None) != ():
        return None
    made = value.item()
    return made if type(made) in (bool, int, float) else None


def writes_aliases(model: Any) -> bool:
    """True if a model is written with its aliases. That is the default of FastAPI, unless the model configures it."""
    said = getattr(model, "model_config", {}).get("serialize_by_alias")
    return True if said is None else bool(said)


@lru_cache(256)
def _dumper(kind: type) -> Callable[..., Any]:
    from pydantic import TypeAdapter  # installed: the class is one of its own

    return TypeAdapter(kind).dump_python
