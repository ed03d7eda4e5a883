"""A member of a cluster that has a bug, or lies: a native link to the same engine, which says what no node would."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from polybus import Bus, connect
from polybus.testing import NatsEngine, cluster
from tests.loops import virtual_asyncio  # noqa: F401
from tests.support import eventually
from tests.unit.cluster.handlers import double


class Pair:
    """Two honest nodes, and a liar."""

    def __init__(self, engine: NatsEngine) -> None:
        self.asker, self.worker, self.liar = Bus(cluster=engine.url), Bus(cluster=engine.url), Bus()
        self.release = anyio.Event()
        self.begun = 0
        self.worker.handle("double")(double)
        self.worker.handle("hold")(self.hold)

    async def hold(self, n: int) -> int:
        self.begun += 1
        await self.release.wait()
        return n

    async def well(self) -> bool:
        assert await self.asker.request("double", 21) == 42
        found = [await bus.nodes() for bus in (self.asker, self.worker)]
        assert all(nodes.complete for nodes in found)
        both = {node.bus for nodes in found for node in nodes if node.here}
        assert all(both <= {node.bus for node in nodes} for nodes in found)
        return True


@pytest.fixture
async def pair(engine: NatsEngine) -> AsyncIterator[Pair]:
    made = Pair(engine)
    async with cluster(made.asker, made.worker, url=engine.url), connect(engine.url, bus=made.liar):
        yield made


@pytest.mark.parametrize(
    "said",
    [
        {"hello": "liar", "bus": ["a", "list"], "name": {"a": 1}},
        {"hello": "x" * 5000, "bus": "b"},
        {"hello": "a.b c"},
        {"hello": None, "bye": 7},
        {"version": 99, "welcome": "everybody"},
        "neither",
        ["hello"],
    ],
    ids=str,
)
async def test_what_a_liar_announces_costs_nothing_and_the_bus_goes_on(engine: NatsEngine, pair: Pair, said: Any) -> None:
    held = pair.asker.request("hold", 7, timeout=60)
    await eventually(lambda: pair.begun == 1)
    await pair.liar.publish("polybus.a", said)
    await anyio.sleep(4)
    assert await pair.well()
    pair.release.set()
    assert await held == 7
    # When the engine was away, those who were known are waited for: whatever they said they are.
    await engine.cut()
    await eventually(pair.well)


async def test_what_one_asks_that_is_no_node_is_stopped_and_leaves_nothing(engine: NatsEngine, pair: Pair) -> None:
    (subscription,) = engine.subscriptions.match("polybus.r.hold")
    for n in range(3):
        names = f"polybus.r.hold {subscription.sid} polybus.n.nobody{n}.a.1{n:08x} 1"
        subscription.client.transport.send(f"MSG {names}\r\n{n}\r\n".encode())
    await eventually(lambda: pair.begun == 3)
    await eventually(lambda: pair.worker.stats().running == 0)  # 503 to the question whether it lives
    assert await pair.well()
