"""Argument checks. Each error names the argument, the value, and the expected form.

A wrong type raises `TypeError`. An invalid value raises `ValueError`.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from attrs import Attribute

F = TypeVar("F", bound=Callable[..., Any])

_CONTROLS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)
"""Invisible characters, and characters that break lines, overwrite text or change its direction (CWE-117, CWE-150, Trojan
Source)."""


def seconds(value: Any, name: str = "timeout", *, endless: bool = False) -> float:
    """Return a number of seconds as a float. Raises `TypeError` for other types (including None and bools), and `ValueError` if
    the number is negative, NaN or, without `endless`, infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = (
            ": every request has a deadline; pass the longest time that you can wait"
            if value is None and name == "timeout"
            else "; pass its total_seconds()"
            if hasattr(value, "total_seconds")
            else ""
        )
        raise TypeError(f"{name}={shown(value)} must be a number of seconds, not {type(value).__name__}{hint}")
    if not value >= 0:
        raise ValueError(f"{name}={shown(value)} must be at least 0 seconds")
    if value == math.inf and not endless:
        raise ValueError(f"{name}={shown(value)} must be a finite number of seconds, because every wait must end")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}={shown(value)} must be a number of seconds of at most {sys.float_info.max:.0e}") from None


def check_count(value: Any, name: str, least: int = 1, most: int | None = None) -> None:
    """Raise `TypeError` or `ValueError` unless `value` is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={shown(value)} must be an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name}={shown(value)} must be at least {least}")
    if most is not None and value > most:
        raise ValueError(f"{name}={shown(value)} must be at most {most}")


def at_least(least: int, most: int | None = None) -> Callable[[Any, Attribute[Any], Any], None]:
    def check(_: Any, attribute: Attribute[Any], value: Any) -> None:
        check_count(value, attribute.name, least, most)

    return check


def more_than_no_time(_: Any, attribute: Attribute[Any], value: Any) -> None:
    """attrs validator for a positive number of seconds."""
    if seconds(value, attribute.name) == 0:
        raise ValueError(f"{attribute.name}={shown(value)} must be more than 0 seconds")


def yes_or_no(_: Any, attribute: Attribute[Any], value: object) -> None:
    check_given(value, bool, attribute.name, f"{attribute.name}=True")


def check_type(value: Any, kind: type, name: str, example: str) -> None:
    if value is not None:
        check_given(value, kind, name, example)


def check_given(value: Any, kind: type, name: str, example: str) -> None:
    """Like `check_type`, but reject None."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}={shown(value)} must be {kind.__name__}, not {type(value).__name__}; for example {example}")


def check_choice(value: Any, choices: Iterable[Any], name: str) -> None:
    if value not in tuple(choices):  # in a dict, a list would not be hashable
        raise ValueError(f"{name}={shown(value)} must be one of {', '.join(map(str, choices))}")


def check_callable(value: Any, name: str, form: str, takes: int, **named: Any) -> None:
    """Raise `TypeError` unless `value` is None or a function that accepts `takes` positional arguments and the `named` ones."""
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"{name}={shown(value)} must be a function, {form}, not {type(value).__name__}")
    if inspect.isgeneratorfunction(value) or inspect.isasyncgenfunction(value):  # the generator it returns would always be true
        raise TypeError(f"{name}={shown(value)} must be a function that returns, {form}, but it has yield")
    try:
        signature = inspect.signature(value)
    except ValueError:  # some C functions have no signature
        return
    try:
        signature.bind(*(None,) * takes, **named)
    except TypeError as error:
        raise TypeError(f"{name}={shown(value)} must be a function, {form}, but it takes {signature}: {error}") from None


