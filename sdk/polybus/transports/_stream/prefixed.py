"""Length-prefixed frames over TCP, TLS and Unix sockets: the framing, which does no I/O, and the transport.

A frame is its length in four bytes, big-endian, followed by that many bytes. Length zero is a keep-alive. The invalid length
`CLOSING` starts the closing frame, which is the last frame and carries a reason as in WebSockets::

    FF 43 4C 4F   code (uint16)   length of the reason (uint16, at most 123)   reason (UTF-8)

A peer that doesn't know closing frames sees an invalid length and closes the connection, which is the intended result.

Third-party peers don't answer keep-alives, but their kernel acknowledges them, so silence is not a failure. After
`Limits.ping_interval` of silence polybus sends a keep-alive. If the peer's kernel acknowledges nothing within
`Limits.ping_timeout`, the connection is considered lost. Systems other than Linux don't report acknowledgements. On these
systems the kernel's own keep-alive uses the same intervals. The write timeout detects a peer that doesn't read.
"""

from __future__ import annotations

import struct
import sys
from typing import ClassVar, Final

from ...plugins import Closed, Host
from ...plugins.close_codes import MAX_REASON, closed_by_peer, cut_reason
from ...plugins.connections import TransportState
from ...speedups import native
from .transport import Framer, PartialFrame, StreamTransport
from .wire import Wire

CLOSING: Final = 0xFF434C4F
KEEP_ALIVE: Final = b"\0\0\0\0"

_CLOSE: Final = struct.Struct("!IHH")
_unpack_length = struct.Struct("!I").unpack_from
pack_length = struct.Struct("!I").pack
_OPEN: Final = TransportState.OPEN  # an attribute of an enum class costs three times as much

_HTTP: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")


def closing_frame(code: int, reason: str) -> bytes:
    text = cut_reason(reason)
    return _CLOSE.pack(CLOSING, code, len(text)) + text


class LengthFramer(Framer):
    """Framer for one side of a connection. Empty frames are keep-alives."""

    __slots__ = ("_begun",)

    ends_with_goodbye: ClassVar[bool] = True

    def __init__(self, limit: int) -> None:
        super().__init__(min(limit, sys.maxsize))
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
        if head == b"HTTP":
            return (
                "the server answered with HTTP: write ws:// or http:// instead of tcp://, wss:// or https:// instead of tls://"
            )
        if head in _HTTP:
            return "the client sent an HTTP request: it must connect with tcp:// or tls://, not with ws:// or http://"
        if head[:2] == b"\x15\x03":
            return "the server answered with a TLS alert: write tls:// instead of tcp://"
        if head[:2] == b"\x16\x03":
            return "the client sent a TLS hello: it must connect with tcp://, or this server must serve tls://"
        return ""


_LARGE: Final = 64 * 1024


class TcpTransport(StreamTransport[LengthFramer]):
    __slots__ = ("_asked_at", "_kept_alive_at")

    admitted: Final = False
    """The kernel has accepted the connection. Unless the server sends a rejection, the client counts as admitted."""

    def __init__(self, name: str, wire: Wire, host: Host) -> None:
        super().__init__(name, wire, host, LengthFramer(host.limits.message))
        self._kept_alive_at = self._heard_at
        # Time of the first keep-alive that is not acknowledged.
        self._asked_at: float | None = None

    def send(self, frame: bytes) -> None:
        size = len(frame)
        if size > self.max_frame:
            self._check_size(size)
        if self._state is not _OPEN:
            return
        if size < _LARGE:
            self._wire.write(pack_length(size) + frame)
        else:
            self._wire.write(pack_length(size))
            self._wire.write(frame)

    def framed(self, frame: bytes) -> bytes:
        if len(frame) > self.max_frame:
            self._check_size(len(frame))
        return pack_length(len(frame)) + frame

    def data_received(self, data: bytes) -> None:
        self._heard = True
        framer = self._framer
        frames = framer.feed(data)
        if frames:
            self._deliver(frames)
        if framer.ended is not None:
            self._peer_left(framer.ended)
        elif framer.broken is not None:
            if self._state is TransportState.OPEN:  # while closing, the peer may send until it reads the reason
                self._fail(framer.broken.code, framer.broken.reason)
        elif framer.empty_frames > self._host.limits.empty_frames:
            self._check_flood()

    def _peer_left(self, why: Closed) -> None:
        if self._state is TransportState.OPEN:
            self._leave(why)
            self._wire.hang_up()

    def _check_silence(self, now: float) -> None:
        limits = self._host.limits
        if self._asked_at is not None and now - self._asked_at >= limits.ping_timeout:
            signs = self._wire.signs() if self._heard_at <= self._asked_at else None
            if signs is None or not signs.unanswered:
                self._asked_at = None
            elif signs.silence >= limits.ping_timeout:
                self.abort(Closed(1006, f"no sign of life for {signs.silence:.0f} s: no data was acknowledged"))
                return
        if now - max(self._heard_at, self._kept_alive_at) >= limits.ping_interval:
            self._kept_alive_at = now
            if self._asked_at is None:
                self._asked_at = now
            self._wire.write(KEEP_ALIVE)
