"""The throw-away protocols and the connections on which the contract is tried."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from attrs import field, frozen

from polybus import Bus, connect
from polybus.plugins import ProtocolAdapter

from .by_subject import BySubject
from .exchange import Exchange
from .expiring import Expiring
from .numbered import Numbered
from .verbose import Verbose
from .wires import Broker, Exchanges

_names = itertools.count()


@frozen(eq=False)
class Setting:
    """A protocol on a connection.

    Attributes:
        pushes: The server may begin something: publications, requests of its own.
        joined: ``joined(server, client)`` links two buses, as a context manager; what it yields is the server's side of it.
    """

    id: str
    adapter: ProtocolAdapter
    joined: Any
    pushes: bool = True
    headers: bool = field(default=True, kw_only=True)

    @asynccontextmanager
    async def linked(self, server: Bus, client: Bus) -> AsyncIterator[Bus]:
        """Two running buses with a link between them. Afterwards nothing is left of either."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.joined(self.adapter, server, client))
            yield client
        for bus in (server, client):
            stats = bus.stats()
            assert (stats.links, stats.pending, stats.running, stats.waiting, stats.queued) == (0, 0, 0, 0, 0)
            assert stats.malformed == 0


@asynccontextmanager
async def _url(adapter: ProtocolAdapter, server: Bus, client: Bus, address: str) -> AsyncIterator[None]:
    async with server.serve(f"{adapter.name}+{address}", protocol=adapter) as listener:
        async with connect(listener.url, protocol=adapter, bus=client):
            yield


@asynccontextmanager
async def _memory(adapter: ProtocolAdapter, server: Bus, client: Bus) -> AsyncIterator[None]:
    async with _url(adapter, server, client, f"memory://shape-{next(_names)}"):
        yield


@asynccontextmanager
async def _tcp(adapter: ProtocolAdapter, server: Bus, client: Bus) -> AsyncIterator[None]:
    async with _url(adapter, server, client, "tcp://127.0.0.1:0"):
        yield


@asynccontextmanager
async def _brokered(adapter: ProtocolAdapter, server: Bus, client: Bus) -> AsyncIterator[None]:
    broker = Broker()
    async with connect(broker.for_server(), protocol=Numbered(side="server"), bus=server):
        async with connect(broker.for_client(), protocol=adapter, bus=client):
            yield


def _exchanges(polls: bool) -> Callable[..., Any]:
    @asynccontextmanager
    async def joined(adapter: ProtocolAdapter, server: Bus, client: Bus) -> AsyncIterator[None]:
        place = Exchanges(polls=polls)
        async with server.serve(place, protocol=adapter), connect(place, protocol=adapter, bus=client):
            yield
        assert place.stray == []

    return joined


SETTINGS = (
    Setting("numbered-memory", Numbered(), _memory, headers=False),
    Setting("numbered-tcp", Numbered(), _tcp, headers=False),
    Setting("numbered-broker", Numbered(), _brokered, headers=False),
    Setting("by_subject-memory", BySubject(), _memory),
    Setting("by_subject-tcp", BySubject(), _tcp),
    Setting("verbose-memory", Verbose(), _memory),
    Setting("verbose-tcp", Verbose(), _tcp),
    Setting("expiring-memory", Expiring(), _memory),
    Setting("expiring-tcp", Expiring(), _tcp),
    Setting("exchange-polls", Exchange(), _exchanges(True)),
    Setting("exchange-answers", Exchange(), _exchanges(False), pushes=False),
)
