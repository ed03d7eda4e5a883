"""A service that is being restarted, in virtual time: those who ask it meanwhile are told to ask again."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from polybus import Bus, Cluster, NoHandler, Retry, Route, Unavailable, bridge, connect
from polybus.plugins import Closed
from polybus.testing import NatsEngine, cluster
from tests.loops import virtual_asyncio  # noqa: F401

Ask = Callable[[Bus, str], Awaitable[object]]


@asynccontextmanager
async def running(engine: NatsEngine) -> AsyncIterator[Bus]:
    """A worker that handles `door.open` itself, and what is below `door.far`, where it bridges to."""
    worker, far = Bus(cluster=engine.url), Bus()

    @far.handle("door.far.open")
    @worker.handle("door.open")
    async def open_door(n: int) -> int:
        return n

    @worker.handle("door.watch")
    async def watch() -> AsyncIterator[int]:
        yield 7

    async with bridge(worker, far, routes=[Route("door.far.>", "door.far.{rest}")]):
        await anyio.sleep(0.1)
        yield worker


async def request(bus: Bus, subject: str) -> object:
    return await bus.request(subject, 7, timeout=5)


async def retried(bus: Bus, subject: str) -> object:
    return await bus.request(subject, 7, timeout=5, retry=Retry(attempts=2, backoff=0.1))


async def streamed(bus: Bus, subject: str) -> object:
    async with bus.stream("door.watch") as items:
        return [item async for item in items]


@pytest.mark.parametrize("ask", [request, retried, streamed])
@pytest.mark.parametrize("subject", ["door.open", "door.far.open"])
@pytest.mark.parametrize("way", ["node", "client of a node", "behind a bridge"])
async def test_a_service_that_went_is_unavailable_and_later_no_handler(
    engine: NatsEngine, ask: Ask, subject: str, way: str
) -> None:
    gateway = Bus(cluster=engine.url)
    gateway.forward("door.>")
    async with AsyncExitStack() as stack:
        asker = gateway
        if way == "node":
            await stack.enter_async_context(gateway)
        else:
            await stack.enter_async_context(gateway.serve("ubre+memory://restarts"))
            asker = await stack.enter_async_context(connect("ubre+memory://restarts"))
        if way == "behind a bridge":
            left, route = Bus(), Route("door.>", "door.{rest}", kinds={"request", "stream"})
            await stack.enter_async_context(bridge(left, asker, routes=[route]))
            await stack.enter_async_context(left.serve("csb+memory://restarts-left"))
            asker = await stack.enter_async_context(connect("csb+memory://restarts-left"))
        with pytest.raises(NoHandler):
            await ask(asker, subject)
        async with running(engine):
            assert await asker.request(subject, 7, timeout=5) == 7
        for _ in range(2):
            await anyio.sleep(1)
            with pytest.raises(Unavailable, match="its last handler left [0-9.]+ s ago: retry"):
                await ask(asker, subject)
        await anyio.sleep(61)
        with pytest.raises(NoHandler):
            await ask(asker, subject)


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "drained"])
async def test_a_request_with_retry_waits_for_the_service_that_restarts(engine: NatsEngine, killed: bool) -> None:
    async with Bus(cluster=engine.url) as asker:
        async with running(engine) as worker:
            if killed:  # without a goodbye
                [*engine.clients][-1].transport.abort(Closed(1006, "killed"))
                await worker.aclose()
        answers: list[object] = []
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                answers.append(await asker.request("door.open", 7, timeout=20, retry=Retry(attempts=20, backoff=0.5)))

            group.start_soon(ask)
            await anyio.sleep(3)
            assert answers == []
            async with running(engine):
                await anyio.sleep(1)
                assert answers == [7]


async def test_a_node_remembers_as_long_as_it_is_told_to(engine: NatsEngine) -> None:
    short, none = Bus(cluster=Cluster(engine.url, remember=5)), Bus(cluster=Cluster(engine.url, remember=0))
    async with cluster(short, none, url=engine.url):
        async with running(engine):
            pass
        with pytest.raises(NoHandler):
            await none.request("door.open", 7, timeout=5)
        with pytest.raises(Unavailable):
            await short.request("door.open", 7, timeout=5)
        await anyio.sleep(5)
        with pytest.raises(NoHandler):
            await short.request("door.open", 7, timeout=5)
