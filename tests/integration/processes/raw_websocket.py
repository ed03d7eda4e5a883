"""A WebSocket client by hand, for frames that libraries do not send."""

import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketStream

from .processes import BOUND, port_of


def websocket_frame(opcode: int, payload: bytes, first_bits: int = 0x80) -> bytes:
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first_bits | opcode, 0x80 | size)
    elif size < 65536:
        head = struct.pack("!BBH", first_bits | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first_bits | opcode, 0x80 | 127, size)
    mask = os.urandom(4)
    pad = (mask * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
    return head + mask + masked


class RawWebSocket:
    """One connection after the upgrade. Pings are answered."""

    def __init__(self, stream: SocketStream, rest: bytes) -> None:
        self.stream = stream
        self._input = rest
        self._writing = anyio.Lock()

    async def send(self, data: bytes) -> None:
        """Write bytes as they are; a pong that becomes due meanwhile goes out after them."""
        async with self._writing:
            await self.stream.send(data)

    async def receive(self) -> tuple[int, bytes]:
        """The opcode and payload of the next frame."""
        with anyio.fail_after(BOUND):
            while True:
                first, second = await self._exactly(2)
                size = second & 0x7F
                if size == 126:
                    (size,) = struct.unpack("!H", await self._exactly(2))
                elif size == 127:
                    (size,) = struct.unpack("!Q", await self._exactly(8))
                payload = await self._exactly(size)
                if first & 0x0F == 9:
                    await self.send(websocket_frame(10, payload))
                else:
                    return first & 0x0F, payload

    async def _exactly(self, size: int) -> bytes:
        while len(self._input) < size:
            try:
                self._input += await self.stream.receive()
            except anyio.BrokenResourceError:
                raise anyio.EndOfStream from None
        taken, self._input = self._input[:size], self._input[size:]
        return taken


@asynccontextmanager
async def raw_websocket(url: str, subprotocol: str = "ubre") -> AsyncIterator[RawWebSocket]:
    host = f"127.0.0.1:{port_of(url)}"
    async with await anyio.connect_tcp("127.0.0.1", port_of(url)) as stream:
        request = (
            f"GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
        )
        await stream.send(request.encode())
        answer = b""
        with anyio.fail_after(BOUND):
            while b"\r\n\r\n" not in answer:
                answer += await stream.receive()
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        yield RawWebSocket(stream, rest)
