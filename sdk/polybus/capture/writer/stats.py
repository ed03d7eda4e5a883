"""Sizes and times of batches, and the figures of a writer."""

from __future__ import annotations

from typing import Final

from attrs import define

__all__ = ["BATCH_ROWS", "FLUSH_SECONDS", "WriterCounts"]

BATCH_ROWS: Final = 4096
"""At most in one batch: a quarter of what one of 1,024 rows costs is the same however many rows there are."""
FLUSH_SECONDS: Final = 0.1
"""After which also fewer are written."""


@define
class WriterCounts:
    """Figures of a writer so far."""

    done: int = 0
    """Rows that it was given, and that are written or lost."""
    frames: int = 0
    """Frames written, with the rows that say what became of connections."""
    bytes: int = 0
    """Bytes written."""
    refused: int = 0
    """Frames lost."""
    redacted: int = 0
    """Frames in which something was blanked."""
    seq: int = 0
    """Number of the next row."""
