"""Capture rows before they become columns: the header shared by a connection's rows, and rows about gaps."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from attrs import define, frozen

DIRECTION_OUT: Final = 0
DIRECTION_IN: Final = 1

FLAG_TRUNCATED: Final = 1
"""The frame exceeded the recorder's size limit and was truncated."""
FLAG_REDACTED: Final = 2
"""A secret was blanked, or the body was omitted."""
FLAG_GAP_BEFORE: Final = 4
"""Frames are missing before this row. If the row has no frame, its `options` contain the number of missing frames."""

RETENTION: Final = "retention"
"""Frames were removed because of the age limit or total size limit."""

Ttl: TypeAlias = "float | tuple[float | None, ...] | None"
RecordedFrame: TypeAlias = "tuple[RowHeader, int, bytes | None, Ttl]"
"""A recorded frame: its header, monotonic time, bytes, and the timeouts of its requests in seconds."""
FIELDS: Final = 4
"""Number of fields per row. Queued rows are a flat list, because a million tuples would keep the garbage collector busy."""
MOST: Final = 16_384 * FIELDS
SMALL: Final = 4096
"""Size in bytes below which frames are limited only by their number."""


@define(eq=False)
class RowHeader:
    """Header shared by all rows of one direction of a connection, or of a row about the connection."""

    direction: int
    conn_id: str = ""
    peer: str = ""
    protocol: str = ""
    transport: str = ""
    tunnel: tuple[str, ...] = ()
    options: str = ""
    role: int = 0
    flags: int = 0


class Gap(RowHeader):
    """Header of a row about missing frames: the reason (one word), their number (0 if unknown), and further members."""

    __slots__ = ("frames", "what")

    def __init__(self, what: str, frames: int, **facts: Any) -> None:
        super().__init__(DIRECTION_OUT, options=json.dumps({"gap": what, "frames": frames, **facts}), flags=FLAG_GAP_BEFORE)
        self.what: str = what
        self.frames: int = frames


@frozen
class Missing:
    what: str
    """The reason as a single word, or "unknown" if it is unreadable."""
    frames: int
    segments: tuple[int, ...] = ()
    """Numbers of the first and last segment of the missing frames, if given."""

    @classmethod
    def of(cls, options: str | None) -> Missing:
        try:
            facts = json.loads(options or "")
            what, frames = facts["gap"], facts["frames"]
            segments = [number for number in facts.get("segments", []) if isinstance(number, int)]
            if isinstance(what, str) and isinstance(frames, int):
                return cls(what, frames, tuple(segments))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        return cls("unknown", 0)
