"""Rules for subjects, ids, headers and deadlines on this wire, in both directions.

The readers test the usual case inline and come here for the rest: these functions say exactly what is wrong.
"""

from __future__ import annotations

from typing import Any

from ...errors import EncodeError, RemoteProtocolError
from .._rules import MAX_INT, fault_in_headers, fault_in_subject, milliseconds, unfit_subject

__all__ = [
    "MAX_INT",
    "check_id",
    "check_local_subject",
    "check_subject",
    "fault_in_headers",
    "foul_json",
    "milliseconds",
    "read_headers",
    "read_ttl",
    "refuse",
    "unencodable",
]


def refuse(text: str, reason: str = "malformed", answer_id: Any = None, close_code: int | None = None) -> RemoteProtocolError:
    """The error for something that the peer should not have sent."""
    return RemoteProtocolError(text, reason=reason, protocol="ubre", answer_id=answer_id, close_code=close_code)


def foul_json(error: Exception, answer_id: Any = None) -> RemoteProtocolError:
    """The error for bytes that failed to be JSON in a decoder or in `polybus.body.check_json`."""
    if isinstance(error, (EncodeError, RecursionError)):  # check_json says EncodeError of what is too deep
        return refuse("nested too deeply (limit: depth)", "too_deep", answer_id)
    return refuse(f"not the JSON of a message: {error}", "malformed", answer_id)


def check_subject(value: Any, limit: int, answer_id: Any = None, empty: bool = False) -> None:
    """For subjects that came in.

    Raises:
        RemoteProtocolError: ``invalid_subject``.
    """
    fault = fault_in_subject(value, limit)
    if fault is None and not value and not empty:
        fault = "the subject is empty"
    if fault is not None:
        raise refuse(fault, "invalid_subject", answer_id)


def check_id(value: Any, limit: int) -> None:
    """Ids are text of 1 to `limit` UTF-8 bytes or whole numbers within 2^53.

    Raises:
        RemoteProtocolError: ``invalid_id``.
    """
    if type(value) is str:
        if value and len(value.encode()) <= limit:
            return
        raise refuse(f"an id has 1 to {limit} bytes (limit: id)", "invalid_id")
    if type(value) is int and -MAX_INT <= value <= MAX_INT:
        return
    shown = "an integer beyond 2^53" if type(value) is int else type(value).__name__
    raise refuse(f"an id is text or a whole number within 2^53, not {shown}", "invalid_id")


def read_headers(headers: Any, limit: int, answer_id: Any = None) -> dict[str, str] | None:
    """Headers that came in; null counts as none.

    Raises:
        RemoteProtocolError: ``invalid_headers``.
    """
    if headers is None:
        return None
    fault = fault_in_headers(headers, limit)
    if fault is not None:
        raise refuse(fault, "invalid_headers", answer_id)
    return headers  # type: ignore[no-any-return]


def read_ttl(ttl: Any, answer_id: Any = None) -> float | None:
    """Whole milliseconds that came in, as seconds; null counts as none.

    Raises:
        RemoteProtocolError: ``invalid_ttl``.
    """
    if ttl is None:
        return None
    if type(ttl) is not int or not 0 <= ttl <= MAX_INT:
        raise refuse("ttl is a whole number of milliseconds, not below 0", "invalid_ttl", answer_id)
    return ttl / 1000


def check_local_subject(value: Any, limit: int) -> str:
    """A subject that goes out; it may be empty.

    Raises:
        LocalProtocolError: It does not fit the wire.
        Unsupported: It is a number.
    """
    fault = fault_in_subject(value, limit)
    if fault is not None:
        raise unfit_subject(value, fault, "ubre")
    return str(value)


def unencodable(error: UnicodeEncodeError) -> EncodeError:
    """The error for text that is no Unicode."""
    return EncodeError(f"lone surrogate at character {error.start} of {error.object[:40]!r}")
