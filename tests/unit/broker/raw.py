"""Peers without polybus: CSB by hand over TCP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from tests import raw
from tests.support import port_of

__all__ = ["Closed", "RawPeer", "raw_peer"]


class Closed(Exception):
    """The other side has closed: code and reason, 1006 where it said none."""

    def __init__(self, code: int = 1006, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class RawPeer(raw.RawPeer):
    """One connection; frames are hexadecimal, with blanks as one likes."""

    async def send(self, *frames: str | bytes) -> None:
        await super().send(*(bytes.fromhex(frame) if isinstance(frame, str) else frame for frame in frames))

    async def receive(self) -> str:
        """The next frame. Raises `Closed` where there is none."""
        try:
            said = await self.receive_frame()
        except anyio.EndOfStream:
            raise Closed from None
        if not isinstance(said, bytes):
            raise Closed(*said[1:])
        return said.hex()

    async def ended(self) -> Closed:
        """Wait for the end, whatever still comes, and hang up."""
        try:
            while True:
                await self.receive()
        except Closed as closed:
            await self.close()
            return closed


@asynccontextmanager
async def raw_peer(url: str) -> AsyncIterator[RawPeer]:
    async with await anyio.connect_tcp("127.0.0.1", port_of(url)) as stream:
        yield RawPeer(stream)
