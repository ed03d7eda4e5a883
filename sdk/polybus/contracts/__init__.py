"""Contracts: a `typing.Protocol` class names the methods that one program implements and others call.

``bus.client(Users, "user")`` gives an object with its methods, ``bus.implement(Users, UsersInDatabase(db), "user")`` answers
them. `method` and `notify` say of one method what its signature does not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from attrs import evolve, frozen

from .._validation import seconds, shown

__all__ = ["method", "notify"]


F = TypeVar("F", bound=Callable[..., Any])

_MARKS: Final = "__polybus_marks__"


@frozen
class Marks:
    """The words of the decorators on one method.

    Attributes:
        name: The last part of the subject, where it is not the name of the method.
        timeout: Seconds.
        notification: It has no answer.
        method: It has a `method` above it.
    """

    name: str | int | None = None
    timeout: float | None = None
    notification: bool = False
    method: bool = False

    @classmethod
    def of(cls, function: object) -> Marks:
        """Read what a function was marked with."""
        marks: Marks = getattr(function, _MARKS, _NONE)
        return marks


_NONE: Final = Marks()


def method(name: str | int | None = None, *, timeout: float | None = None) -> Callable[[F], F]:
    """Say of a method of a contract what its subject or its time is: ``@method("get.one", timeout=5)``

    Args:
        name: The part of the subject that follows the prefix, in place of the method's own name; a number, or a URI, is the
            whole subject.
        timeout: Seconds until `DeadlineExceeded`; 30 without it, and for a stream as long as it is read.

    Raises:
        TypeError: It decorates something else than a function or one that has it already, or is given something else than a
            name and a time.
        ValueError: A time that cannot be.
    """
    if name is not None and (isinstance(name, bool) or not isinstance(name, (str, int))):
        why = ": write @method() with its parentheses, or leave it out" if callable(name) else ""
        raise TypeError(f"@method({shown(name)}): a name, for example @method('get.one', timeout=5){why}")
    wait = None if timeout is None else seconds(timeout)

    def mark(function: F) -> F:
        if Marks.of(function).method:
            raise TypeError(f"{function.__name__} has @method(...) twice: write name and timeout into one")
        return _marked(function, "@method(...)", name=name, timeout=wait, method=True)

    return mark


def notify(function: F) -> F:
    """Say of a method of a contract that nobody waits for an answer: it is sent as `Bus.notify` does.

    Raises:
        TypeError: It decorates something else than a function, or one that has it already.
    """
    if Marks.of(function).notification:
        raise TypeError(f"{function.__name__} has @notify twice: leave one out")
    return _marked(function, "@notify", notification=True)


def _marked(function: F, by: str, **marks: Any) -> F:
    marked: Any = function
    if not inspect.isfunction(marked):
        raise TypeError(f"{by} stands directly above the `def` of a method, not above {shown(function)}")
    setattr(marked, _MARKS, evolve(Marks.of(marked), **marks))
    return function
