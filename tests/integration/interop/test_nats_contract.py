"""The contract of NATS over real servers: the rows that the engine of the tests passes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.contract.core import core_of
from tests.contract.nats_network import Network, over_a_network
from tests.loops import ASYNCIO, TRIO, on

from .nats_servers import nats_server

WEBSOCKET = 'websocket { listen: "127.0.0.1:-1", no_tls: true }'


def server_of(version: str, *, websocket: bool = False) -> Network:
    @asynccontextmanager
    async def network() -> AsyncIterator[str]:
        with nats_server(version, WEBSOCKET if websocket else "") as server:
            yield server.websocket_url if websocket else server.url

    return network


TestNatsOfDebianOverTcp = on(ASYNCIO, core_of(over_a_network(server_of("debian"), "tcp")))
TestNatsOfDebianOverWebSocket = on(TRIO, core_of(over_a_network(server_of("debian", websocket=True), "ws")))
TestNewestNatsOverTcp = on(ASYNCIO, over_a_network(server_of("wheel"), "tcp"))
TestNewestNatsOverWebSocket = on(TRIO, core_of(over_a_network(server_of("wheel", websocket=True), "ws")))
