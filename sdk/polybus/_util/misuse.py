"""Advice for unknown arguments, and errors for context managers that aren't entered and awaitables that aren't awaited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

BUS: Final[Mapping[str, str]] = {
    "auth": "authenticate= identifies a peer, and authorize= decides what it may do",
    "url": "a client calls polybus.connect(url), a server bus.serve(url)",
    "name": "a bus does not need a name; to name a cluster, pass cluster=Cluster(name=...)",
    "timeout": "pass timeout= to each request",
    "middleware": "call bus.use(middleware)",
}
HANDLE: Final[Mapping[str, str]] = {
    "durable": "only publications can be stored: use bus.on(subject, durable=...)",
    "group": "each request already goes to only one handler; group= is an option of bus.on",
    "concurrency": "running= limits how many requests run at once; concurrency= is an option of bus.on",
    "timeout": "the caller sets the timeout= of each request",
    "queue": "Limits(waiting=...) limits how many requests wait; queue= is an option of bus.on",
    "when_full": "Limits(waiting=...) limits how many requests wait; when_full= is an option of bus.on",
}
CONNECT: Final[Mapping[str, str]] = {
    "timeout": "wait= sets how long to retry the first attempt, limits=Limits(connect_timeout=...) how long an attempt "
    "may take, and timeout= of request() how long to wait for an answer",
    "url": "the URL is the first argument, connect('ubre+ws://127.0.0.1:8000/bus')",
    "ssl": "pass the ssl.SSLContext as tls=",
    "token": "pass headers={'authorization': f'Bearer {token}'}, or a function that returns them for each attempt",
    "reconnect": "links reconnect on their own; to change how, pass backoff=Backoff(attempts=...)",
    "retry": "wait= sets how long to retry the first attempt, backoff=Backoff(...) how a link reconnects",
}
SERVE: Final[Mapping[str, str]] = {
    "host": "the address is one URL, serve('ubre+ws://127.0.0.1:8000/bus')",
    "port": "the address is one URL, serve('ubre+ws://127.0.0.1:8000/bus')",
    "ssl": "pass the ssl.SSLContext as tls=",
    "authenticate": "pass it to the bus: Bus(authenticate=...)",
    "path": "the path is part of the URL, serve('ubre+ws://127.0.0.1:8000/bus')",
}


T = TypeVar("T")
_OPERATORS: Final = "add radd sub rsub mul rmul truediv rtruediv lt le gt ge contains len int float index".split()
_INSIDE: Final = "{0!r} is available only inside the block"


def entered_first(example: str) -> Callable[[type[T]], type[T]]:
    """Decorate an async context manager so that any other use raises a `TypeError` with an example."""

    def decorate(kind: type[T]) -> type[T]:
        made: Any = never_without_async(example)(kind)
        made.__aiter__ = made.__enter__
        made.__getattr__ = _unknown(kind, f"{_INSIDE}: this is an async context manager, enter it: `{example}`")
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
        made.__getattr__ = _unknown(kind, f"{_INSIDE}: this is a context manager, enter it: `{example}`")
        return kind

    return decorate


def _unknown(kind: type[Any], text: str) -> Callable[[Any, str], NoReturn]:
    """Return a ``__getattr__`` that raises `text`, with the name in place of ``{0!r}``, or a plain error for private names."""

    def missing(_: Any, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        raise AttributeError(text.format(name))

    return missing


def awaited_first(kind: type[T]) -> type[T]:
    """Decorate an awaitable so that using it in place of its result raises an error."""
    made: Any = kind
    title = "await it for the answer; reply.wait() gives a coroutine, for tasks and task groups"

    def refuse(*_: Any) -> NoReturn:
        raise TypeError(f"this is a Reply: {title}")

    for operator in _OPERATORS:
        setattr(made, f"__{operator}__", refuse)
    # Without `__bool__`, `if bus.request("user.may_enter"):` would admit everyone.
    made.__getitem__, made.__iter__, made.__bool__ = refuse, refuse, refuse
    made.__getattr__ = _unknown(kind, f"a Reply has no {{0!r}}: {title}")
    made.__aiter__, made.__aenter__, made.__aexit__, made.__copy__ = refuse, refuse, refuse, refuse
    return kind
