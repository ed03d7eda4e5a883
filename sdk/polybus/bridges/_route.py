"""Bridge routes. A route selects messages to forward and maps their subjects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from attrs import field, frozen

from ..errors import LocalProtocolError
from ..headers import check_headers
from ..plugins.tools import check_callable, shown
from ..subjects import canonical, check_pattern, check_subject, is_uri

KINDS: Final = ("request", "publish", "stream", "channel", "tunnel")
_USES: Final = {
    "request": {"request", "publish", "stream", "channel"},
    "reply": {"request", "stream", "channel"},
    "headers": {"request", "publish"},
}
"""Kinds that allow each argument of a route."""
_NAME: Final = re.compile(r"\{(\w*)\}")
_BRACE: Final = re.compile(r"[{}]")


def _kinds(kinds: Any) -> frozenset[str]:
    if not isinstance(kinds, Iterable):
        raise TypeError(f"kinds={shown(kinds)} must be a list, for example kinds=['publish']")
    given = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not given or not all(kind in KINDS for kind in given):
        raise ValueError(f"kinds={shown(kinds)} must be one or more of {', '.join(KINDS)}")
    return frozenset(given)


def _names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"headers={shown(names)} must be a list of names, for example headers=['x-request-id']")
    return tuple(name.lower() if isinstance(name, str) else name for name in names)


def _check_target(target: object) -> None:
    if not isinstance(target, (str, int)) or isinstance(target, bool):
        raise TypeError(f"target={shown(target)} must be a string or an integer, not {type(target).__name__}")


@frozen
class Route:
    """A set of messages to forward over a bridge in one direction.

    Args:
        source: Subject or pattern on the `left` bus, or on the `right` bus with `reverse`.
        target: Subject on the other bus. ``{1}``, ``{2}`` and so on stand for the tokens that each ``*`` in the source matched.
            ``{rest}`` stands for the tokens that ``>`` or the only wildcard matched, and ``{name}`` for the token of
            ``{name}``.
        kinds: Any of ``request`` (which includes notifications), ``publish``, ``stream``, ``channel`` and ``tunnel``.
        reverse: Forward from `right` to `left`.
        request: Plain or async function ``request(body, message) -> body`` that converts bodies on the way to the other bus. By
            default, bodies are unchanged.
        reply: Plain or async function ``reply(body, message) -> body`` that converts answers and items on the way back.
        headers: Names of headers to forward in addition to ``traceparent``.

    Raises:
        ValueError: If a kind is unknown, or `target` uses a name that is not in `source`.
        LocalProtocolError, ReservedSubject: If a subject or header is invalid.
        TypeError: If a converter does not accept a body and a message, or an argument has the wrong type.
    """

    source: str | int
    target: str | int
    kinds: frozenset[str] = field(default=frozenset(("request", "publish")), converter=_kinds)
    reverse: bool = field(default=False, kw_only=True)
    request: Callable[..., Any] | None = field(default=None, kw_only=True)
    reply: Callable[..., Any] | None = field(default=None, kw_only=True)
    headers: tuple[str, ...] = field(default=(), kw_only=True, converter=_names)

    def __attrs_post_init__(self) -> None:
        check_pattern(self.source)
        _check_target(self.target)
        have = _places(self.source)
        wanted = _NAME.findall(self.target) if isinstance(self.target, str) else []
        for name in wanted:
            if name not in have:
                known = ", ".join(f"{{{name}}}" for name in have) or "no wildcard"
                raise ValueError(f"target {self.target!r}: {{{name}}} is not in the source {self.source!r}, which has {known}")
        if isinstance(self.target, str) and _BRACE.search(_NAME.sub("", self.target)):
            raise ValueError(f"target {self.target!r} has an unmatched brace, or braces around more than letters, digits and _")
        check_subject(self.target if isinstance(self.target, int) else _NAME.sub("x", self.target))
        for name, converter in (("request", self.request), ("reply", self.reply)):
            check_callable(converter, name, f"{name}(body, message) -> body", 2)
        for name, kinds in _USES.items():
            if getattr(self, name) and not self.kinds & kinds:
                raise ValueError(f"{name}= has no effect on {', '.join(sorted(self.kinds))}")
        check_headers(dict.fromkeys(self.headers, ""), 1 << 16)

    def rewritten(self, subject: str | int) -> str | int:
        """Return the subject on the other bus.

        Raises:
            LocalProtocolError: If the subject is an address that does not fit `target`.
        """
        if isinstance(self.target, int) or "{" not in self.target:
            return self.target
        have = _places(self.source)
        tokens = canonical(str(subject)).split(_separator(self.source))
        separator = _separator(self.target)
        made = _NAME.sub(lambda found: separator.join(tokens[have[found[1]]]), self.target)
        if is_uri(made) and self.source != ">":
            named = [token for name in _NAME.findall(self.target) for token in tokens[have[name]]]
            if not is_uri(self.target) or any("/" in token for token in named):
                text = f"the route {self.source!r} to {self.target!r} does not lead to such addresses; add one that does"
                raise LocalProtocolError(f"{subject!r} would cross as {made!r}: {text}")
        return made


def _separator(pattern: str | int) -> str:
    return "/" if "/" in str(pattern) else "."


def _places(source: str | int) -> dict[str, slice]:
    if isinstance(source, int):
        return {}
    places: dict[str, slice] = {}
    stars = 0
    tokens = canonical(source).split(_separator(source))
    for at, token in enumerate(tokens):
        if token == ">":
            places["rest"] = slice(at, None)
        elif token == "*":
            stars += 1
            places[str(stars)] = slice(at, at + 1)
        elif "/" not in source and (named := _NAME.fullmatch(token)):
            places[named[1]] = slice(at, at + 1)
    if len(places) == 1:
        places.setdefault("rest", next(iter(places.values())))
    return places
