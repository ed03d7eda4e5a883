"""Splits a byte stream into frames, and rejects frames that are too large. Does no I/O.

On TCP, TLS and Unix sockets, a frame is its length in four bytes, big-endian, followed by that many bytes. Length zero is a
keep-alive. The invalid length `CLOSING` starts the closing frame, which is the last frame and carries a reason as in
WebSockets::

    FF 43 4C 4F   code (uint16)   length of the reason (uint16, at most 123)   reason (UTF-8)

A peer that doesn't know closing frames sees an invalid length and closes the connection, which is the intended result.
"""

from __future__ import annotations

import struct
import sys
from abc import ABC, abstractmethod
from typing import ClassVar, Final

from attrs import define, field

from ...plugins import Closed
from ...plugins.close_codes import MAX_REASON, closed_by_peer, cut_reason
from ...speedups import native

CLOSING: Final = 0xFF434C4F
KEEP_ALIVE: Final = b"\0\0\0\0"

_CLOSE: Final = struct.Struct("!IHH")
_unpack_length = struct.Struct("!I").unpack_from
pack_length = struct.Struct("!I").pack

_HTTP: Final = (b"HTTP", b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS: Final = (b"\x15\x03", b"\x16\x03")
"""Starts of a TLS alert and a TLS hello."""

_SMALL: Final = 4096


@define(eq=False, repr=False, weakref_slot=False)
class Framer(ABC):
    """Splits the input of one connection into frames, without I/O.

    `ended` is the content of the peer's closing frame, and `broken` the peer's protocol error, after which input is ignored.
    If `ends_with_goodbye` is set, the local side closes its half of the connection after sending a goodbye.
    """

    ends_with_goodbye: ClassVar[bool]

    _limit: int = field(alias="limit")
    # An incomplete header, or an incomplete frame.
    _head: bytes = field(default=b"", init=False)
    _frame: PartialFrame | None = field(default=None, init=False)
    ended: Closed | None = field(default=None, init=False)
    broken: Closed | None = field(default=None, init=False)
    empty_frames: int = field(default=0, init=False)

    @property
    @abstractmethod
    def partial(self) -> str:
        """Description of the frame that has arrived incompletely, or empty between frames."""

    @property
    @abstractmethod
    def arrived(self) -> int:
        """Number of bytes of an incomplete frame that have arrived, including its header, or 0 between frames."""

    @abstractmethod
    def feed(self, data: bytes) -> list[bytes]:
        """Add a chunk of input and return the frames that it completes."""

    @abstractmethod
    def goodbye(self, code: int, reason: str) -> list[bytes]: ...


class PartialFrame:
    """An incomplete frame of `size` bytes. `missing` bytes have not arrived yet."""

    __slots__ = ("missing", "parts", "size")

    def __init__(self, size: int, data: bytes) -> None:
        self.size = self.missing = size
        self.parts: list[bytes | bytearray] = []
        if data:
            self.add(data)

    def add(self, data: bytes) -> None:
        """Append a part. Small parts are joined so that one-byte chunks don't cost an object each."""
        self.missing -= len(data)
        parts = self.parts
        if len(data) >= _SMALL:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def fill(self, data: bytes) -> bytes | None:
        if len(data) < self.missing:
            self.add(data)
            return None
        self.parts.append(data[: self.missing])
        return b"".join(self.parts)


def closing_frame(code: int, reason: str) -> bytes:
    text = cut_reason(reason)
    return _CLOSE.pack(CLOSING, code, len(text)) + text


@define(eq=False, repr=False, weakref_slot=False)
class LengthFramer(Framer):
    """Framer for one side of a connection. Empty frames are keep-alives."""

    ends_with_goodbye: ClassVar[bool] = True

    _begun: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._limit = min(self._limit, sys.maxsize)

    def goodbye(self, code: int, reason: str) -> list[bytes]:
        return [closing_frame(code, reason)]

    @property
    def partial(self) -> str:
        frame = self._frame
        if frame is not None:
            return f"{frame.size - frame.missing} of {frame.size} bytes"
        return f"{len(self._head)} of 4 bytes of a length" if self._head else ""

    @property
    def arrived(self) -> int:
        frame = self._frame
        return 4 + frame.size - frame.missing if frame is not None else len(self._head)

    def feed(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        if self.ended is not None or self.broken is not None:
            return frames
        position = 0
        if self._frame is not None:
            position = self._frame.missing
            whole = self._frame.fill(data)
            if whole is None:
                return frames
            frames.append(whole)
            self._frame = None
        elif self._head:
            data = self._head + data
            self._head = b""
        size = len(data)
        limit = self._limit
        if native is not None:
            position = native.cut(data, position, limit, frames)
        while size - position >= 4:
            (length,) = _unpack_length(data, position)
            start = position + 4
            if 0 < length <= limit:
                position = start + length
                if position > size:
                    self._begun = True
                    self._frame = PartialFrame(length, data[start:])
                    return frames
                frames.append(data[start:position])
            elif length:
                self._special(length, data[position:])
                return frames
            else:
                self.empty_frames += 1
                position = start
        if position < size:
            self._head = data[position:]
        return frames

    def _special(self, length: int, data: bytes) -> None:
        if length != CLOSING:
            self.broken = Closed(1009, self._hint(data[:4]) or f"a frame of {length} bytes, the limit is {self._limit}")
        elif len(data) < _CLOSE.size:
            self._head = data
        else:
            self._closing(data)

    def _closing(self, data: bytes) -> None:
        _, code, length = _CLOSE.unpack_from(data)
        end = _CLOSE.size + length
        if length > MAX_REASON:
            self.broken = Closed(1002, f"a closing frame with a reason of {length} bytes, the limit is {MAX_REASON}")
        elif len(data) < end:
            self._head = data
        else:
            self.ended = closed_by_peer(code, data[_CLOSE.size : end].decode("utf-8", "replace"))

    def _hint(self, head: bytes) -> str:
        if self._begun:
            return ""
        if head in _HTTP:
            return "received HTTP instead of length-prefixed frames: use ws:// or http:// on both sides, or tcp:// or tls://"
        if head[:2] in _TLS:
            return "received TLS instead of length-prefixed frames: use tls:// on both sides, or tcp://"
        if head.isascii() and (text := head.decode()).isprintable():
            return f"received text ({text!r}) instead of length-prefixed frames: is this port for another protocol?"
        return ""