def explains(
    called: str, keywords: Mapping[str, str], *, example: str = "", most: int | None = None, positional: str = ""
) -> Callable[[F], F]:
    """Decorate the function `called` so that unknown arguments raise a `TypeError` with advice.

    `keywords` has the advice for particular keywords. For any other, it is the most similar known one or, if none is similar,
    all of them and `example`. With `most`, which counts ``self``, `positional` is the advice for additional positional
    arguments. The first additional argument takes the place of ``{0!r}`` in it.
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
                    raise TypeError(f"{called}() has no {keyword}=: {_meant(keyword, known, example)}")
            if most is not None and len(args) > most:
                raise TypeError(f"{called}() {positional.format(*args[most:])}")
            return function(*args, **kwargs)

        made: Any = call
        return made  # type: ignore[no-any-return]  # so that type checkers see the original

    return decorate


def _meant(keyword: str, known: Sequence[str], example: str) -> str:
    from difflib import get_close_matches

    names = [name for name in known if name not in ("self", "target")]
    near = get_close_matches(keyword, names, n=1)
    if near:
        return f"did you mean {near[0]}=?"
    return f"there are {', '.join(names)}" + (f"; for example {example}" if example else "")


def check_origins(origins: Iterable[str]) -> None:
    """Raise `ValueError` if a string is not an origin that a browser could send."""
    for origin in origins:
        parts = urlsplit(origin)
        if origin != "null" and (not parts.scheme or not parts.hostname or parts.path or parts.query):
            raise ValueError(f"origins: {origin!r} is not an origin; write, for example, 'https://example.org' without a path")


def check_hosts(hosts: Iterable[str]) -> None:
    """Raise `ValueError` if a string is not a valid ``Host`` header."""
    for host in hosts:
        if not host or any(char in "/?#@\\" or char.isspace() for char in host):
            raise ValueError(f"hosts: {host!r} is not a host; write, for example, 'example.org' or 'example.org:8443'")


def check_characters(url: str, shown: str, *, blanks: bool = False) -> None:
    """Raise ValueError if a URL contains an invisible character, a lone surrogate or, unless `blanks` is set, a space.

    `urllib` silently removes some of these. Others would fail only later, when the name is resolved or the request is sent.
    `shown` is the URL without secrets, for the error message.
    """
    for place, char in enumerate(url):
        if not (char.isprintable() and (blanks or char != " ")):
            raise ValueError(
                f"{shown}: an address cannot contain U+{ord(char):04X}, which is at position {place}: remove it, or "
                "percent-encode it in the path or query of a URL"
            )


def check_host_name(name: str, shown: str) -> None:
    """Raise ValueError if an international host name cannot be encoded for DNS."""
    try:
        _ = name.isascii() or name.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{shown}: {name!r:.100} is not a host name ({error.__cause__ or error}): is it misspelled?") from None


def check_host(host: str, shown: str) -> None:
    """Raise ValueError if a string is neither a host name nor an IP address. Pass IPv6 addresses without brackets."""
    check_characters(host, shown)
    netloc = f"[{host}]" if ":" in host else host
    try:
        whole = urlsplit(f"//{netloc}").netloc == netloc and "@" not in netloc
    except ValueError:  # not an IPv6 address
        whole = False
    if not whole:
        raise ValueError(f"{shown} must be a host name or IP address without scheme, port and path, for example 127.0.0.1")
    check_host_name(host, shown)


def texts(value: Any, name: str, example: str) -> tuple[str, ...]:
    """Convert a string, or an iterable of strings, to a tuple. Raises `TypeError` for anything else."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        several = tuple(value)
        if all(isinstance(one, str) for one in several):
            return several
    raise TypeError(f"{name}={shown(value)} must be a list of strings, for example {name}=[{example!r}]")


def shown(value: Any) -> str:
    try:
        text = in_one_line(repr(value)[:81])
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def type_name(target: Any) -> str:
    return target.__name__ if isinstance(target, type) and not get_args(target) else shown(target)


def name_of(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or shown(function)


def counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 'es' if thing.endswith('ch') else 's'}"


def shown_duration(ns: float) -> str:
    """Format a duration with a suitable unit, for example ``2.346 ms``."""
    if ns >= 59.995e9:  # in seconds it would round to 60
        return _long(round(ns / 1e9))
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.0f} ns"


def _long(seconds: int) -> str:
    """Format a duration of at least a minute in its two largest units, for example ``14 days 7 h``."""
    days = "day" if seconds < 2 * 86_400 else "days"
    for unit, size, smaller, part in ((days, 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size:,} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def in_one_line(text: str) -> str:
    """Escape control characters and invisible characters, to make untrusted strings safe for logs and terminals."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def check_tls(tls: object, *, serves: bool = False) -> None:
    """Raise `TypeError` or `ValueError` unless `tls` is an `ssl.SSLContext` for this side of the connection. It does not import
    `ssl`, which some platforms lack."""
    if tls is not None and not callable(getattr(tls, "wrap_bio", None)):
        raise TypeError(
            f"tls={shown(tls)} must be an ssl.SSLContext, not {type(tls).__name__}; for example "
            + ("ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)" if serves else "ssl.create_default_context(cafile=...)")
        )
    side = getattr(getattr(tls, "protocol", None), "name", "")
    if serves and side == "PROTOCOL_TLS_CLIENT":
        raise ValueError(
            "tls= is a context for clients, and every connection would fail: a server needs "
            "ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) with its certificate, by load_cert_chain(cert, key)"
        )
    if not serves and side == "PROTOCOL_TLS_SERVER":
        raise ValueError("tls= is a context for servers: a client needs ssl.create_default_context(cafile=...)")
