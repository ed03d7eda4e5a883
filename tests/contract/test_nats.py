"""The contract of NATS over the engine of the tests; `tests/integration/interop` has the same over a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from polybus.testing.nats_engine import NatsEngine
from tests.loops import ASYNCIO, TRIO, UVLOOP, on

from .nats_network import Network, over_a_network


def engine_at(address: str | None) -> Network:
    @asynccontextmanager
    async def network() -> AsyncIterator[str]:
        async with NatsEngine(address) as engine:
            yield engine.url

    return network


TestNatsOverMemory = on(UVLOOP, over_a_network(engine_at(None), "memory"))
TestNatsOverTcp = on(ASYNCIO, over_a_network(engine_at("tcp://127.0.0.1:0"), "tcp"))
TestNatsOverWebSocket = on(TRIO, over_a_network(engine_at("ws://127.0.0.1:0/"), "ws"))
