"""Validation of the headers that an application sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from ._validation import shown
from .errors import LocalProtocolError, ReservedSubject

__all__ = ["TRACE", "VIA", "check_handshake_headers", "check_headers", "is_traceparent", "size_of"]

VIA = "polybus-via"
"""Header that lists the ids of the buses that have relayed a publication. It prevents a bus from relaying a publication
twice."""
TRACE = "traceparent"
"""Header with the position in a trace, as in the W3C Trace Context."""

# Field names in some protocols (J.REP message parts, CloudEvents and uProtocol attributes), where such a header would be parsed
# as the field. All protocols reject these names, so that you can switch protocols later.
_RESERVED = frozenset(
    "tosubject commandtype replyto errorto sessionid value errormessage additionaldetails throwable methodparms "
    "priorityprocessing subjectslist capabilitiesflags reason "
    "specversion id source type sink datacontenttype dataschema subject time data data_base64 "
    "hash priority ttl reqid commstatus plevel permission_level "
    "nats-service-error nats-service-error-code".split()
)
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BAD_VALUE = re.compile(r"[\x00\r\n]")


def _check_text(name: object, value: object) -> None:
    if not (isinstance(name, str) and isinstance(value, str)):
        wrong = value if isinstance(name, str) else name
        raise LocalProtocolError(
            f"header {shown(name)}: names and values must be strings, not {type(wrong).__name__}; use str()"
        )


_TRACEPARENT = re.compile(r"(?!ff|00-.{52}.)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[ -~]*)?")


def is_traceparent(text: str) -> bool:
    """Return True if a string is a valid trace context (W3C Trace Context, 3.2), possibly with fields of later versions."""
    return _TRACEPARENT.fullmatch(text) is not None


def check_handshake_headers(headers: object) -> Mapping[str, str]:
    """Check the types of handshake headers. The transport checks names and characters.

    Raises:
        TypeError: If `headers` is not a mapping.
        LocalProtocolError: If a name or value is not a string.
    """
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(
            f"headers={shown(headers)} must be a mapping of strings to strings, or a function that returns it; use dict() for "
            "pairs"
        )
    for name, value in headers.items():
        _check_text(name, value)
    return {str.__str__(name): str.__str__(value) for name, value in headers.items()}


@lru_cache(256)
def _is_token(name: str) -> bool:
    """Return True if a string is a valid header name. Raises `ReservedSubject` if it is reserved."""
    if not _NAME.fullmatch(name):
        return False
    lower = name.lower()
    if lower in _RESERVED or lower.startswith("polybus-"):
        raise ReservedSubject(f"header {name!r} is a field of some protocol: choose another name, for example 'x-{lower}'")
    return True


def size_of(headers: Mapping[str, str]) -> int:
    """Return the size in bytes as counted by `Limits.headers`: the length of each name and value, plus four."""
    size = 0
    for name, value in headers.items():
        size += len(name) + 4 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    return size


def check_headers(headers: Mapping[str, str], limit: int) -> dict[str, str]:
    """Check headers and return a copy as a dict.

    Raises:
        TypeError: If `headers` is not a mapping.
        LocalProtocolError: If a name or value is not a string, a name is not a token (RFC 9110 section 5.6.2), a value contains
            a line break, or all headers together exceed `limit` bytes.
        ReservedSubject: If a name is a field of some protocol, or begins with ``polybus-``.
    """
    if not isinstance(headers, Mapping):
        raise TypeError(
            f"headers={shown(headers)} must be a mapping of strings to strings, not {type(headers).__name__}; use dict() for "
            "pairs"
        )
    made: dict[str, str] = {}
    for name, value in headers.items():
        _check_text(name, value)
        made[str.__str__(name)] = str.__str__(value)
        if _BAD_VALUE.search(value) or not _is_token(name):
            raise LocalProtocolError(f"header {name!r}: the name must be a token, and the value must not have line breaks")
    if (size := size_of(headers)) > limit:
        raise LocalProtocolError(f"headers of {size} bytes: the limit is {limit} (Limits.headers)")
    return made
