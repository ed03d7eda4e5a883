"""Length-prefixed frames on an asyncio ``Protocol``, as a careful program would write it by hand."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import cast
from urllib.parse import urlsplit

__all__ = ["BACKLOG", "FrameProtocol", "framed", "open_server", "split_address"]

BACKLOG = 4096
_LENGTH = Struct(">I")


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def split_address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


class FrameProtocol(asyncio.Protocol):
    """Calls `frame_received` for each frame; of a big one the chunks are joined once."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._missing = 0
        self._resumed: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def frame_received(self, frame: bytes) -> None:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        if self._chunks:
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._chunks)
            self._chunks = []
        unpack, received = _LENGTH.unpack_from, self.frame_received
        position, end = 0, len(data)
        while (start := position + 4) <= end:
            stop = start + unpack(data, position)[0]
            if stop > end:
                self._missing = stop - end
                break
            received(data[start:stop])
            position = stop
        else:
            self._missing = 4 - (end - position)
        if position < end:
            self._chunks = [data[position:]]

    def pause_writing(self) -> None:
        self._resumed = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None

    @property
    def paused(self) -> bool:
        return self._resumed is not None

    async def writable(self) -> None:
        if self._resumed is not None:
            await self._resumed


async def open_server(protocol: type[FrameProtocol]) -> tuple[asyncio.Server, str]:
    """A server on a free port of the loopback, and its address."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, "127.0.0.1", 0, backlog=BACKLOG)
    host, port = server.sockets[0].getsockname()[:2]
    return server, f"tcp://{host}:{port}"
