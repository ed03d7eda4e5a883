"""A member of a cluster that has a bug, or lies: a native link to the same engine, which says what no node would."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from polybus import Bus, connect
from polybus.testing import NatsEngine, cluster
from tests.loops import virtual_asyncio  # noqa: F401
from tests.support import eventually
from tests.unit.cluster.handlers import Endless, double


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


async def test_a_goodbye_for_another_is_taken_back_as_soon_as_that_one_speaks(pair: Pair) -> None:
    (other,) = [node.id for node in await pair.asker.nodes() if not node.here]
    held = pair.asker.request("hold", 7, timeout=60)
    await eventually(lambda: pair.begun == 1)
    await pair.liar.publish("polybus.a", {"bye": other})
    await eventually(pair.well)
    pair.release.set()
    assert await held == 7


async def test_a_liar_that_takes_a_request_and_never_answers_costs_it_its_time_and_no_more(pair: Pair) -> None:
    stolen = Endless()
    pair.liar.handle("polybus.r.stolen")(stolen.run)
    reply = pair.asker.request("stolen", timeout=5)
    with anyio.fail_after(3):
        await eventually(lambda: stolen.begun)
    with pytest.raises(TimeoutError):  # nobody says to have it, and nobody is gone: its own time ends it
        await reply
    assert await pair.well()
    assert pair.asker.stats().pending == 0


async def test_answers_to_requests_of_others_are_counted_and_answer_nothing(pair: Pair) -> None:
    (asker,) = [node.id for node in await pair.worker.nodes() if not node.here]
    held = [pair.asker.request("hold", n, timeout=60) for n in range(20)]
    await eventually(lambda: pair.begun == 20)
    before = pair.asker.stats().malformed
    for count in range(1, 40):
        await pair.liar.publish(f"polybus.n.{asker}.a.{count:x}00000000", 666)
    for subject in ("a.zz", f"c.{asker}.1", "what.ever"):
        await pair.liar.publish(f"polybus.n.{asker}.{subject}", 666)
    await eventually(lambda: pair.asker.stats().malformed >= before + 3)
    assert not any(reply.done() for reply in held)
    pair.release.set()
    assert [await reply for reply in held] == list(range(20))
    assert await pair.well()


async def test_what_one_asks_that_is_no_node_is_stopped_and_leaves_nothing(engine: NatsEngine, pair: Pair) -> None:
    (subscription,) = engine.subscriptions.match("polybus.r.hold")
    for n in range(3):
        names = f"polybus.r.hold {subscription.sid} polybus.n.nobody{n}.a.1{n:08x} 1"
        subscription.client.transport.send(f"MSG {names}\r\n{n}\r\n".encode())
    await eventually(lambda: pair.begun == 3)
    await eventually(lambda: pair.worker.stats().running == 0)  # 503 to the question whether it lives
    assert await pair.well()
