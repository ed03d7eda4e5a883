"""Numbers that stand in rows of a capture."""

from __future__ import annotations

from typing import Final

DIRECTION_OUT: Final = 0
DIRECTION_IN: Final = 1

FLAG_TRUNCATED: Final = 1
"""The frame was longer than the recorder keeps; its beginning is there."""
FLAG_REDACTED: Final = 2
"""Something secret was blanked, or the body was left out."""
FLAG_GAP_BEFORE: Final = 4
"""Frames are missing before this row; a row without a frame says how many in its `options`."""
