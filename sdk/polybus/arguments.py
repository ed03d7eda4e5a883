"""What callers pass in: checked where it comes in, with an error that names the argument, what was given and what is wanted.

A wrong type is a `TypeError`, a value that cannot be a `ValueError`, at the call and not later.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["check_callable", "check_count", "check_type", "seconds", "shown", "texts", "without_password"]

_PASSWORD = re.compile(r"(://[^\s/?#:@]*):[^\s/?#]*@")


def seconds(value: Any, name: str = "timeout", *, endless: bool = False) -> float:
    """A time in seconds.

    Args:
        value: What was passed.
        name: Of the argument.
        endless: Whether infinity will do.

    Raises:
        TypeError: Not a number; None and bool are none.
        ValueError: Negative, NaN, or infinite where everything has to end.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = ": there is no request without a deadline; pass as many seconds as you can wait" if value is None else ""
        raise TypeError(f"{name}={shown(value)}: a number of seconds, not {type(value).__name__}{hint}")
    if not value >= 0:
        raise ValueError(f"{name}={shown(value)}: a number of seconds, at least 0")
    if value == math.inf and not endless:
        raise ValueError(f"{name}={value}: a finite number of seconds, because everything ends")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}={shown(value)}: a number of seconds, at most {sys.float_info.max:.0e}") from None


def check_count(value: Any, name: str) -> None:
    """Raise TypeError or ValueError for what is no number of things, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={shown(value)}: a whole number, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}={value}: at least 1")


def check_type(value: Any, kind: type, name: str, example: str) -> None:
    """Raise TypeError where a value is neither None nor of a type."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name}={shown(value)}: {kind.__name__}, not {type(value).__name__}; for example {example}")


def check_callable(value: Any, name: str, form: str) -> None:
    """Raise TypeError where a value is neither None nor can be called."""
    if value is not None and not callable(value):
        raise TypeError(f"{name}={shown(value)}: a function, {form}, not {type(value).__name__}")


def texts(value: Any, name: str, example: str) -> tuple[str, ...]:
    """Several texts, or one.

    Raises:
        TypeError: Something else.
    """
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        several = tuple(value)
        if all(isinstance(one, str) for one in several):
            return several
    raise TypeError(f"{name}={shown(value)}: texts, for example {name}=[{example!r}]")


def shown(value: Any) -> str:
    """A value in an error: short, whatever its repr does."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def without_password(text: str) -> str:
    """A text for people: in each URL ``user:***@`` stands for user and password."""
    return _PASSWORD.sub(r"\1:***@", text)
