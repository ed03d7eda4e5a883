"""Errors for what a peer should not have sent."""

from __future__ import annotations

from typing import Final

from .._rules import WireRules

NAME: Final = "up"
WIRE_RULES: Final = WireRules(NAME)
refuse: Final = WIRE_RULES.refuse

_TOKEN: Final = b"\x52"


def shown(frame: bytes) -> bytes:
    """The beginning of a frame, for people; of one that may have a token nothing: a token is never shown."""
    return b"" if _TOKEN in frame else frame[:200]
