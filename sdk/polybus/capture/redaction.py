"""What must not be written: a stage between the recorder's list and its file."""

from __future__ import annotations

import binascii
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from .blanking import SUSPECT, SUSPECT_EVENT, blank
from .compute import pc
from .headers_only import headers_only
from .schema import FLAG_REDACTED, FLAG_TRUNCATED
from .taps import End

__all__ = ["Redact", "Redaction", "redact_default"]

Redact: TypeAlias = Callable[[str, bytes], bytes]
"""``redact(protocol, frame)`` gives what is to be written in place of a frame."""

logger: logging.Logger = logging.getLogger("polybus.capture")
_DATA_IN_FRAMES: Final = re.compile(rb'"data_base64":"([^"]*)"')
_BETWEEN: Final = b"CgoK"
"""Base64 of line feeds: nothing that is looked for goes over it."""
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

    def apply(self, ends: Sequence[End], frames: list[Any], longest: int) -> tuple[pa.Array, list[int] | None, int]:
        """What is to be written of some frames, which are changed in place.

        Gives them as an array, what is added to the flags of each (None for nothing), and how many were blanked.
        """
        flags: dict[int, int] = {}
        if not self._bodies:
            for row in range(len(frames)):
                self._change(row, frames, flags, ends[row], lambda end, frame: headers_only(end.protocol, end.options, frame))
        array = pa.array(frames, pa.binary())
        if self._redact is not None:
            redact = self._redact
            for row in suspicious(ends, frames, array) if self._suspects else range(len(frames)):
                self._change(row, frames, flags, ends[row], lambda end, frame: redact(end.protocol, frame))
        blanked = len(flags)
        if array.nbytes > longest:
            for row, frame in enumerate(frames):
                if frame is not None and len(frame) > longest:
                    frames[row] = frame[:longest]
                    flags[row] = flags.get(row, 0) | FLAG_TRUNCATED
        if not flags:
            return array, None, 0
        return pa.array(frames, pa.binary()), [flags.get(row, 0) for row in range(len(frames))], blanked

    def _change(
        self, row: int, frames: list[Any], flags: dict[int, int], end: End, change: Callable[[End, bytes], bytes]
    ) -> None:
        frame = frames[row]
        if not frame:
            return
        try:
            changed = change(end, frame)
            if type(changed) is not bytes:
                if not isinstance(changed, (bytes, bytearray, memoryview)):
                    raise TypeError(f"redact gave {type(changed).__name__}: it gives the bytes that are to be written")
                changed = bytes(changed)
        except Exception:
            if not self._failed:
                self._failed = True
                logger.exception("polybus: redaction has failed on a frame of %s; such frames are recorded empty", end.protocol)
            changed = b""
        if changed != frame:
            frames[row] = changed
            flags[row] = FLAG_REDACTED


def suspicious(ends: Sequence[End], frames: list[Any], array: pa.Array) -> Iterable[int]:
    """The rows worth a look, found by an expression that runs over all bytes once, in Arrow."""
    protocols = {end.protocol for end in set(ends)}
    if len(protocols) == 1:
        return _suspicious_of(next(iter(protocols)), frames, array)
    found: list[int] = []
    for protocol in protocols:
        rows = [row for row, end in enumerate(ends) if end.protocol == protocol]
        some = [frames[row] for row in rows]
        found += [rows[row] for row in _suspicious_of(protocol, some, pa.array(some, pa.binary()))]
    return sorted(found)


def _suspicious_of(protocol: str, frames: list[Any], array: pa.Array) -> Iterable[int]:
    """The same for one protocol."""
    found = _matching(array, SUSPECT_EVENT if protocol == "uprotocol" else SUSPECT)
    if protocol == "uprotocol" and _hidden_in(frames):
        return found | _matching(pa.array([_data_of(frame) for frame in frames], pa.binary()), SUSPECT)
    if protocol == "csb":
        return found.union(_hiding_csb(array))
    return found


def _hiding_csb(array: pa.Array) -> list[int]:
    """The rows whose first bytes say that their payload is a form or base64: in a header, or after an address of four bytes."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    octets = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    hiding = np.zeros(len(array), bool)
    for place in (0, 4):
        there = np.flatnonzero(ends[1:] - ends[:-1] > place)
        hiding[there] |= np.isin(octets[ends[there] + place] & 15, _HIDING)
    return np.flatnonzero(hiding).tolist()


def _matching(array: pa.Array, expression: str) -> set[int]:
    found = pc.match_substring_regex(array, expression)
    return set(pc.indices_nonzero(found).to_pylist()) if found.true_count else set()


def _hidden_in(frames: Sequence[bytes | None]) -> bool:
    """Whether anything is suspicious among the data of events, which is base64 as a rule. All of it is decoded in one go."""
    data = _DATA_IN_FRAMES.findall(b"\n".join(filter(None, frames)))
    if not data:
        return False
    text = _BETWEEN.join(data).replace(b"=", b"A")
    try:
        plain = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return True
    return any(len(one) % 4 for one in data) or bool(_matching(pa.array([plain], pa.binary()), SUSPECT))


def _data_of(frame: bytes | None) -> bytes | None:
    """What is in the data of an event, or of all events of a batch."""
    if frame is None:
        return None
    try:
        return b"\n".join(map(binascii.a2b_base64, _DATA_IN_FRAMES.findall(frame)))
    except ValueError:
        return frame  # to be looked at
