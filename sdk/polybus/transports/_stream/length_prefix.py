"""Frames with a length in front, without I/O: the framing of tcp, tls and unix.

A frame is four bytes of length, big-endian, and that many bytes. The length zero is a keep-alive. One length that no frame
can have, `CLOSING`, begins our closing frame, so that a reason survives on TCP as it does on a WebSocket::

    FF 43 4C 4F   code (uint16)   length of the reason (uint16, at most 123)   reason (UTF-8)

It is the last thing that is sent. A peer that does not know it sees an impossible length and closes, as it should.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

from ...plugins import Closed
from .close_codes import MAX_REASON, closed_by_peer, cut_reason
from .framer import Framer, PartialFrame

CLOSING: Final = 0xFF434C4F
KEEP_ALIVE: Final = b"\0\0\0\0"

_CLOSE: Final = struct.Struct("!IHH")
_unpack_length = struct.Struct("!I").unpack_from
pack_length = struct.Struct("!I").pack

_HTTP: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP")


def closing_frame(code: int, reason: str) -> bytes:
    """The last frame of a connection."""
    text = cut_reason(reason)
    return _CLOSE.pack(CLOSING, code, len(text)) + text


class LengthFramer(Framer):
    """One side of a connection. Frames without content are keep-alives."""

    __slots__ = ("_begun",)

    ends_with_goodbye: ClassVar[bool] = True

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._begun = False

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
        """A length that no frame has."""
        if length != CLOSING:
            self.broken = Closed(1009, f"a frame of {length} bytes, the limit is {self._limit}{self._hint(data[:4])}")
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
        """Guess what a first length that is far too large really was."""
        if self._begun:
            return ""
        if head in _HTTP:
            return ": looks like HTTP, is the peer meant to speak ws:// or http://?"
        if head[:2] == b"\x16\x03":
            return ": looks like a TLS hello, is the peer meant to connect by tcp://, or this to serve tls://?"
        return ""
