"""Peers without polybus: CSB by hand over TCP."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
from anyio.abc import SocketStream

from tests.support import BOUND

__all__ = ["Closed", "RawPeer", "raw_peer"]

_CLOSING = 0xFF434C4F


class Closed(Exception):
    """The other side has closed: code and reason, 1006 where it said none."""

    def __init__(self, code: int = 1006, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class RawPeer:
    """One connection; frames are hexadecimal, with blanks as one likes."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._input = b""

    async def send(self, *frames: str | bytes) -> None:
        data = [frame if isinstance(frame, bytes) else bytes.fromhex(frame) for frame in frames]
        await self._stream.send(b"".join(struct.pack(">I", len(frame)) + frame for frame in data))

    async def receive(self) -> str:
        """The next frame. Raises `Closed` where there is none."""
        while True:
            (length,) = struct.unpack(">I", await self._exactly(4))
            if length == _CLOSING:
                code, size = struct.unpack(">HH", await self._exactly(4))
                raise Closed(code, (await self._exactly(size)).decode())
            if length:
                return (await self._exactly(length)).hex()

    async def ended(self) -> Closed:
        """Wait for the end, whatever still comes, and hang up."""
        try:
            while True:
                await self.receive()
        except Closed as closed:
            await self.close()
            return closed

    async def _exactly(self, size: int) -> bytes:
        while len(self._input) < size:
            try:
                with anyio.fail_after(BOUND):
                    self._input += await self._stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                raise Closed from None
        data, self._input = self._input[:size], self._input[size:]
        return data

    async def close(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def raw_peer(url: str) -> AsyncIterator[RawPeer]:
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    async with await anyio.connect_tcp(parts.hostname, parts.port) as stream:
        yield RawPeer(stream)
