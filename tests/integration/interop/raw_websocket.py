"""A peer without a bus: WebSocket messages by hand, which no library would send."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import SocketStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from tests.support import BOUND

__all__ = ["RawPeer", "RawServer", "raw_client", "raw_server"]


class RawPeer:
    """One connection. Pings are answered while `receive` is waited for."""

    def __init__(self, stream: SocketStream, protocol: ClientProtocol | ServerProtocol) -> None:
        self._stream = stream
        self._protocol = protocol
        self._events: list[Any] = []
        self.texts: list[str] = []
        """All that has been received."""

    async def send(self, *messages: Any) -> None:
        """Write messages in one go; what is neither text nor bytes is written as JSON, bytes stand for text that is none."""
        for message in messages:
            text = message if isinstance(message, (str, bytes)) else json.dumps(message, separators=(",", ":"))
            self._protocol.send_text(text.encode() if isinstance(text, str) else text)
        await self._flush()

    async def receive(self) -> Any:
        """The next message.

        Raises:
            EndOfStream: The connection has ended.
        """
        text = bytes((await self._event(Opcode.TEXT)).data).decode()
        self.texts.append(text)
        return json.loads(text)

    async def ask(self, subject: str, body: Any = None, id: Any = "q") -> Any:
        """Send a request and wait for its answer; what comes before is thrown away."""
        await self.send({"request": subject, "id": id, "body": body})
        while True:
            answer = await self.receive()
            if id in (answer.get("success"), answer.get("fail")):
                return answer

    async def hang_up(self) -> None:
        """End the TCP connection without a word."""
        await self._stream.aclose()

    async def request(self) -> Request:
        """A server's side: the upgrade."""
        while not self._events:
            await self._read()
        request = self._events.pop(0)
        assert isinstance(request, Request)
        return request

    async def handshake(self) -> None:
        """A client's side: ask for the upgrade and wait for the answer."""
        assert isinstance(self._protocol, ClientProtocol)
        self._protocol.send_request(self._protocol.connect())
        await self._flush()
        while not self._events:
            await self._read()
        self._events.pop(0)
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc

    async def _event(self, opcode: Opcode) -> Frame:
        with anyio.fail_after(BOUND):
            while True:
                while self._events:
                    event = self._events.pop(0)
                    if isinstance(event, Frame) and event.opcode is opcode:
                        return event
                await self._read()

    async def _read(self) -> None:
        try:
            self._protocol.receive_data(await self._stream.receive())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise anyio.EndOfStream from None
        self._events += self._protocol.events_received()
        await self._flush()

    async def _flush(self) -> None:
        if data := b"".join(self._protocol.data_to_send()):
            with suppress(anyio.BrokenResourceError):
                await self._stream.send(data)


@asynccontextmanager
async def raw_client(url: str) -> AsyncIterator[RawPeer]:
    """A client of our server. Leaving the block hangs up."""
    uri = parse_uri(url.removeprefix("ubre+"))
    async with await anyio.connect_tcp(uri.host, uri.port) as stream:
        peer = RawPeer(stream, ClientProtocol(uri, max_size=None))
        await peer.handshake()
        yield peer


class RawServer:
    """A server for our client."""

    def __init__(self, listening: socket.socket, peers: MemoryObjectReceiveStream[RawPeer]) -> None:
        self._listening = listening
        self._peers = peers
        self._accepted: list[RawPeer] = []
        self.url = f"ubre+ws://127.0.0.1:{listening.getsockname()[1]}/"

    async def accept(self) -> RawPeer:
        """The next connection."""
        with anyio.fail_after(BOUND):
            return await self._peers.receive()

    async def close(self) -> None:
        """End all connections."""
        for peer in self._accepted:
            await peer.hang_up()

    async def run(self, peers: MemoryObjectSendStream[RawPeer]) -> None:
        """Let clients in, one after the other."""
        while True:
            await anyio.wait_readable(self._listening)
            accepted, _ = self._listening.accept()
            stream = await SocketStream.from_socket(accepted)
            protocol = ServerProtocol(subprotocols=[Subprotocol("ubre")], max_size=None)
            peer = RawPeer(stream, protocol)
            self._accepted.append(peer)
            protocol.send_response(protocol.accept(await peer.request()))
            await peer.send()
            await peers.send(peer)


@asynccontextmanager
async def raw_server() -> AsyncIterator[RawServer]:
    """A server for our client. Leaving the block hangs up."""
    send, receive = anyio.create_memory_object_stream[RawPeer](10)
    with socket.socket() as listening, send, receive:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        async with anyio.create_task_group() as group:
            server = RawServer(listening, receive)
            group.start_soon(server.run, send)
            try:
                yield server
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await server.close()
