"""What must not be written: a stage between the recorder's list and its file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .blanking import SUSPECT, blank
from .headers_only import headers_only
from .schema import FLAG_REDACTED, FLAG_TRUNCATED
from .taps import End

__all__ = ["Redact", "Redaction", "redact_default"]

Redact: TypeAlias = Callable[[str, bytes], bytes]
"""``redact(protocol, frame)`` gives what is to be written in place of a frame."""

logger: logging.Logger = logging.getLogger("polybus.capture")
_FORM: Final = 3
_BASE64: Final = 4
_HIDING: Final = (_FORM, _BASE64)


def redact_default(protocol: str, frame: bytes) -> bytes:
    """What is done where nothing else is asked for: blank members named like secrets, cookies and tokens; see `blanking`."""
    if protocol == "csb":
        for start in (0, 4):
            if len(frame) > start + 8 and frame[start] >> 4 in (1, 2) and frame[start] & 15 in _HIDING:
                encoding = frame[start] & 15
                frame = blank(
                    frame,
                    form=start + 8 if encoding == _FORM else None,
                    encoded=start + 8 if encoding == _BASE64 else None,
                )
    return blank(frame)


class Redaction:
    """Blanks frames, leaves out bodies, cuts what is too long.

    Args:
        redact: ``"default"``, a function, or None for nothing.
        bodies: Whether bodies are written; without them, the fields that say what a message is for.
    """

    def __init__(self, redact: Redact | Literal["default"] | None, *, bodies: bool) -> None:
        self._redact: Redact | None = redact_default if redact == "default" else redact
        self._suspects = self._redact is redact_default
        self._bodies = bodies
        self._failed = False

    def apply(self, ends: Sequence[End], frames: list[Any], longest: int) -> tuple[list[int] | None, int]:
        """Change frames in place. Gives what is added to the flags of each, None for nothing, and how many were blanked."""
        flags: dict[int, int] = {}
        rows: Any = range(len(frames))
        if not self._bodies:
            for row in rows:
                self._change(row, frames, flags, ends[row], lambda end, frame: headers_only(end.protocol, end.options, frame))
        if self._redact is not None:
            redact = self._redact
            for row in self._suspicious(ends, frames) if self._suspects else rows:
                self._change(row, frames, flags, ends[row], lambda end, frame: redact(end.protocol, frame))
        blanked = len(flags)
        for row, frame in enumerate(frames):
            if frame is not None and len(frame) > longest:
                frames[row] = frame[:longest]
                flags[row] = flags.get(row, 0) | FLAG_TRUNCATED
        return ([flags.get(row, 0) for row in range(len(frames))] if flags else None), blanked

    def _change(
        self, row: int, frames: list[Any], flags: dict[int, int], end: End, change: Callable[[End, bytes], bytes]
    ) -> None:
        frame = frames[row]
        if not frame:
            return
        try:
            changed = change(end, frame)
        except Exception:
            if not self._failed:
                self._failed = True
                logger.exception("polybus: redaction has failed on a frame of %s; such frames are recorded empty", end.protocol)
            changed = b""
        if changed != frame:
            frames[row] = changed
            flags[row] = FLAG_REDACTED

    @staticmethod
    def _suspicious(ends: Sequence[End], frames: list[Any]) -> list[int]:
        """The rows worth a look, found in one pass over all bytes."""
        # Latin-1 text has a character for each byte, so that the expression is not stopped by bytes that are no UTF-8.
        found = pc.match_substring_regex(pa.array(frames, pa.binary()), SUSPECT)
        rows = [row for row, suspect in enumerate(found.to_pylist()) if suspect]
        more = [
            row
            for row, (end, frame) in enumerate(zip(ends, frames, strict=True))
            if end.protocol == "csb" and frame and (frame[0] & 15 in _HIDING or (len(frame) > 4 and frame[4] & 15 in _HIDING))
        ]
        return sorted({*rows, *more}) if more else rows
