"""Who gives up entering a node, or the engine of a test, leaves nothing of it: a scope cancels it after any number of turns."""

import itertools
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from polybus import Bus, Cluster, Store
from polybus.testing import NatsEngine, cluster
from tests.loops import virtual_time  # noqa: F401
from tests.unit.answering import noting
from tests.unit.cluster.handlers import double


async def node(engine: NatsEngine) -> None:
    bus = Bus(cluster=engine.url)
    bus.handle("double")(double)
    async with bus:
        assert await bus.request("double", 21) == 42


async def keeper(engine: NatsEngine) -> None:
    bus = Bus(cluster=Cluster(engine.url, stores=[Store("orders", "orders.>")]))
    noting(bus, "orders.>", durable="audit")
    async with bus:
        pass


async def nodes(engine: NatsEngine) -> None:
    async with cluster(Bus(cluster="auto"), Bus(cluster="auto"), url=engine.url):
        pass


async def another(engine: NatsEngine) -> None:
    async with NatsEngine():
        pass


@pytest.mark.parametrize("enter", [node, keeper, nodes, another])
async def test_nothing_is_left_of_an_entering_that_is_given_up(
    enter: Callable[[NatsEngine], Awaitable[None]], engine: NatsEngine
) -> None:
    over = False

    async def within(scope: anyio.CancelScope) -> None:
        nonlocal over
        with scope:
            await enter(engine)
            over = True

    before = len(anyio.get_running_tasks())
    for turns in itertools.count():
        async with anyio.create_task_group() as group:
            group.start_soon(within, scope := anyio.CancelScope())
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert not engine.clients
        left = anyio.get_running_tasks()
        assert len(left) == before, left
        if over:
            return
