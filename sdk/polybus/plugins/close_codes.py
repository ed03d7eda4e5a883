"""WebSocket close codes (RFC 6455, section 7.4), which all transports use."""

from __future__ import annotations

from typing import Final

from ..errors import BusError, Forbidden, Unauthorized
from . import Closed

MAX_REASON: Final = 123
"""Maximum length of a close reason in bytes. Control frames carry 125 bytes (RFC 6455, section 5.5), including the code."""

UNEXPLAINED: Final = "the peer closed the connection without a reason"

LOAD_CERTIFICATE: Final = "load one into tls=, by load_cert_chain(cert, key)"
"""Advice about a missing client certificate. The command line names its own options instead."""

CERTIFICATE_ASKED: Final = f"does it require a client certificate? {LOAD_CERTIFICATE}"
"""Ending of reasons why a server with TLS may have closed a new connection."""

_USUAL: Final = (1000, 1005)
"""Codes of a normal closure."""


def code_for(error: BusError) -> int:
    """Return the close code for rejecting a client with an error."""
    return 4401 if isinstance(error, Unauthorized) else 4403 if isinstance(error, Forbidden) else 1013


def text_of(error: BusError) -> str:
    """Return the error message for a rejected client."""
    return getattr(error, "text", None) or str(error)


def closed_by_peer(code: int, reason: str) -> Closed:
    """Return the `Closed` for a close code received from the peer. Without a reason, it names an unusual code."""
    reason = reason or ("" if code in _USUAL else f"closed with code {code}")
    error = Unauthorized if code == 4401 else Forbidden if code == 4403 else None
    return Closed(code, reason, None if error is None else error(reason))


def cut_reason(reason: str) -> bytes:
    """Encode a close reason in UTF-8, truncating it to `MAX_REASON` bytes at a character boundary."""
    data = reason.encode("utf-8", "replace")
    return data if len(data) <= MAX_REASON else data[:MAX_REASON].decode("utf-8", "ignore").encode()


def sayable(code: int) -> int:
    """Return a close code that may be sent: 1000 in place of reserved codes (RFC 6455, section 7.4.1)."""
    if 3000 <= code < 5000 or (1000 <= code < 1015 and code not in (1004, 1005, 1006)):
        return code
    return 1000
