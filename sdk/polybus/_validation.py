"""Checks of arguments where they come in; an error names the argument, what was given and what is wanted.

A wrong type is a `TypeError`, a value that cannot be a `ValueError`, at the call and not later.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args
from urllib.parse import urlsplit

from attrs import fields

if TYPE_CHECKING:
    from attrs import Attribute

T = TypeVar("T")

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that begin a line, write over others or turn their direction around (CWE-117, CWE-150, Trojan Source)."""


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
        hint = (
            ": there is no request without a deadline; pass as many seconds as you can wait"
            if value is None and name == "timeout"
            else "; its total_seconds() is one"
            if hasattr(value, "total_seconds")
            else ""
        )
        raise TypeError(f"{name}={shown(value)}: a number of seconds, not {type(value).__name__}{hint}")
    if not value >= 0:
        raise ValueError(f"{name}={shown(value)}: a number of seconds, at least 0")
    if value == math.inf and not endless:
        raise ValueError(f"{name}={value}: a finite number of seconds, because everything ends")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}={shown(value)}: a number of seconds, at most {sys.float_info.max:.0e}") from None


def check_count(value: Any, name: str, least: int = 1, most: int | None = None) -> None:
    """Raise TypeError or ValueError for what is no number of things, so many or more, and at most so many."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={shown(value)}: a whole number, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={shown(value)}: at least {least}")
    if most is not None and value > most:
        raise ValueError(f"{name}={shown(value)}: at most {most}")


def at_least(least: int) -> Callable[[Any, Attribute[Any], Any], None]:
    """`check_count` for a field of an attrs class."""

    def check(_: Any, attribute: Attribute[Any], value: Any) -> None:
        check_count(value, attribute.name, least)

    return check


def more_than_no_time(_: Any, attribute: Attribute[Any], value: Any) -> None:
    """`seconds`, and not 0, for a field of an attrs class."""
    if seconds(value, attribute.name) == 0:
        raise ValueError(f"{attribute.name}={value}: more than 0 seconds")


def check_type(value: Any, kind: type, name: str, example: str) -> None:
    """Raise TypeError where a value is neither None nor of a type."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name}={shown(value)}: {kind.__name__}, not {type(value).__name__}; for example {example}")


def check_given(value: Any, kind: type, name: str, example: str) -> None:
    """Raise TypeError where a value is not of a type; None is not either."""
    if value is None:
        raise TypeError(f"{name}=None: {kind.__name__}, for example {example}")
    check_type(value, kind, name, example)


def check_callable(value: Any, name: str, form: str, takes: int, **named: Any) -> None:
    """Raise TypeError where a value is neither None nor can be called with that many arguments, and those that are named."""
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"{name}={shown(value)}: a function, {form}, not {type(value).__name__}")
    if inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):  # whose answer would be true, whatever it says
        raise TypeError(f"{name}={shown(value)}: a function with return, {form}, and it has yield")
    try:
        signature = inspect.signature(value)
    except ValueError:  # some of C do not say
        return
    try:
        signature.bind(*(None,) * takes, **named)
    except TypeError as error:
        raise TypeError(f"{name}={shown(value)}: a function, {form}, and it takes {signature}: {error}") from None


def names_known(example: str) -> Callable[[type[T]], type[T]]:
    """Let an attrs class name its nearest field in place of one that it does not have."""

    def decorate(kind: type[T]) -> type[T]:
        made: Any = kind
        init = made.__init__
        names = [attribute.alias for attribute in fields(made)]

        @functools.wraps(init)
        def checked(self: T, *args: Any, **given: Any) -> None:
            for name in given:
                if name not in names:
                    from difflib import get_close_matches

                    near = get_close_matches(name, names, 1)
                    hint = f"did you mean {near[0]}=?" if near else f"there are {', '.join(names)}; for example {example}"
                    raise TypeError(f"{kind.__name__} has no {name}=: {hint}")
            init(self, *args, **given)

        made.__init__ = checked
        return kind

    return decorate


def check_origins(origins: Iterable[str]) -> None:
    """Raise ValueError for what no browser sends as the origin of a page."""
    for origin in origins:
        parts = urlsplit(origin)
        if origin != "null" and (not parts.scheme or not parts.hostname or parts.path or parts.query):
            raise ValueError(f"origins: {origin!r} is no origin, write for example 'https://example.org', without a path")


def check_hosts(hosts: Iterable[str]) -> None:
    """Raise ValueError for what no ``Host`` header has."""
    for host in hosts:
        if not host or any(char in "/?#@\\" or char.isspace() for char in host):
            raise ValueError(f"hosts: {host!r} is no host, write for example 'example.org' or 'example.org:8443'")


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


def type_name(target: Any) -> str:
    """Name a type, for errors and logs: a class by its name, ``list[User]`` with what it is of."""
    return target.__name__ if isinstance(target, type) and not get_args(target) else shown(target)


def name_of(function: object) -> str:
    """Name a function, for errors and logs."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or shown(function)


def counted(count: int, thing: str) -> str:
    """So many things: one of them is no several."""
    return f"{count:,} {thing}{'' if count == 1 else 'es' if thing.endswith('ch') else 's'}"


def in_one_line(text: str) -> str:
    """A text that a peer may have written, for logs and terminals: control characters stand there as escapes."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}" if found[0] > "\xff" else repr(found[0])[1:-1], text)


def check_tls(tls: object, *, serves: bool = False) -> None:
    """Raise TypeError for what is no `ssl.SSLContext`, ValueError for one of the other side; without importing ssl, which not
    every platform has."""
    if tls is not None and not callable(getattr(tls, "wrap_bio", None)):
        raise TypeError(
            f"tls={shown(tls)}: an ssl.SSLContext, for example ssl.create_default_context(cafile=...), not {type(tls).__name__}"
        )
    side = getattr(getattr(tls, "protocol", None), "name", "")
    if serves and side == "PROTOCOL_TLS_CLIENT":
        raise ValueError(
            "tls= is a context for clients, and every connection would fail: a server needs "
            "ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) with its certificate, by load_cert_chain(cert, key)"
        )
    if not serves and side == "PROTOCOL_TLS_SERVER":
        raise ValueError("tls= is a context for servers: a client needs ssl.create_default_context(cafile=...)")
