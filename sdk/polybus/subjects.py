"""The syntax of subjects and patterns, and how patterns match subjects.

A subject is a dotted string such as ``news.today``, or an ``int`` in protocols with numbered actions. In a pattern, ``*``
matches one token, and ``>`` at the end matches one or more. ``{name}`` matches one token and captures it under that name.

A pattern with a ``/`` is a URI pattern (uProtocol). Its tokens are the segments between slashes. ``*`` may also be
part of a segment, and an empty segment matches any segment. The scheme and the authority are case-insensitive. In a numeric
address, ``//AUTHORITY/ENTITY/VERSION/RESOURCE`` in hexadecimal (`protocols.Up`), the spelling of numbers does not matter. FFFF
as the resource, FF as the version, and FFFF as either half of the entity match any value.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

from attrs import field, frozen

from ._validation import shown
from .errors import LocalProtocolError, ReservedSubject

__all__ = [
    "AnySubject", "Subject", "bare", "canonical", "captures", "check_pattern", "check_subject", "glob_of", "has_empty_token",
    "is_pattern", "match_tokens", "matches", "resolve", "segments", "wire_pattern",
]  # fmt: skip

In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

RESERVED_PREFIX = "_polybus."
logger: logging.Logger = logging.getLogger("polybus")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAMED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_STARS = 2
"""Maximum number of stars in a segment of a URI pattern. With more stars, even a short pattern could be very slow to match."""
_TOKENS = 64
"""Maximum number of tokens in a pattern with wildcards. Each token is an object in the index, so longer patterns would let a
peer exhaust memory with few bytes."""
_ANY = "*"
_ESCAPED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*", re.DOTALL)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9_~-]")
_NUMBERS: Final = tuple(re.compile(rf"[0-9A-Fa-f]{{1,{digits}}}|[0-9]+") for digits in (8, 2, 4))
"""Entity, version and resource of an address. The short form of the older generation writes them in decimal."""
_ANY_NUMBER: Final = ("FFFFFFFF", "FF", "FFFF")
_ANY_HALF: Final = 0xFFFF
_HALF_BITS: Final = 16
_NUMBER_MARK = "*\0"
"""Prefix of a segment that is compared as a number. It cannot occur in a valid pattern."""


@frozen(init=False)
class Subject(Generic[In_contra, Out_co]):
    """A subject with the types of its request and response. Use it in place of a plain subject in any bus method.

    After ``GET_USER = Subject("user.get", GetUser, User)``, ``bus.request(GET_USER, GetUser(7))`` is a ``Reply[User]``.
    """

    name: str | int
    takes: type[In_contra] = field(default=Any)  # type: ignore[assignment]
    returns: type[Out_co] = field(default=Any)  # type: ignore[assignment]

    # From attrs's `__init__`, type checkers cannot infer types that are omitted or None.
    @overload
    def __init__(self: Subject[In, Any], name: str | int, takes: type[In]) -> None: ...
    @overload
    def __init__(self: Subject[None, Any], name: str | int, takes: None) -> None: ...
    @overload
    def __init__(self: Subject[In, Out], name: str | int, takes: type[In], returns: type[Out]) -> None: ...
    @overload
    def __init__(self: Subject[In, None], name: str | int, takes: type[In], returns: None) -> None: ...
    @overload
    def __init__(self: Subject[None, Out], name: str | int, takes: None, returns: type[Out]) -> None: ...
    @overload
    def __init__(self: Subject[None, None], name: str | int, takes: None, returns: None) -> None: ...
    @overload
    def __init__(self: Subject[Any, Out], name: str | int, *, returns: type[Out]) -> None: ...
    @overload
    def __init__(self: Subject[Any, Any], name: str | int, takes: Any = ..., returns: Any = ...) -> None: ...
    def __init__(self, name: str | int, takes: Any = Any, returns: Any = Any) -> None:
        self.__attrs_init__(bare(name), takes, returns)  # pyright: ignore[reportAttributeAccessIssue]

    def given(self, body: Any) -> Any:
        """Convert the body of a request. Subclasses that know more about the body than its type can override this."""
        return body


AnySubject: TypeAlias = "str | int | Subject[Any, Any]"
"""Anything that bus methods accept as a subject."""


def check_subject(subject: str | int, limit: int = 1024) -> None:
    """Check that applications may send to a subject.

    Raises:
        LocalProtocolError: If the subject is not a string or an integer, is empty or too long, or contains a control character,
            an empty token or a wildcard.
        ReservedSubject: If the subject begins with ``_polybus.``.
    """
    _check_text(subject, limit, "subject")
    if isinstance(subject, str):
        _check_tokens(subject, "subject")
    if isinstance(subject, str) and is_pattern(subject):
        text = "only subscriptions may have wildcards; use one subject, and put the variable part into the body"
        raise LocalProtocolError(f"subject {subject!r} is a pattern: {text}")


def check_pattern(pattern: str | int, limit: int = 1024, *, foreign: bool = False) -> None:
    """Check that a pattern may be subscribed to.

    Args:
        pattern: A subject, or a pattern with wildcards.
        limit: Maximum length in UTF-8 bytes.
        foreign: True if a peer sent the pattern and its protocol may have other rules. Patterns with an empty token then match
            exactly.

    Raises:
        LocalProtocolError: If the pattern is empty or too long, or contains a control character, an empty token, ``>`` before
            the end, or an invalid or repeated name in braces.
        ReservedSubject: If the pattern begins with ``_polybus.``.
    """
    _check_text(pattern, limit, "pattern")
    if isinstance(pattern, int):
        return
    if not foreign:
        _check_tokens(pattern, "pattern")
        _check_names(pattern)
    tokens = pattern.split("/" if "/" in pattern else ".")
    if len(tokens) > _TOKENS and is_pattern(pattern):
        raise LocalProtocolError(f"a pattern of {len(tokens)} tokens: the limit is {_TOKENS}")
    if "/" in pattern and is_uri(pattern) and any(token.count("*") > _STARS for token in tokens):
        raise LocalProtocolError(f"pattern {pattern!r}: a segment has at most {_STARS} '*'")
    if ">" in tokens[:-1]:
        raise LocalProtocolError(f"pattern {pattern!r}: '>' matches the rest, so it must be the last token")


def literal_wildcards(pattern: str | int) -> str:
    """Return a warning if a pattern contains another system's wildcard, which polybus matches literally, or an empty string."""
    if isinstance(pattern, int):
        return ""
    if "/" in pattern:  # a URI or an MQTT pattern
        mqtt = next((token for token in pattern.split("/") if token in ("#", "+")), None)
        words = "separate words with dots, as in 'news.*' or 'news.>'"
        return "" if mqtt is None else f"pattern {pattern!r}: {mqtt!r} is matched literally; {words}"
    for token in pattern.split("."):
        if token in ("#", "+") or ("*" in token and token != "*") or (token != ">" and ">" in token):
            usual = "'*' matches one token and '>' at the end the rest, as in 'news.*' or 'news.>'"
            return f"pattern {pattern!r}: {token!r} is matched literally; {usual}"
        if token.count("{") != token.count("}"):
            return f"pattern {pattern!r}: {token!r} is matched literally; put a name between two braces, as in 'news.{{day}}'"
    return ""


