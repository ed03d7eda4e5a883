"""Typed contracts between programs. A contract is a `typing.Protocol` class with methods that one program implements and others
call.

``bus.client(Users, "user")`` returns an object with the methods of the contract. ``bus.implement(Users, UsersInDatabase(db),
"user")`` handles calls to them. `method` and `notify` add details that a signature cannot express.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from .._validation import seconds, shown

__all__ = ["method", "notify"]


F = TypeVar("F", bound=Callable[..., Any])

_MARKS: Final = "__polybus_marks__"


class Marks(Struct, frozen=True):
    """Data that the decorators store on a method."""

    name: str | int | None = None  # Last part of the subject, if it differs from the name of the method
    timeout: float | None = None  # Seconds
    notification: bool = False  # True if the method has no answer
    method: bool = False  # True if the method is decorated with `method`

    @classmethod
    def of(cls, function: object) -> Marks:
        marks: Marks = getattr(function, _MARKS, _NONE)
        return marks


_NONE: Final = Marks()


def method(name: str | int | None = None, *, timeout: float | None = None) -> Callable[[F], F]:
    """Set the subject or timeout of a contract's method: ``@method("get.one", timeout=5)``

    Args:
        name: Part of the subject after the prefix, instead of the method's name. An integer or a URI is the whole subject.
        timeout: Seconds until `DeadlineExceeded`. The default is 30; a stream has no timeout by default.

    Raises:
        TypeError: If the decorated object is not a function or is decorated twice, or `name` or `timeout` has the wrong type.
        ValueError: If the timeout is negative, infinite or NaN.
    """
    if name is not None and (isinstance(name, bool) or not isinstance(name, (str, int))):
        why = ": write @method() with its parentheses, or leave it out" if callable(name) else ""
        raise TypeError(f"@method({shown(name)}): pass a name, for example @method('get.one', timeout=5){why}")
    wait = None if timeout is None else seconds(timeout)

    def mark(function: F) -> F:
        if Marks.of(function).method:
            raise TypeError(f"{function.__name__} has @method(...) twice: use one for name and timeout")
        return _marked(function, "@method(...)", name=name, timeout=wait, method=True)

    return mark


def notify(function: F) -> F:
    """Declare that a contract's method has no answer. Calls are sent as with `Bus.notify`.

    Raises:
        TypeError: If the decorated object is not a function, or is decorated twice.
    """
    if Marks.of(function).notification:
        raise TypeError(f"{function.__name__} has @notify twice: leave one out")
    return _marked(function, "@notify", notification=True)


def _marked(function: F, by: str, **marks: Any) -> F:
    marked: Any = function
    if not inspect.isfunction(marked):
        raise TypeError(f"{by} must be directly above the `def` of a method, not above {shown(function)}")
    setattr(marked, _MARKS, replace(Marks.of(marked), **marks))
    return function
