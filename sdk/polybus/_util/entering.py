"""Words for the usual mistakes with what is to be entered, or to be awaited: to use it as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")
_OPERATORS: Final = "add radd sub rsub mul rmul truediv rtruediv lt le gt ge contains len int float index".split()


def entered_first(example: str) -> Callable[[type[T]], type[T]]:
    """Let a class of async context managers say how it is used, wherever it is taken for something else.

    Args:
        example: The right line: ``async with connect(url) as bus:``
    """

    def decorate(kind: type[T]) -> type[T]:
        made: Any = kind
        title = f"this is an async context manager, enter it: `{example}`"

        def refuse(_: Any) -> NoReturn:
            raise TypeError(title)

        # Set from outside, so that type checkers know of none of them.
        made.__await__, made.__aiter__, made.__enter__ = refuse, refuse, refuse
        made.__getattr__ = _names_of_what_it_gives(kind, title)
        made.__exit__ = lambda *_: None
        return kind

    return decorate


def never_without_async(example: str) -> Callable[[type[T]], type[T]]:
    """The same for a class that is iterated over too: ``with`` and ``await`` are always a mistake."""

    def decorate(kind: type[T]) -> type[T]:
        def refuse(_: Any) -> NoReturn:
            raise TypeError(f"this is an async context manager, enter it: `{example}`")

        made: Any = kind
        made.__await__, made.__enter__, made.__exit__ = refuse, refuse, lambda *_: None
        return kind

    return decorate


def blocking_entered_first(example: str) -> Callable[[type[T]], type[T]]:
    """The same for a class of context managers that block: ``with bus.serve(url) as listener:``"""

    def decorate(kind: type[T]) -> type[T]:
        made: Any = kind
        made.__getattr__ = _names_of_what_it_gives(kind, f"this is a context manager, enter it: `{example}`")
        return kind

    return decorate


def _names_of_what_it_gives(kind: type[Any], title: str) -> Callable[[Any, str], NoReturn]:
    def missing(_: Any, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"{name!r} is a name of what it gives: {title}")

    return missing


def awaited_first(kind: type[T]) -> type[T]:
    """Let a class of awaitables say so where one is used in place of what it gives."""
    made: Any = kind
    title = "await it for the answer; reply.wait() gives a coroutine, for tasks and task groups"

    def refuse(*_: Any) -> NoReturn:
        raise TypeError(f"this is a Reply: {title}")

    def missing(_: Any, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"a Reply has no {name!r}: {title}")

    for operator in _OPERATORS:
        setattr(made, f"__{operator}__", refuse)
    # `__bool__`: otherwise `if bus.request("user.may_enter"):` lets everybody in.
    made.__getitem__, made.__iter__, made.__bool__, made.__getattr__ = refuse, refuse, refuse, missing
    made.__aiter__, made.__aenter__, made.__aexit__ = refuse, refuse, refuse
    return kind
