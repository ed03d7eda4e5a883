"""Formats numbers and times for the report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from ...plugins.tools import counted, in_one_line

LONGEST: Final = 60


def moment(ns: Any) -> str:
    """Format a time, for example ``2026-11-21 08:00:00.123Z``."""
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def shortened(name: Any, longest: int = LONGEST) -> str:
    """Shorten a peer's name by leaving out its middle."""
    text = in_one_line(str(name))
    return text if len(text) <= longest else f"{text[: longest // 2 - 1]}…{text[-longest // 2 :]}"


def part_of(part: int, whole: int, what: str = "request") -> str:
    """Format a share with both numbers, for example ``34 of 401 requests (8.5 %)``."""
    percent = 100 * part / whole if whole else 0.0
    return f"{part:,} of {counted(whole, what)} ({percent:.{'2g' if percent < 10 else '0f'}} %)"
