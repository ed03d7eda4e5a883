"""Rules for subjects, ids and deadlines on this wire, in both directions.

The readers test the usual case inline and come here for the rest: these functions say exactly what is wrong.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import EncodeError
from .._rules import MAX_INT, WireRules, fault_in_subject

WIRE_RULES: Final = WireRules("ubre")
refuse: Final = WIRE_RULES.refuse
refuse_json: Final = WIRE_RULES.refuse_json


def check_subject(value: Any, limit: int, answer_id: Any = None, empty: bool = False) -> None:
    """For subjects that came in. May raise `RemoteProtocolError`: ``invalid_subject``."""
    fault = fault_in_subject(value, limit)
    if fault is None and not value and not empty:
        fault = "the subject is empty"
    if fault is not None:
        raise refuse(fault, "invalid_subject", answer_id)


def check_id(value: Any, limit: int) -> None:
    """May raise `RemoteProtocolError`, ``invalid_id``: ids are text of 1 to `limit` bytes or whole numbers within 2^53."""
    if type(value) is str:
        if value and len(value.encode()) <= limit:
            return
        raise refuse(f"an id has 1 to {limit} bytes (limit: id)", "invalid_id")
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return
    shown = "an integer beyond 2^53" if type(value) is int else type(value).__name__
    raise refuse(f"an id is text or a whole number within 2^53, not {shown}", "invalid_id")


def read_ttl(ttl: Any, answer_id: Any = None) -> float | None:
    """Whole milliseconds that came in, as seconds; null counts as none. May raise `RemoteProtocolError`: ``invalid_ttl``."""
    if ttl is None:
        return None
    if type(ttl) is not int or not 0 <= ttl <= MAX_INT:
        raise refuse("ttl is a whole number of milliseconds, not below 0", "invalid_ttl", answer_id)
    return ttl / 1000


def unencodable(error: UnicodeEncodeError) -> EncodeError:
    """The error for text that is no Unicode."""
    return EncodeError(f"lone surrogate at character {error.start} of {error.object[:40]!r}")
