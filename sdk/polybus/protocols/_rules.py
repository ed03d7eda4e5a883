"""Rules for subjects, headers and deadlines that hold on every wire that carries them as text."""

from __future__ import annotations

import re
from typing import Any

from ..errors import LocalProtocolError, Unsupported

__all__ = ["MAX_INT", "fault_in_headers", "fault_in_subject", "milliseconds", "unfit_subject"]

MAX_INT = 2**53
"""Beyond it an integer does not survive a JavaScript peer."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LINE = re.compile(r"[\r\n\x00]")


def fault_in_subject(value: Any, limit: int) -> str | None:
    """Why this is no subject (or pattern), or None: text, at most `limit` UTF-8 bytes, without control characters."""
    if type(value) is not str:
        return f"a subject is text here, not {type(value).__name__}"
    if _CONTROL.search(value):
        return f"control character in the subject {value[:40]!r}"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "lone surrogate in the subject"
    return f"a subject of {size} bytes is longer than {limit} (limit: subject)" if size > limit else None


def unfit_subject(value: Any, fault: str, protocol: str) -> LocalProtocolError | Unsupported:
    """Error for an application whose subject this wire cannot carry: other wires number theirs."""
    if isinstance(value, int):
        return Unsupported(f"{protocol}: {value} is a number, and subjects are text here")
    return LocalProtocolError(fault, protocol=protocol)


def fault_in_headers(headers: Any, limit: int) -> str | None:
    """Why these are no headers, or None: text to text, no CR, LF or NUL, together at most `limit` UTF-8 bytes."""
    if type(headers) is not dict:
        return f"headers are an object, not {type(headers).__name__}"
    size = 0
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str or not name:
            return "headers are text to text, and a name is not empty"
        if _LINE.search(name) or _LINE.search(value):
            return f"CR, LF or NUL in the header {name[:40]!r}"
        size += len(name.encode("utf-8", "replace")) + len(value.encode("utf-8", "replace"))
    return f"headers of {size} bytes are larger than {limit} (limit: headers)" if size > limit else None


def milliseconds(ttl: float) -> int:
    """Seconds as whole milliseconds, never below 0 or above 2^53."""
    return int(min(max(0.0, ttl) * 1000 + 0.5, float(MAX_INT)))
