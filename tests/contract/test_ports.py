"""The contract of a transport, over message ports: whoever dials makes a `MessageChannel` and hands in one end of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import frozen

from polybus.errors import ConnectFailed
from polybus.plugins import Connector, DialOptions, Listening, ListenOptions, Transport
from polybus.testing import transport_suite
from polybus.transports.postmessage import InMemoryPort, MessageChannel, PortInfo, PortTransport


@frozen
class Knocker:
    ports: Ports
    url: str

    reconnects: ClassVar[bool] = True

    async def connect(self, options: DialOptions) -> Transport:
        door = self.ports.doors.get(self.url)
        if door is None:
            raise ConnectFailed(self.url, "nobody is there")
        channel = MessageChannel()
        channel.port1.info = PortInfo(address=self.url)
        await door.send(channel.port2)
        return await PortTransport(channel.port1).connect(options)


class Open:
    def __init__(self, ports: Ports, url: str, listening: Listening) -> None:
        self.url = url
        self._ports = ports
        self._listening = listening

    async def aclose(self) -> None:
        door = self._ports.doors.pop(self.url, None)
        if door is not None:
            door.close()
        await self._listening.aclose()


class Ports:
    name = "port"
    doors: ClassVar[dict[str, MemoryObjectSendStream[InMemoryPort]]] = {}

    def connector(self, url: str) -> Connector:
        return Knocker(self, url)

    def is_private(self, url: str) -> bool:
        return True

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        if url in self.doors:
            raise OSError(f"{url} is served already")
        door, ports = anyio.create_memory_object_stream[InMemoryPort](10)
        self.doors[url] = door
        listening = await PortTransport(_closing(ports)).listen(options)
        return Open(self, url, listening)


async def _closing(ports: MemoryObjectReceiveStream[InMemoryPort]) -> AsyncIterator[InMemoryPort]:
    with ports:
        async for port in ports:
            yield port


@asynccontextmanager
async def ground() -> AsyncIterator[str]:
    try:
        yield "port://here"
    finally:
        for door in Ports.doors.values():
            door.close()
        Ports.doors.clear()


TestPorts = transport_suite(Ports, ground)
