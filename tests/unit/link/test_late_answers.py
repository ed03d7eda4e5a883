"""Answers that are ready when their link is about to end."""

import anyio
import pytest

from polybus import Bus, Disconnected, connect
from polybus.broker import Broker
from polybus.protocols import Csb
from polybus.testing import FaultRates, World, simulated

pytestmark = pytest.mark.native


@simulated(faults=FaultRates(delay=1.0), seeds=5)
async def test_an_answer_that_comes_after_the_goodbye_to_a_broker_is_no_failure_of_its_handler(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    server, asked = Bus(), anyio.Event()

    @server.handle("echo")
    async def echo(body: int) -> int:
        asked.set()
        await anyio.sleep(0.01)  # until goodbye has been said, which takes a while to arrive
        return body

    behind = server.connect(world.to("memory://servers"), protocol=Csb(side="broker-server"))
    async with Broker("csb+memory://clients", "csb+memory://servers"), server:
        await behind.__aenter__()
        async with connect("csb+memory://clients") as client:
            reply = client.request("echo", 7, timeout=9)
            await asked.wait()
            error = ZeroDivisionError()
            await behind.__aexit__(type(error), error, None)
            with pytest.raises(Disconnected):
                await reply
        assert server.stats().failed == 0
    assert not [record for record in caplog.records if "failed" in record.getMessage()]
