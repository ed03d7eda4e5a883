"""Redacts secrets between the recorder's list and its file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...plugins.tools import log_fields
from ..protocols import BLANK, SUSPECT, csb, headers_only
from ..rows import RowHeader
from ..schema import FLAG_REDACTED, FLAG_TRUNCATED
from ..store.compute import pc
from .redact_bytes import blank
from .redact_search import suspicious

Redact: TypeAlias = Callable[[str, bytes], bytes]
"""``redact(protocol, frame)`` returns the bytes to write in place of a frame."""
Int32s: TypeAlias = npt.NDArray[np.int32]

logger: logging.Logger = logging.getLogger("polybus.capture")


def redact_default(protocol: str, frame: bytes) -> bytes:
    """Blank members with secret names, cookies and tokens. See `redact_bytes`."""
    special = BLANK.get(protocol)
    return blank(frame if special is None else special(frame))


class Redaction:
    """Blanks secrets with `redact`, omits bodies except fields that show the message's purpose, and truncates frames."""

    def __init__(self, redact: Redact | Literal["default"] | None, *, bodies: bool, longest: int = 4 << 20) -> None:
        self._redact: Redact | None = redact_default if redact == "default" else redact
        self._suspects = self._redact is redact_default
        self._bodies = bodies
        self._longest = longest
        self._failed = False

    def apply(self, ends: Sequence[RowHeader], numbers: Int32s, frames: pa.Array) -> tuple[pa.Array, Int32s | None, int]:
        """Return the frames to write, flags to add or `None`, and the number of redacted frames."""
        flags = np.zeros(len(frames), np.int32)
        if frames.nbytes > self._longest:
            frames = self._cut(frames, flags)
        cut = np.flatnonzero(flags).tolist()  # a secret may continue behind the cut, where its shape is unknown
        every = range(len(frames))
        if not self._bodies:
            frames = self._changed(((row, ends[numbers[row]]) for row in every), frames, flags, self._without_body)
        if (redact := self._redact) is not None:
            which = sorted({*_suspicious(ends, numbers, frames), *cut}) if self._suspects else every
            rows = ((row, ends[numbers[row]]) for row in which)
            frames = self._changed(rows, frames, flags, lambda end, one: redact(end.protocol, one))
        return frames, flags if flags.any() else None, int(np.count_nonzero(flags & FLAG_REDACTED))

    def _without_body(self, end: RowHeader, frame: bytes) -> bytes:
        return headers_only(end.protocol, end.options, frame, cut=len(frame) == self._longest)

    def _changed(
        self, rows: Iterable[tuple[int, RowHeader]], frames: pa.Array, flags: Int32s, change: Callable[..., bytes]
    ) -> pa.Array:
        made: dict[int, bytes] = {}
        for row, end in rows:
            frame = frames[row].as_py()
            if not frame:
                continue
            try:
                changed: Any = change(end, frame)
                if not isinstance(changed, (bytes, bytearray, memoryview)):
                    raise TypeError(f"redact returned {type(changed).__name__}: it must return the bytes to write")
            except BaseException:  # SystemExit too would end the recording unnoticed
                if not self._failed:
                    self._failed = True
                    what = "redaction has failed on a frame of %s; such frames are recorded empty"
                    logger.exception(what, end.protocol, extra=log_fields(protocol=end.protocol))
                changed = b""
            if changed != frame:
                made[row] = bytes(changed)
                flags[row] |= FLAG_REDACTED
                if self._suspects and 0 < len(changed) < len(frame):
                    flags[row] |= FLAG_TRUNCATED
        return _with(frames, made)

    def _cut(self, frames: pa.Array, flags: Int32s) -> pa.Array:
        rows = pc.indices_nonzero(pc.greater(pc.binary_length(frames), self._longest)).to_pylist()
        flags[rows] |= FLAG_TRUNCATED
        return _with(frames, {row: frames[row].as_py()[: self._longest] for row in rows})


def _with(frames: pa.Array, made: dict[int, bytes]) -> pa.Array:
    if not made:
        return frames
    mask = np.zeros(len(frames), bool)
    rows = sorted(made)
    mask[rows] = True
    return pc.replace_with_mask(frames, pa.array(mask), pa.array([made[row] for row in rows], pa.binary()))


def _suspicious(ends: Sequence[RowHeader], numbers: Int32s, frames: pa.Array) -> Iterable[int]:
    of: dict[str, list[int]] = {}
    for number in np.flatnonzero(np.bincount(numbers)).tolist():
        of.setdefault(ends[number].protocol, []).append(number)
    found: set[int] = set()
    for protocol, some in of.items():
        rows = np.flatnonzero(np.isin(numbers, some))
        part = frames if len(of) == 1 else frames.take(pa.array(rows))
        worth = suspicious(part, SUSPECT.get(protocol, ""))
        found.update(rows[worth + (csb.hiding(part) if protocol == "csb" else [])].tolist())
    return found
