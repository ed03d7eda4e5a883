"""Close codes for the end of a connection, the same on every transport (RFC 6455, section 7.4)."""

from __future__ import annotations

from typing import Final

from ..errors import BusError, Forbidden, Unauthorized
from . import Closed

MAX_REASON: Final = 123
"""Bytes of a closing reason: RFC 6455, section 5.5 allows 125 in a control frame, and the code takes two."""


def code_for(error: BusError) -> int:
    """Close code that tells a client why it is rejected."""
    return 4401 if isinstance(error, Unauthorized) else 4403 if isinstance(error, Forbidden) else 1013


def text_of(error: BusError) -> str:
    """Error text for a rejected client."""
    return getattr(error, "text", None) or str(error)


def closed_by_peer(code: int, reason: str) -> Closed:
    """End of a connection by the peer with this close code."""
    error = Unauthorized if code == 4401 else Forbidden if code == 4403 else None
    return Closed(code, reason, None if error is None else error(reason))


def cut_reason(reason: str) -> bytes:
    """Reason in UTF-8, cut between two characters to fit a closing frame."""
    data = reason.encode("utf-8", "replace")
    return data if len(data) <= MAX_REASON else data[:MAX_REASON].decode("utf-8", "ignore").encode()


def sayable(code: int) -> int:
    """Replace codes that must not be sent because they only describe an event (RFC 6455, section 7.4.1)."""
    if 3000 <= code < 5000 or (1000 <= code < 1015 and code not in (1004, 1005, 1006)):
        return code
    return 1000