def warn_of_literal_wildcards(pattern: str | int) -> None:
    """Log a warning if a pattern contains another system's wildcard, which is valid but probably a mistake."""
    if text := literal_wildcards(pattern):
        logger.warning("%s", text, extra={"subject": pattern})


def _check_text(subject: str | int, limit: int, what: str) -> None:
    if isinstance(subject, int) and not isinstance(subject, bool):
        if not 0 <= subject <= 0xFFFF_FFFF:
            raise LocalProtocolError(f"{what} {shown(subject)} is not an action id, which is a number from 0 to 0xFFFFFFFF")
        return
    if not isinstance(subject, str):
        first = f"; the {what} comes first, then the body" if what == "subject" else ""
        raise LocalProtocolError(
            f"a {what} must be a string or an integer, such as 'user.get', not {type(subject).__name__}{first}"
        )
    if not subject:
        raise LocalProtocolError(f"an empty {what}: name one, such as 'user.get'")
    size = len(subject) if subject.isascii() else len(subject.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise LocalProtocolError(f"{what} of {size} bytes: the limit is {limit} (Limits.subject)")
    if _CONTROL.search(subject):
        raise LocalProtocolError(f"{what} {subject!r} contains control characters")
    if not subject.isascii():
        try:
            subject.encode()
        except UnicodeEncodeError:
            raise LocalProtocolError(f"{what} {subject!r} contains a lone surrogate") from None
    if subject.startswith(RESERVED_PREFIX):
        raise ReservedSubject(
            f"{subject!r}: subjects that begin with {RESERVED_PREFIX!r} are reserved for polybus; choose another name"
        )


def _check_tokens(text: str, what: str) -> None:
    if has_empty_token(text):
        raise LocalProtocolError(f"{what} {text!r} has an empty token: a dot must not be first, last or next to another dot")


def _check_names(pattern: str) -> None:
    if "{" not in pattern or "/" in pattern:
        return
    names = set()
    for token in pattern.split("."):
        if token.startswith("{") and token.endswith("}"):
            named = _NAMED.fullmatch(token)
            if named is None:
                raise LocalProtocolError(
                    f"pattern {pattern!r}: {token} is not a name; use letters, digits and _, as in {{room_id}}"
                )
            if named[1] in names:
                raise LocalProtocolError(f"pattern {pattern!r}: {token} occurs twice, so one value would be lost")
            names.add(named[1])


def has_empty_token(text: str) -> bool:
    """Return True if a dotted name has an empty token. Such names come from peers with other rules and are matched exactly."""
    return (text.startswith(".") or text.endswith(".") or ".." in text) and "/" not in text


def is_pattern(text: str | int) -> bool:
    """Return True if a subject has wildcards."""
    if isinstance(text, int):
        return False
    if "/" in text:
        tokens = canonical(text).split("/")
        if not is_uri(text):
            return not {"*", ">"}.isdisjoint(tokens)
        return ">" in tokens or any("*" in token for token in tokens) or "" in _path(tokens) or _stands_for_many(tokens)
    if not ("*" in text or ">" in text or "{" in text) or has_empty_token(text):
        return False
    return any(token in ("*", ">") or _NAMED.fullmatch(token) for token in text.split("."))


def is_uri(text: str) -> bool:
    """Return True if a string with a slash is a uProtocol address. Names in other protocols may contain slashes too."""
    return text.startswith("/") or text[:4].lower() == "up:/"


def _path(tokens: list[str]) -> list[str]:
    return tokens[3:] if tokens[:2] == ["", ""] else tokens[1:]


def canonical(subject: str) -> str:
    """Return the canonical spelling for comparison.

    For a URI, this removes ``up:`` and unnecessary percent escapes, lower-cases the authority, writes numbers in upper case
    without leading zeros, and replaces numbers that match any value with ``*``. Other subjects are returned unchanged.
    """
    if "/" not in subject:
        return subject
    return _canonical(subject)


@lru_cache(4096)
def _canonical(subject: str) -> str:
    scheme = subject[:4].lower() == "up:/"
    if scheme:
        subject = subject[3:]
    if "%" in subject and (scheme or subject.startswith("//")) and _ESCAPED.fullmatch(subject):
        subject = _ESCAPE.sub(_unescaped, subject)
    if subject.startswith("//"):
        authority, slash, path = subject[2:].partition("/")
        return f"//{authority.lower()}{slash}{_in_numbers(path) or path}"
    if scheme:  # without a scheme, it may be a name in another protocol
        return f"/{_in_numbers(subject[1:]) or subject[1:]}"
    return subject


def _unescaped(found: re.Match[str]) -> str:
    """Unescape a character, or normalize a necessary escape to upper case (RFC 3986, 6.2.2). Dots stay escaped, because they
    separate names."""
    character = chr(int(found[1], 16))
    return character if _UNRESERVED.fullmatch(character) else found[0].upper()


def _in_numbers(path: str) -> str | None:
    """Return the canonical path of a numeric address or pattern, or None for other paths."""
    tokens = path.split("/")
    rest = tokens[-1] == ">"
    given = tokens[:-1] if rest else tokens
    if len(given) > 3 or (len(given) < 3 and not rest):
        return None
    found = []
    for token, form, anything in zip(given, _NUMBERS, _ANY_NUMBER, strict=False):
        if token in ("", _ANY):
            found.append(_ANY)
        elif form.fullmatch(token):
            number = token.upper().lstrip("0") or "0"
            found.append(_ANY if number == anything else number)
        else:
            return None
    return "/".join((*found, ">") if rest else found)


def _stands_for_many(tokens: list[str]) -> bool:
    path = _path(tokens)
    return len(path) > 0 and _has_any_half(path[0]) and _in_numbers("/".join(path)) is not None


def _has_any_half(entity: str) -> bool:
    return 4 <= len(entity) <= 8 and (entity.endswith("FFFF") or (len(entity) == 8 and entity.startswith("FFFF")))


def segments(pattern: str) -> list[str]:
    tokens = canonical(pattern).split("/")
    if not is_uri(pattern):
        return tokens
    start = 2 if tokens[:2] == ["", ""] else 1
    return [token if token or place < start else "*" for place, token in enumerate(tokens)]


def match_tokens(pattern: str) -> list[str]:
    """Return the tokens of a URI pattern for matching. `glob_of` reads tokens with an inner ``*`` and ambiguous entities."""
    tokens = segments(pattern)
    place = 3 if tokens[:2] == ["", ""] else 1
    if tokens[0] == "" and len(tokens) > place and _is_number_in(tokens, place):
        tokens[place] = _NUMBER_MARK + tokens[place]
    return tokens


def _is_number_in(tokens: list[str], place: int) -> bool:
    """Return True if an entity must be compared as a number, because it matches any type or instance, or because only a
    wildcard follows, so that it could also be a name from the older generation."""
    entity, path = tokens[place], "/".join(tokens[place:])
    if not _NUMBERS[0].fullmatch(entity) or _in_numbers(path) is None:
        return False
    return _has_any_half(entity) or (place > 1 and not entity.isdigit() and tokens[-1] in ("*", ">"))


@lru_cache(1024)
def glob_of(token: str) -> re.Pattern[str]:
    """Return a regular expression for a segment with ``*`` from `match_tokens`."""
    if token.startswith(_NUMBER_MARK):
        return _numbers_like(token.removeprefix(_NUMBER_MARK))
    first, *others = map(re.escape, token.split("*"))
    # Atomic groups keep the first match between two stars. Backtracking would be quadratic in the length of the text.
    between = "".join(f"(?>.*?{one})" for one in others[:-1])
    return re.compile(f"{first}{between}.*{others[-1]}", re.DOTALL)


def _numbers_like(entity: str) -> re.Pattern[str]:
    """Return a regular expression for hexadecimal entities. FFFF in the low half matches any type, and FFFF in the high half
    any instance."""
    type, instance = int(entity, 16) & _ANY_HALF, int(entity, 16) >> _HALF_BITS
    if type == _ANY_HALF:
        return re.compile(f"{instance:X}[0-9A-F]{{4}}" if instance else "[0-9A-F]{1,4}")
    if instance == _ANY_HALF:
        return re.compile(f"{type:X}|[1-9A-F][0-9A-F]{{0,3}}{type:04X}")
    return re.compile(entity, re.IGNORECASE)


def wire_pattern(pattern: str | int) -> str | int:
    """Return the pattern as it is sent to other buses: with ``*`` instead of names, and with addresses in canonical
    spelling."""
    if isinstance(pattern, int):
        return pattern
    if "/" in pattern:
        return canonical(pattern)
    if "{" not in pattern:
        return pattern
    return ".".join("*" if _NAMED.fullmatch(token) else token for token in pattern.split("."))


def captures(pattern: str | int) -> dict[str, int]:
    if isinstance(pattern, int) or "/" in pattern:
        return {}
    found = {}
    for position, token in enumerate(pattern.split(".")):
        named = _NAMED.fullmatch(token)
        if named:
            found[named[1]] = position
    return found


def matches(pattern: str | int, subject: str | int) -> bool:
    """Return True if a pattern matches a subject. For a set of patterns, use `plugins.tools.SubjectIndex`."""
    if isinstance(pattern, int) or isinstance(subject, int) or has_empty_token(subject):
        return pattern == subject
    if "/" in pattern:
        if not is_pattern(pattern):
            return canonical(pattern) == canonical(subject)
        tokens, have = match_tokens(pattern), canonical(subject).split("/")
    else:
        tokens, have = str(wire_pattern(pattern)).split("."), subject.split(".")
    if tokens[-1] == ">":
        return len(have) >= len(tokens) and _tokens_match(tokens[:-1], have)
    return len(have) == len(tokens) and _tokens_match(tokens, have)


def _tokens_match(tokens: Iterable[str], have: Iterable[str]) -> bool:
    return all(
        token in ("*", got) or ("*" in token and glob_of(token).fullmatch(got) is not None)
        for token, got in zip(tokens, have, strict=False)
    )


def bare(subject: Any) -> Any:
    """Return the plain subject of a `Subject` or enum member, without checks."""
    if isinstance(subject, Subject):
        return subject.name
    return str.__str__(subject) if isinstance(subject, str) else subject


def resolve(subject: AnySubject, returns: Any) -> tuple[Any, Any]:
    """Return the plain subject without checks, and the response type."""
    if type(subject) is str:
        return subject, returns
    if isinstance(subject, Subject):
        return subject.name, subject.returns if returns is Any else returns
    return bare(subject), returns
