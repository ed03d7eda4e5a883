"""Sizes and times of batches, the settings of a writer and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import define, field, frozen

BATCH_ROWS: Final = 4096
"""At most in one batch: a quarter of what one of 1,024 rows costs is the same however many rows there are."""
FLUSH_SECONDS: Final = 0.1
"""After which also fewer are written."""


@frozen(kw_only=True)
class WriterSettings:
    """Settings of a recording, for its recorder and for the writer of its segments."""

    path: str
    """The folder; it is made where there is none (mode 0700)."""
    capture_id: str
    """Of the recording."""
    max_bytes: int
    """Of all sealed segments in it: beyond that the oldest are removed."""
    max_age: float
    """Seconds after which sealed segments are removed."""
    segment_bytes: int = 64 << 20
    """Of a segment, when it is sealed."""
    segment_seconds: float = 60.0
    """After which one is sealed."""
    frame_bytes: int = 4 << 20
    """Kept of a frame; the rest of a longer one is cut off."""
    redact: Any = "default"
    """Filter of what must not be written: a function, ``"default"``, or None for nothing."""
    bodies: bool = True
    """True if bodies are written."""
    decode: bool = False
    """True if another process decodes what has been sealed."""
    metadata: Mapping[str, str] = field(factory=dict)
    """Goes into each segment."""
    resume: int | None = None
    """The number of the next row, as reported by a writer that was killed and in whose place this one goes on."""


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
