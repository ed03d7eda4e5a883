"""The framing of NATS on byte streams: a line, and behind it the bytes that it announces. A frame is one such operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import msgspec
from attrs import field, frozen

from ...errors import RemoteProtocolError
from ...limits import Limits
from .checks import refuse

CRLF: Final = b"\r\n"
LINE: Final = 64 * 1024
"""Bytes of a line. Those of messages have at most 4 KiB; an INFO names each server of its cluster."""

_DIGITS: Final = 10
"""Of a length: more would be no length that anybody sends."""


class _FirstWords(msgspec.Struct):
    """Members of INFO that decide about TLS."""

    tls_required: bool = False
    tls_available: bool = False


_first_words: Final = msgspec.json.Decoder(_FirstWords).decode


def words_of(line: bytes) -> list[bytes]:
    """Words of a line, which blanks and tabs part: a server takes any other byte, a form feed as well, for one of a subject."""
    return [word for word in line.replace(b"\t", b" ").split(b" ") if word]


def announced(line: bytes) -> int | None:
    """Bytes that follow a line and its end, without the line end behind them; None of a line by itself.

    Raises:
        ValueError: The line announces no length.
    """
    first = line[:1].upper()
    if first not in b"MHP" or (first == b"P" and line[1:2].upper() != b"U"):
        return None
    size = line[max(line.rfind(b" "), line.rfind(b"\t")) + 1 :]
    if not size.isdigit() or len(size) > _DIGITS:
        raise ValueError(f"{line[:60]!r} ends with no length")
    return int(size)


class NatsCutter:
    """Cuts one direction of a connection into operations.

    A payload over the limit is thrown away as it comes, and its line handed on alone: whoever reads it refuses it, and the
    connection with all else on it lives.
    """

    __slots__ = ("_head", "_limit", "_missing", "_parts", "_plain", "_skipped", "_there", "broken")

    def __init__(self, limit: int, *, plain: bool) -> None:
        self._limit = limit
        # True on a connection without TLS, until INFO has come.
        self._plain = plain
        self._head = b""
        # Of an operation whose payload is not complete.
        self._parts: list[bytes | bytearray] = []
        self._there = 0
        self._missing = 0
        # Of a payload over the limit, which is not kept: how much is still to come.
        self._skipped = 0
        self.broken: RemoteProtocolError | None = None

    @property
    def partial(self) -> str:
        if self._missing:
            return f"{self._there} of {self._there + self._missing} bytes"
        if self._skipped:
            return f"{self._skipped} bytes of a payload over the limit are missing"
        return f"{len(self._head)} bytes of a line" if self._head else ""

    @property
    def arrived(self) -> int:
        return self._there + len(self._head) if not self._skipped else 1

    def feed(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        if self.broken is not None:
            return frames
        position = 0
        if self._missing:
            if len(data) < self._missing:
                self._keep(data)
                return frames
            position = self._missing
            self._parts.append(data[:position])
            frames.append(b"".join(self._parts))
            self._parts, self._there, self._missing = [], 0, 0
        elif self._skipped:
            position = min(self._skipped, len(data))
            self._skipped -= position
        elif self._head:
            data, self._head = self._head + data, b""
        try:
            self._cut(data, position, frames)
        except RemoteProtocolError as error:
            self.broken = error
        return frames

    def _cut(self, data: bytes, position: int, frames: list[bytes]) -> None:
        """May raise `RemoteProtocolError`: what follows is no operation."""
        size, limit = len(data), self._limit
        while position < size:
            end = data.find(CRLF, position)
            if end < 0 or end - position > LINE:
                self._keep_line(data[position:])
                return
            after = end + 2
            # Nearly all are MSG or HMSG: the last part of their line, behind a blank, is the length.
            length = data[data.rfind(b" ", position, end) + 1 : end] if data[position] in b"MH" else b""
            if length.isdigit() and len(length) < _DIGITS:
                after += int(length) + 2
                if after - end > limit + 4:
                    position = self._left_out(data, position, end, after, frames)
                    continue
            else:
                after = self._end_of_other(data, position, end)
                if after - end > limit + 4:
                    position = self._left_out(data, position, end, after, frames)
                    continue
            if after > size:
                self._missing = after - position
                self._keep(data[position:])
                return
            frames.append(data[position:after])
            position = after

    def _end_of_other(self, data: bytes, position: int, end: int) -> int:
        """End of an operation of any kind. May raise `RemoteProtocolError`: it is none, or must not go on in plain."""
        try:
            length = announced(data[position:end])
        except ValueError as error:
            raise refuse(str(error), close_code=1002) from None
        if length is not None:
            return end + 4 + length
        if self._plain:
            self._check_first_words(data[position:end])
        return end + 2

    def _left_out(self, data: bytes, position: int, end: int, after: int, frames: list[bytes]) -> int:
        """Hand on the line of an operation whose payload is over the limit; where that ends, as far as it is there."""
        frames.append(data[position : end + 2])
        reached = max(end + 2, min(after, len(data)))
        self._skipped = after - reached
        return reached

    def _keep_line(self, rest: bytes) -> None:
        """Keep a line that has no end yet. May raise `RemoteProtocolError`: it is too long."""
        if len(rest) > LINE:
            raise refuse(f"a line of more than {LINE} bytes: is this a NATS server?", "too_large", close_code=1009)
        self._head = rest

    def _keep(self, data: bytes) -> None:
        """Keep a part of an operation. Small ones are put together, so that slices of one byte cost no object each."""
        self._there += len(data)
        self._missing -= len(data)
        parts = self._parts
        if parts and isinstance(parts[-1], bytearray) and len(data) < 4096:
            parts[-1] += data
        else:
            parts.append(bytearray(data) if len(data) < 4096 else data)

    def _check_first_words(self, line: bytes) -> None:
        """May raise `RemoteProtocolError`: the server wants TLS, and what we would say next, a password maybe, is in plain."""
        self._plain = False
        if line[:5].upper() == b"INFO ":
            try:
                required = _first_words(line[5:]).tls_required
            except (ValueError, RecursionError):
                return  # the session says so
            if required:
                raise refuse("the server wants TLS: connect to nats+tls://", "tls_required", close_code=1002)


@frozen
class NatsFraming:
    """The framing of connections; `tls_first` where the server begins with TLS, as its configuration can say."""

    tls_first: bool = False
    pack: Callable[[bytes], bytes] = field(default=bytes, init=False, eq=False, repr=False)
    """The bytes of a frame, which are the frame: no function of ours, for speed."""
    gathers: ClassVar[bool] = True
    """A server passes on what it gets."""

    def cutter(self, limits: Limits, transport: str) -> NatsCutter:
        return NatsCutter(limits.message, plain=transport == "tcp")

    def plain_preface(self, data: bytes) -> int | None:
        if self.tls_first:
            return None
        end = data.find(CRLF)
        if end < 0:
            return 0
        line = data[:end]
        if line[:5].upper() != b"INFO ":
            raise refuse(
                f"the server begins with {line[:40]!r}, a NATS server with INFO (with ?tls_first=true TLS comes first)"
            )
        try:
            said = _first_words(line[5:])
        except (ValueError, RecursionError) as error:
            raise refuse(f"the INFO of the server is no JSON: {error}") from None
        if not (said.tls_required or said.tls_available):
            raise refuse("the server has no TLS: connect to nats+tcp://, or configure its certificate")
        return end + 2
