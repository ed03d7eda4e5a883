"""Rows of a capture before they are columns: what those of a connection have in common, and those that say what is missing."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

from attrs import define, frozen

DIRECTION_OUT: Final = 0
DIRECTION_IN: Final = 1

FLAG_TRUNCATED: Final = 1
"""The frame was longer than the recorder keeps; its beginning is there."""
FLAG_REDACTED: Final = 2
"""Something secret was blanked, or the body was left out."""
FLAG_GAP_BEFORE: Final = 4
"""Frames are missing before this row; a row without a frame says how many in its `options`."""

RETENTION: Final = "retention"
"""Of frames that were removed for their age, or for the size of all."""

Ttl: TypeAlias = "float | tuple[float | None, ...] | None"
RecordedFrame: TypeAlias = "tuple[RowHeader, int, bytes | None, Ttl]"
"""A recorded frame: its end, the monotonic clock, the bytes, the seconds for which its requests are waited for."""
FIELDS: Final = 4
"""Rows wait as one flat list, four entries for each: a million tuples would keep the garbage collector busy."""
MOST: Final = 16_384 * FIELDS
"""Entries that may wait."""
SMALL: Final = 4096
"""Bytes: what is smaller is bounded by its number alone."""


@define(eq=False)
class RowHeader:
    """One direction of one connection, or something that is said about it: what all its rows have in common."""

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
    """The end of a row that says that frames are missing before it.

    Args:
        what: Why, a word.
        frames: Their number; 0 where it is not known.
        facts: More about it, as JSON has it.
    """

    __slots__ = ("frames", "what")

    def __init__(self, what: str, frames: int, **facts: Any) -> None:
        super().__init__(DIRECTION_OUT, options=json.dumps({"gap": what, "frames": frames, **facts}), flags=FLAG_GAP_BEFORE)
        self.what: str = what
        self.frames: int = frames


@frozen
class Missing:
    """The contents of such a row."""

    what: str
    """Why, a word; "unknown" where it says nothing that can be read."""
    frames: int
    """Number of them."""
    segments: tuple[int, ...] = ()
    """The numbers of the first and the last segment that they were in, where it names them."""

    @classmethod
    def of(cls, options: str | None) -> Missing:
        """From the options of a row, which may hold anything."""
        try:
            facts = json.loads(options or "")
            what, frames = facts["gap"], facts["frames"]
            segments = [number for number in facts.get("segments", []) if isinstance(number, int)]
            if isinstance(what, str) and isinstance(frames, int):
                return cls(what, frames, tuple(segments))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        return cls("unknown", 0)
