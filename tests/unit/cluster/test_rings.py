"""Rings that lead through a cluster: two of its nodes are joined with the same bus outside, and each publication comes once."""

from contextlib import AsyncExitStack

import anyio
import pytest

from polybus import Bus, Route, bridge
from polybus._core.bus.bus import parts_of
from polybus.testing import pair
from polybus.testing.nats_engine import cluster
from tests.support import eventually
from tests.unit.answering import noting

BOTH_WAYS = [Route("t.>", "t.{rest}"), Route("t.>", "t.{rest}", reverse=True)]


@pytest.mark.parametrize("relay", [False, True], ids=["nodes", "nodes that relay"])
async def test_what_goes_round_through_nodes_of_a_cluster_comes_once_to_each(relay: bool) -> None:
    """The first node has no gateway itself: the others tell it that they have."""
    nodes, outside = [Bus(cluster="auto") for _ in range(3)], Bus()
    heard = [noting(bus, "t.>", queue=1000) for bus in (*nodes, outside)]
    for bus in (*nodes, outside) if relay else ():
        bus.relay("t.>")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(cluster(*nodes))
        for node in nodes[1:]:
            near, far = Bus(), Bus()
            await enter(pair(node, client=near))
            await enter(pair(outside, client=far))
            await enter(bridge(near, far, routes=BOTH_WAYS))
        client = await enter(pair(nodes[0]))
        await eventually(lambda: parts_of(nodes[0]).pubsub.publisher.in_net)
        for number in range(5):
            await nodes[0].publish("t.node", ["node", number])
            await outside.publish("t.outside", ["outside", number])
            await client.publish("t.client", ["client", number])
        reach = {"node": 4, "outside": 4 if relay else 3, "client": 4 if relay else 1}
        await eventually(lambda: sum(map(len, heard)) >= 5 * sum(reach.values()))
        await anyio.wait_all_tasks_blocked()
        for who, places in reach.items():
            got = [[number for name, number in each if name == who] for each in heard]
            assert sorted(map(len, got)) == [0] * (4 - places) + [5] * places, (who, got)
            assert all(numbers in ([], [0, 1, 2, 3, 4]) for numbers in got), (who, got)
