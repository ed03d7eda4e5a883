"""A peer without polybus: frames by hand over TCP, which a well-behaved client would never send."""

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import SocketStream

from tests.support import BOUND, port_of

CLOSING = 0xFF434C4F
"""The length that begins our closing frame: code, length of the reason, reason."""


def frame(message: Any) -> bytes:
    data = message if isinstance(message, bytes) else json.dumps(message, separators=(",", ":")).encode()
    return struct.pack("!I", len(data)) + data


class RawPeer:
    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self.seen: list[Any] = []
        """All that `receive` has given."""
        self._input = b""
        self._at = 0

    async def send(self, *messages: Any) -> None:
        await self.stream.send(b"".join(map(frame, messages)))

    async def receive(self) -> Any:
        """The next message; the rest as `receive_frame`."""
        said = await self.receive_frame()
        self.seen.append(json.loads(said) if isinstance(said, bytes) else said)
        return self.seen[-1]

    async def receive_frame(self) -> bytes | tuple[str, int, str]:
        """What the next frame holds; ``("closed", code, reason)`` for our closing frame."""
        while True:
            (length,) = struct.unpack("!I", await self._exactly(4))
            if length == CLOSING:
                code, size = struct.unpack("!HH", await self._exactly(4))
                return "closed", code, (await self._exactly(size)).decode()
            if length:
                return await self._exactly(length)

    async def _exactly(self, size: int) -> bytes:
        while len(self._input) - self._at < size:
            try:
                with anyio.fail_after(BOUND):
                    chunk = await self.stream.receive()
            except anyio.BrokenResourceError:
                raise anyio.EndOfStream from None
            self._input, self._at = self._input[self._at :] + chunk, 0
        self._at += size
        return self._input[self._at - size : self._at]

    async def ask(self, subject: str, body: Any = None, id: Any = "q") -> Any:
        await self.send({"request": subject, "id": id, "body": body})
        while True:
            answer = await self.receive()
            if isinstance(answer, dict) and id in (answer.get("success"), answer.get("fail")):
                return answer

    async def close(self) -> None:
        await self.stream.aclose()


@asynccontextmanager
async def raw_peer(url: str) -> AsyncIterator[RawPeer]:
    async with await anyio.connect_tcp("127.0.0.1", port_of(url)) as stream:
        yield RawPeer(stream)
