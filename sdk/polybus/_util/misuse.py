"""Helpful errors for unknown arguments, context managers that aren't entered, and awaitables that aren't awaited."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def explains(called: str, keywords: Mapping[str, str], *, most: int | None = None, positional: str = "") -> Callable[[F], F]:
    """Decorate a function so that unknown arguments raise a `TypeError` with advice.

    Args:
        called: Name of the function.
        keywords: Advice by unknown keyword.
        most: Maximum number of positional arguments, including ``self``, or None if you give no advice for more.
        positional: Advice for more positional arguments. ``{0!r}`` stands for the first of them.
    """

    def decorate(function: F) -> F:
        code = function.__code__  # `inspect.signature` would slow the import
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for keyword in kwargs:
                if keyword in keywords:
                    raise TypeError(f"{called}() has no {keyword}=: {keywords[keyword]}")
                if keyword not in known:
                    raise TypeError(f"{called}() has no {keyword}=: {_meant(keyword, known)}")
            if most is not None and len(args) > most:
                raise TypeError(f"{called}() {positional.format(*args[most:])}")
            return function(*args, **kwargs)

        made: Any = call
        return made  # type: ignore[no-any-return]  # so that type checkers see the original

    return decorate


def _meant(keyword: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    names = [name for name in known if name not in ("self", "target")]
    near = get_close_matches(keyword, names, n=1)
    return f"did you mean {near[0]}=?" if near else f"there are {', '.join(names)}"


BUS: Final[Mapping[str, str]] = {
    "auth": "authenticate= says who a peer is, authorize= what it may do",
    "url": "a client is polybus.connect(url), a server bus.serve(url)",
    "name": "a bus has no name; Cluster(name=...) is that of a cluster",
    "timeout": "each request has a timeout= of its own",
    "middleware": "bus.use(middleware)",
}
HANDLE: Final[Mapping[str, str]] = {
    "durable": "bus.on(subject, durable=...) keeps publications; a request has somebody who waits for its answer",
    "group": "handlers of a subject share its requests already; group= is of bus.on",
    "concurrency": "requests run at once, running= says how many; concurrency= is of bus.on",
    "timeout": "each request has a timeout= of its own, which its asker gives",
    "queue": "requests wait by Limits(waiting=...); queue= is of bus.on",
    "when_full": "requests wait by Limits(waiting=...); when_full= is of bus.on",
}
CONNECT: Final[Mapping[str, str]] = {
    "timeout": "wait= is how long the first connect is retried, limits=Limits(connect_timeout=...) how long one attempt takes; "
    "each request has a timeout= of its own",
    "url": "the URL is the first argument, connect('ubre+ws://127.0.0.1:8000/bus')",
    "ssl": "tls= takes the ssl.SSLContext",
    "token": "headers={'authorization': f'Bearer {token}'}, or a function that gives them before every attempt",
    "reconnect": "links come back by themselves; backoff=Backoff(attempts=...) says how",
    "retry": "wait= is how long the first connect is retried, backoff=Backoff(...) how a link comes back",
}
SERVE: Final[Mapping[str, str]] = {
    "host": "the address is one URL, serve('ubre+ws://127.0.0.1:8000/bus')",
    "port": "the address is one URL, serve('ubre+ws://127.0.0.1:8000/bus')",
    "ssl": "tls= takes the ssl.SSLContext",
    "authenticate": "it belongs to the bus, Bus(authenticate=...)",
    "path": "the path is part of the URL, serve('ubre+ws://127.0.0.1:8000/bus')",
}


T = TypeVar("T")
_OPERATORS: Final = "add radd sub rsub mul rmul truediv rtruediv lt le gt ge contains len int float index".split()


def entered_first(example: str) -> Callable[[type[T]], type[T]]:
    """Decorate an async context manager so that any other use raises a `TypeError` with an example."""

    def decorate(kind: type[T]) -> type[T]:
        made: Any = never_without_async(example)(kind)
        made.__aiter__ = made.__enter__
        made.__getattr__ = _names_of_what_it_gives(kind, f"this is an async context manager, enter it: `{example}`")
        return kind

    return decorate


def never_without_async(example: str) -> Callable[[type[T]], type[T]]:
    """Decorate an async context manager that is also an iterator, so that ``with`` and ``await`` raise a `TypeError`."""

    def decorate(kind: type[T]) -> type[T]:
        def refuse(_: Any) -> NoReturn:
            raise TypeError(f"this is an async context manager, enter it: `{example}`")

        made: Any = kind  # set dynamically, so that type checkers don't see these methods
        made.__await__, made.__enter__, made.__exit__ = refuse, refuse, lambda *_: None
        return kind

    return decorate


def blocking_entered_first(example: str) -> Callable[[type[T]], type[T]]:
    """Decorate a blocking context manager so that access to its attributes raises an `AttributeError` with an example."""

    def decorate(kind: type[T]) -> type[T]:
        made: Any = kind
        made.__getattr__ = _names_of_what_it_gives(kind, f"this is a context manager, enter it: `{example}`")
        return kind

    return decorate


def _names_of_what_it_gives(kind: type[Any], title: str) -> Callable[[Any, str], NoReturn]:
    def missing(_: Any, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"{name!r} exists after entering: {title}")

    return missing


def awaited_first(kind: type[T]) -> type[T]:
    """Decorate an awaitable so that using it in place of its result raises an error."""
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
    # Without `__bool__`, `if bus.request("user.may_enter"):` would admit everyone.
    made.__getitem__, made.__iter__, made.__bool__, made.__getattr__ = refuse, refuse, refuse, missing
    made.__aiter__, made.__aenter__, made.__aexit__, made.__copy__ = refuse, refuse, refuse, refuse
    return kind
