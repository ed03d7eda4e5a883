"""Finding secrets in the frames of NATS: in CONNECT by the names that its members have, and in lines of headers."""

from __future__ import annotations

import re
from typing import Final

from ..._secrets import is_secret
from .redact_bytes import starred
from .redact_search import MOST

MORE_NATS: Final = r"|^connect[ \t]"
"""Besides names this makes a frame worth a look: every CONNECT."""

_CONNECT: Final = re.compile(rb"\s*connect\s", re.I)
_MEMBER: Final = re.compile(rb'"(?:pass|auth_token|jwt|sig)"\s*:\s*"((?:[^"\\]|\\.)*)"', re.I)
_WITH_HEADERS: Final = re.compile(rb"\s*h(?:pub|msg)\s[^\r\n]*?(\d{1,9})\s+\d+\r\n", re.I)
_HEADER: Final = re.compile(rb"([!-9;-~]+):[ \t]*([^\r\n]+)")


def blank_nats(frame: bytes) -> bytes:
    """The frame with secrets of CONNECT and of headers blanked, cut behind what is looked at of these; the same object where
    there is neither."""
    if _CONNECT.match(frame):
        frame = frame[:MOST]
        return starred(frame, (found.span(1) for found in _MEMBER.finditer(frame)))
    head = _WITH_HEADERS.match(frame)
    if head is None:
        return frame
    if int(head[1]) > MOST:
        frame = frame[: head.end() + MOST]
    lines = _HEADER.finditer(frame, head.end(), head.end() + int(head[1]))
    return starred(frame, (found.span(2) for found in lines if is_secret(found[1].decode("ascii"))))
