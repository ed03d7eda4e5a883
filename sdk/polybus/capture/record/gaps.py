"""Rows without a frame that say what is missing before them."""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from ..store.flags import DIRECTION_OUT, FLAG_GAP_BEFORE
from .taps import RowHeader

RETENTION: Final = "retention"
"""Of frames that were removed for their age, or for the size of all."""


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

    def facts(self) -> list[Any]:
        """The same, of a gap."""
        return [[self.what, self.frames], *super().facts()[1:]]


@attrs.frozen
class Missing:
    """The contents of such a row.

    Attributes:
        what: Why, a word; "unknown" where it says nothing that can be read.
        frames: How many.
        segments: The numbers of the first and the last segment that they were in, where it names them.
    """

    what: str
    frames: int
    segments: tuple[int, ...] = ()

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
