"""Rules for subjects on this wire.

A server drops a subject with an empty token without an error, and ends a subject at a blank, so both are refused here.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ...errors import LocalProtocolError, Unsupported
from ...subjects import is_pattern, wire_pattern
from .._shared import WireRules

RULES: Final = WireRules("nats")
refuse: Final = RULES.refuse

_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")


def has_wildcard(name: str) -> bool:
    return ("*" in name or ">" in name) and any(token in ("*", ">") for token in name.split("."))


def is_answerable(reply: str) -> bool:
    """Check that a reply subject does not begin with ``$``, because such subjects are commands to the server."""
    return not reply.startswith("$")


def fault_in_name(name: Any, limit: int, *, pattern: bool = False) -> str | None:
    """Return what is wrong with a subject or pattern, or None if it is valid."""
    if type(name) is not str:
        return f"a subject is a string here, not {type(name).__name__}"
    what = "pattern" if pattern else "subject"
    if _BLANK.search(name):
        return f"the {what} {name[:60]!r} has a blank or a control character, which ends a name on this wire"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return f"lone surrogate in the {what}"
    if size > limit:
        return f"a {what} of {size} bytes is longer than {limit} (limit: subject)"
    if not name or name[0] == "." or name[-1] == "." or ".." in name:
        dots = "no dot at the beginning or the end, and none beside another"
        return f"the {what} {name[:60]!r} has an empty token, and servers drop it: {dots}"
    return None


def local_subject(name: Any, limit: int) -> str:
    """Check a subject to send to."""
    fault = _fault_of_ours(name, limit, pattern=False)
    if fault is None and has_wildcard(name):
        fault = f"the subject {name[:60]!r} is a pattern to a NATS server: only subscriptions take wildcards"
    if fault is not None:
        raise LocalProtocolError(fault, protocol="nats")
    return str(name)


def local_pattern(name: Any, limit: int) -> str:
    """Convert a pattern to the server's form. Raises `Unsupported` if it has none."""
    fault = _fault_of_ours(name, limit, pattern=True)
    if fault is not None:
        raise LocalProtocolError(fault, protocol="nats")
    made = str(wire_pattern(name))
    if has_wildcard(made) != is_pattern(made):
        raise Unsupported(f"nats: {name!r} means one thing here and another to a NATS server: it has no URI patterns")
    return made


def _fault_of_ours(name: Any, limit: int, *, pattern: bool) -> str | None:
    if isinstance(name, int):
        raise Unsupported(f"nats: {name} is a number, and subjects are strings here: write {str(name)!r}")
    return fault_in_name(name, limit, pattern=pattern)
