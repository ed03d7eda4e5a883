"""WebSocket framing without I/O (RFC 6455, section 5).

Unfragmented data frames, which are nearly all traffic, are parsed here for speed. Everything else (control frames, fragments,
errors) goes through the protocol core of the `websockets` library, which is created on demand and dropped when idle to save
memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Set as AbstractSet
from typing import ClassVar, Final, Literal

from attrs import define, field
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import CLIENT, OPEN, SERVER, Protocol

from ...plugins import Closed
from ...plugins.close_codes import closed_by_peer, cut_reason, sayable
from .._stream.framing import Framer, PartialFrame
from ..websocket import MAX_FRAGMENTS, core_logger

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

_TEXT: Final = 0x81
_BINARY: Final = 0x82
_FIRST: Final = {"text": _TEXT, "binary": _BINARY}
_OPCODES: Final = frozenset(Opcode)
_KEYS: Final = 512
"""Bytes of masking keys to generate at a time. A system call per frame would make up a tenth of a frame's cost."""

_pack_16 = struct.Struct("!BBH").pack
_pack_64 = struct.Struct("!BBQ").pack
_unpack_64 = struct.Struct("!Q").unpack_from


@define(eq=False, repr=False, weakref_slot=False)
class WebSocketFramer(Framer):
    """WebSocket framer for one side of a connection after its handshake. Pings and pongs count as empty frames.

    Pongs and closing frames are put in `out`, which the user of the framer clears.
    """

    # The TCP connection ends after the peer's closing frame or a time-out.
    ends_with_goodbye: ClassVar[bool] = False

    server: bool = field(kw_only=True)
    _reads: AbstractSet[Literal["text", "binary"]] = field(kw_only=True, alias="reads")
    _writes: Literal["text", "binary"] = field(kw_only=True, alias="writes")
    # First bytes of data frames: those that are accepted, and the one to write.
    _kinds: tuple[int, int] = field(init=False)
    _first: int = field(init=False)
    _keys: bytearray = field(factory=bytearray, init=False)
    # Masking key and type of an incomplete data frame.
    _key: bytes = field(default=b"", init=False)
    _text: bool = field(default=False, init=False)
    # The library's core while in use, the size of its current frame, and the number of bytes missing from it.
    _core: Protocol | None = field(default=None, init=False)
    _size: int = field(default=0, init=False)
    _owed: int = field(default=0, init=False)
    _fragments: list[bytes] | None = field(default=None, init=False)
    out: list[bytes] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._kinds = (_TEXT if "text" in self._reads else -1, _BINARY if "binary" in self._reads else -1)
        self._first = _FIRST[self._writes]

    @property
    def partial(self) -> str:
        frame = self._frame
        if frame is not None:
            return f"{frame.size - frame.missing} of {frame.size} bytes"
        if self._owed:
            return f"{self._owed} bytes of a frame are missing"
        if self._fragments is not None:
            return f"{len(self._fragments)} fragments without a last one"
        return f"{len(self._head)} bytes of a header" if self._head else ""

    @property
    def arrived(self) -> int:
        frame = self._frame
        if frame is not None:
            return 2 + frame.size - frame.missing
        fragments = 2 + sum(map(len, self._fragments)) if self._fragments is not None else 0
        return fragments + (self._size - self._owed if self._owed else len(self._head))

    # -- reading

    def feed(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        position = 0
        if self.ended is not None or self.broken is not None:
            return frames
        if self._frame is not None:
            position = self._frame.missing
            whole = self._frame.fill(data)
            if whole is None:
                return frames
            self._frame = None
            self._complete(whole, frames)
        elif self._owed:
            position = min(self._owed, len(data))
            self._owed -= position
            self._by_core(data[:position], frames)
        elif self._head:
            data = self._head + data
            self._head = b""
        return self._cut(data, position, frames)

    def _cut(self, data: bytes, position: int, frames: list[bytes]) -> list[bytes]:
        size = len(data)
        limit = self._limit
        kinds = self._kinds
        server = self.server
        while size - position >= 2 and self.ended is None and self.broken is None:
            first, second = data[position], data[position + 1]
            length = second & 0x7F
            start = position + 2
            if length == 126:
                if size - start < 2:
                    position = self._begun_badly(data, position, frames)
                    break
                length = data[start] << 8 | data[start + 1]
                start += 2
            elif length == 127:
                if size - start < 8:
                    position = self._begun_badly(data, position, frames)
                    break
                (length,) = _unpack_64(data, start)
                start += 8
            masked = second > 0x7F
            if masked:
                start += 4
            end = start + length
            if first in kinds and masked == server and length <= limit and self._core is None:
                if start > size:
                    break
                if end > size:
                    self._text, self._key = first == _TEXT, data[start - 4 : start]
                    self._frame = PartialFrame(length, data[start:])
                    return frames
                frame = data[start:end]
                if masked:
                    frame = apply_mask(frame, data[start - 4 : start])
                if first == _TEXT and not frame.isascii() and not self._is_utf8(frame):
                    return frames
                frames.append(frame)
                position = end
            else:
                position = self._aside(data, position, end, frames)
        if position < size:
            self._head = data[position:]
        return frames

    def _complete(self, frame: bytes, frames: list[bytes]) -> None:
        if self.server:
            frame = apply_mask(frame, self._key)
        if not self._text or self._is_utf8(frame):
            frames.append(frame)

    def _is_utf8(self, frame: bytes) -> bool:
        """Check that text is UTF-8, and fail the connection if it is not (section 8.1)."""
        if frame.isascii():
            return True
        try:
            frame.decode()
        except UnicodeDecodeError as error:
            self.fail(1007, f"text that is not UTF-8: {error.reason} at byte {error.start}")
            return False
        return True

    # -- everything but plain data frames

    def _begun_badly(self, data: bytes, position: int, frames: list[bytes]) -> int:
        first, second = data[position], data[position + 1]
        if (second > 0x7F) == self.server and first & 0x0F in _OPCODES:
            return position
        self._by_core(data[position:], frames)
        return len(data)

    def _aside(self, data: bytes, position: int, end: int, frames: list[bytes]) -> int:
        first = data[position]
        if first in (_TEXT, _BINARY) and first not in self._kinds:
            self._wrong_kind(first)
            return len(data)
        reached = min(end, len(data))
        self._size = end - position
        self._owed = end - reached
        self._by_core(data[position:reached], frames)
        return reached

    def _wrong_kind(self, first: int) -> None:
        kind, other = ("text", "binary") if first & 0x0F == Opcode.TEXT else ("binary", "text")
        self.fail(1003, f"a {kind} frame, but only {other} frames are accepted here")

    def _by_core(self, data: bytes, frames: list[bytes]) -> None:
        core = self._the_core()
        core.receive_data(data)
        for event in core.events_received():
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.PING, Opcode.PONG):
                self.empty_frames += 1
            elif event.opcode is not Opcode.CLOSE and self.broken is None:
                self._fragment(event, frames)
        self._take_output(core)
        if core.parser_exc is not None:
            self._broke(core, core.parser_exc)
        elif core.close_rcvd is not None:
            # 1005 is an empty closing frame, which is an orderly end.
            code = 1000 if core.close_rcvd.code == CloseCode.NO_STATUS_RCVD else int(core.close_rcvd.code)
            self.ended = closed_by_peer(code, core.close_rcvd.reason)
        elif not self._owed and self._fragments is None and core.state is OPEN:
            self._core = None

    def _broke(self, core: Protocol, error: Exception) -> None:
        if self.broken is not None:
            return
        code = 1002
        if isinstance(error, UnicodeDecodeError):
            code = 1007
        elif isinstance(error, PayloadTooBig):
            code = 1009
        reason = core.close_sent.reason if core.close_sent is not None else ""
        self.broken = Closed(code, reason or str(error))

    def _the_core(self) -> Protocol:
        if self._core is None:
            self._core = Protocol(SERVER if self.server else CLIENT, state=OPEN, max_size=self._limit, logger=core_logger)
        return self._core

    def _take_output(self, core: Protocol) -> None:
        output = [data for data in core.data_to_send() if data]
        if output:
            self.out = [*(self.out or ()), *output]

    def _fragment(self, frame: Frame, frames: list[bytes]) -> None:
        if frame.opcode is not Opcode.CONT:
            if frame.opcode | 0x80 not in self._kinds:
                self._wrong_kind(frame.opcode)
                return
            self._text = frame.opcode is Opcode.TEXT
            self._fragments = []
        parts = self._fragments
        assert parts is not None
        parts.append(bytes(frame.data))
        if frame.fin:
            self._fragments = None
            message = b"".join(parts)
            if not self._text or self._is_utf8(message):
                frames.append(message)
        elif len(parts) >= MAX_FRAGMENTS:
            self.fail(1009, f"too many fragments: {len(parts)} and no end")

    # -- writing

    def encode(self, frame: bytes) -> tuple[bytes, bytes]:
        size = len(frame)
        mask = 0 if self.server else 0x80
        if size < 126:
            header = bytes((self._first, size | mask))
        elif size < 65536:
            header = _pack_16(self._first, 126 | mask, size)
        else:
            header = _pack_64(self._first, 127 | mask, size)
        if self.server:
            return header, frame
        if not self._keys:
            self._keys += os.urandom(_KEYS)
        key = bytes(self._keys[-4:])
        del self._keys[-4:]
        return header + key, apply_mask(frame, key)

    def sign_of_life(self, *, asks: bool) -> bytes:
        """Return a ping if `asks` is set, otherwise an unsolicited pong (sections 5.5.2, 5.5.3)."""
        return Frame(Opcode.PING if asks else Opcode.PONG, b"").serialize(mask=not self.server)

    def goodbye(self, code: int, reason: str) -> list[bytes]:
        core = self._the_core()
        if core.state is OPEN:
            core.send_close(sayable(code), cut_reason(reason).decode())
            self._take_output(core)
        out, self.out = self.out or [], None
        return out

    def fail(self, code: int, reason: str) -> None:
        """Fail the connection (section 7.1.7), with a closing frame in `out`."""
        core = self._the_core()
        core.fail(code, cut_reason(reason).decode())
        self._take_output(core)
        self.broken = self.broken or Closed(code, reason)
