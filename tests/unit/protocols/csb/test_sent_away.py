"""A client that a server behind a broker sends away, while much of it is on its way."""

from contextlib import suppress

import anyio
import pytest

from polybus import Bus, BusError, connect
from polybus.broker import Broker
from polybus.protocols import Csb
from polybus.testing import FaultRates, World, simulated
from tests.support import eventually

pytestmark = pytest.mark.native


@simulated(faults=FaultRates(delay=0.5), seeds=3)
async def test_a_client_that_is_sent_away_while_it_publishes_costs_the_others_nothing(world: World) -> None:
    server = Bus()

    @server.handle("echo")
    async def echo(body: int) -> int:
        return body

    async def publish(flooder: Bus) -> None:
        with suppress(BusError):
            for number in range(2000):
                flooder.publish_nowait("news", number)
                await anyio.sleep(0.001)

    behind = server.connect(world.to("memory://servers"), protocol=Csb(side="broker-server"))
    async with Broker("csb+memory://clients", "csb+memory://servers"), behind:
        async with connect("csb+memory://clients") as other, connect("csb+memory://clients") as flooder:
            await eventually(lambda: len(server.peers) == 2)
            async with anyio.create_task_group() as group:
                group.start_soon(publish, flooder)
                await anyio.sleep(1)
                await server.peers[-1].aclose("too much")
                assert await other.request("echo", 7, timeout=5) == 7
            stats = server.stats()
            assert (stats.malformed, stats.reconnects) == (0, 0)
            assert other.stats().reconnects == 0
