"""A peer by hand over TCP: payloads out, messages in."""

import json
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import SocketStream

from tests.support import BOUND

SERVICES = "ClientBus,ClientBusErrors"


class Peer:
    """The bytes of the wire are JSON texts behind a length."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._one_at_a_time = anyio.Lock()  # a test says something while its listener answers
        self._received = b""
        self._messages: deque[dict[str, Any]] = deque()

    async def say(self, *messages: dict[str, Any], text: str | None = None) -> None:
        data = (json.dumps(list(messages)) if text is None else text).encode()
        async with self._one_at_a_time:
            await self.stream.send(struct.pack(">I", len(data)) + data)

    async def associate(self, services: str = SERVICES, **parts: Any) -> dict[str, Any]:
        """The handshake of Errai 4."""
        await self.say({"ToSubject": "ServerBus", "CommandType": "Associate", "RemoteServices": services, **parts})
        return await self.hear("FinishAssociation")

    async def finish_association(self, services: str) -> None:
        parts = {"RemoteServices": services, "CapabilitiesFlags": "LongPolling"}
        await self.say({"ToSubject": "ClientBus", "CommandType": "FinishAssociation", **parts})

    async def hear(self, command: str | None = None) -> dict[str, Any]:
        """The next message; with `command` the next one that is this."""
        with anyio.fail_after(BOUND):
            while True:
                while not self._messages:
                    await self._read()
                message = self._messages.popleft()
                if command is None or message.get("CommandType") == command:
                    return message

    async def _read(self) -> None:
        while len(self._received) < 4 or len(self._received) < 4 + struct.unpack(">I", self._received[:4])[0]:
            self._received += await self.stream.receive()
        (length,) = struct.unpack(">I", self._received[:4])
        payload, self._received = self._received[4 : 4 + length], self._received[4 + length :]
        if length:
            self._messages.extend(json.loads(payload))

    async def nothing_more(self, subject: str = "barrier") -> list[dict[str, Any]]:
        """What came before the answer to one more question."""
        await self.say({"ToSubject": subject, "ReplyTo": "b:9:RespondTo:RPC", "ErrorTo": "b:9:Errors:RPC"})
        found: list[dict[str, Any]] = []
        while True:
            message = await self.hear()
            if message["ToSubject"] == "b:9:RespondTo:RPC":
                return found
            found.append(message)


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Peer]:
    port = int(url.partition("?")[0].rpartition(":")[2])
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield Peer(stream)
