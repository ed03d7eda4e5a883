"""Times that people write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from .ranges import LAST_NS

FIRST_NS: Final = 10**17
"""In 1973: a smaller number is one of seconds, of milliseconds or of microseconds, or a date without its dashes."""


def nanoseconds(text: str, name: str = "time") -> int:
    """A time as text, ISO 8601 (UTC where it names no zone), or nanoseconds since 1970 as they are.

    Returns:
        Nanoseconds since 1970; what is too early or too late for 64 bits (the year 2262) becomes the first or last of them.

    Raises:
        ValueError: It is neither.
    """
    if text.isdecimal():
        if 0 < int(text) < FIRST_NS:
            raise ValueError(f"{name}={text!r}: nanoseconds since 1970 have 19 digits; or say a time as 2026-11-21T08:00:00Z")
        return min(int(text), LAST_NS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}: a time as 2026-11-21T08:00:00Z, or nanoseconds since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    return max(-LAST_NS, min(int(whole.timestamp()) * 1_000_000_000 + moment.microsecond * 1000, LAST_NS))
