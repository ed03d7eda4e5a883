"""Nobody waits for a thread while it holds what the threads wait for: each circle here ends on two threads."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Annotated, Any

import anyio
import anyio.from_thread
import pytest
from fast_depends import Depends

from polybus import Bus, Limits, connect, sync
from tests.loops import both_backends  # noqa: F401
from tests.support import BOUND

pytestmark = pytest.mark.native

MANY = 12
PATIENCE = 40.0
"""Seconds that a thread waits in a test that fails."""


class Pool:
    """One connection to a database: who comes late waits in its thread."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(1)

    def session(self) -> Iterator[str]:
        if not self._free.acquire(timeout=PATIENCE):
            raise RuntimeError("no connection became free")
        try:
            yield "session"
        finally:
            self._free.release()


class World:
    """A bus of two threads, another of one, and what they share. Each handler gives its number."""

    def __init__(self) -> None:
        self.bus, self.other = Bus(limits=Limits(threads=2)), Bus(limits=Limits(threads=1))
        self.pool = Pool()
        self.there: Any = None
        """A client of the bus."""
        self.own_loop: Any = None
        """A blocking one, with an event loop of its own."""

        @self.bus.handle("inner")
        def inner(n: int) -> int:
            return n

        @self.bus.handle("between")
        async def between(n: int) -> int:
            return await self.bus.request("inner", n, returns=int)

        @self.bus.handle("items of a session")
        async def items_of_a_session(n: int, db: Annotated[str, Depends(self.pool.session)]) -> AsyncIterator[int]:
            yield n

        @self.bus.handle("items")
        async def items(n: int) -> AsyncIterator[int]:
            yield await self.bus.request("inner", n, returns=int)

        @self.bus.handle("over there")
        def over_there(n: int, bus: sync.BlockingBus) -> int:
            return bus.request("middle", n, returns=int, to=bus.peers[0])

        @self.other.handle("middle")
        def middle(n: int, peer: sync.BlockingPeer) -> int:
            return peer.request("inner", n, returns=int)

        @self.bus.handle("answer")
        def answer(n: int, bus: sync.BlockingBus) -> None:
            bus.publish(f"answered.{n}", n)

        @self.bus.on("told", queue=1, when_full="block")
        def told(n: int) -> None:
            pass


def circles(world: World) -> dict[str, Callable[..., Any]]:
    """Handlers by their names, of which each closes a circle."""
    lock = threading.Lock()

    def repository(db: Annotated[str, Depends(world.pool.session)]) -> Iterator[str]:
        yield db

    def take() -> Iterator[str]:
        held = world.pool.session()
        next(held)
        return held

    def asked(bus: sync.BlockingBus) -> Iterator[int]:
        yield bus.request("inner", 1, returns=int)
        bus.request("inner", 1, returns=int)

    async def an_async_handler_with_a_session(n: int, db: Annotated[str, Depends(world.pool.session)]) -> int:
        await anyio.lowlevel.checkpoint()
        return n

    def a_def_handler_with_a_session(n: int, db: Annotated[str, Depends(world.pool.session)]) -> int:
        return n

    def a_dependency_with_a_session(n: int, rows: Annotated[str, Depends(repository)]) -> int:
        return n

    def a_session_that_a_plain_dependency_takes(n: int, held: Annotated[Any, Depends(take)]) -> int:
        held.close()
        return n

    async def a_stream_with_a_session(n: int) -> int:
        async with world.bus.stream("items of a session", n, returns=int) as stream:
            return [item async for item in stream][0]

    def a_def_handler_that_asks(n: int, ctx: sync.Context) -> int:
        return ctx.bus.request("inner", n, returns=int)

    def a_def_handler_that_asks_through_an_async_one(n: int, bus: sync.BlockingBus) -> int:
        return bus.request("between", n, returns=int)

    def a_def_handler_that_asks_with_a_session(
        n: int, bus: sync.BlockingBus, db: Annotated[str, Depends(world.pool.session)]
    ) -> int:
        return bus.request("between", n, returns=int)

    async def an_async_handler_that_asks_with_a_session(n: int, db: Annotated[str, Depends(world.pool.session)]) -> int:
        return await world.bus.request("between", n, returns=int)

    def a_dependency_that_asks(n: int, one: Annotated[int, Depends(asked)]) -> int:
        return n * one

    def threads_of_a_def_handler_that_ask(n: int, bus: sync.BlockingBus) -> int:
        with ThreadPoolExecutor(2) as threads:
            return max(threads.map(lambda each: bus.request("inner", each, returns=int), (0, n)))

    async def two_buses_that_ask_each_other(n: int) -> int:
        return await world.bus.request("over there", n, returns=int)

    def a_twin_with_an_event_loop_of_its_own(n: int) -> int:
        return int(world.own_loop.request("inner", n))

    def a_twin_that_a_handler_opens(n: int) -> int:
        with sync.connect(world.there.url) as twin:
            return twin.request("inner", n, returns=int)

    def a_publisher_that_waits_for_a_full_queue(n: int, bus: sync.BlockingBus) -> int:
        for _ in range(3):
            bus.publish("told", n)
        return n

    def a_def_handler_that_reads_a_stream(n: int, bus: sync.BlockingBus) -> int:
        with bus.stream("items", n, returns=int) as stream:
            return next(stream)

    def a_def_handler_that_waits_for_a_publication(n: int, bus: sync.BlockingBus) -> int:
        with bus.subscribe(f"answered.{n}", returns=int) as answers:
            bus.notify("answer", n)
            return answers.receive().body

    def a_lock_over_a_question(n: int, bus: sync.BlockingBus) -> int:
        with lock:
            return bus.request("inner", n, returns=int)

    of_sessions: list[Callable[..., Any]] = [
        *(an_async_handler_with_a_session, a_def_handler_with_a_session, a_dependency_with_a_session, a_stream_with_a_session),
        *(a_session_that_a_plain_dependency_takes, a_def_handler_that_asks_with_a_session),
        an_async_handler_that_asks_with_a_session,
    ]
    of_buses: list[Callable[..., Any]] = [
        *(a_def_handler_that_asks, a_def_handler_that_asks_through_an_async_one, a_dependency_that_asks),
        *(threads_of_a_def_handler_that_ask, two_buses_that_ask_each_other, a_twin_with_an_event_loop_of_its_own),
        *(a_twin_that_a_handler_opens, a_publisher_that_waits_for_a_full_queue, a_def_handler_that_reads_a_stream),
        *(a_def_handler_that_waits_for_a_publication, a_lock_over_a_question),
    ]
    handlers: list[Any] = [*of_sessions, *of_buses]
    return {handler.__name__.replace("_", " "): handler for handler in handlers}


@pytest.mark.parametrize("name", circles(World()))
async def test_no_circle_of_threads_stands_still(name: str) -> None:
    world = World()
    world.bus.handle("outer")(circles(world)[name])
    async with AsyncExitStack() as stack:
        world.there = await stack.enter_async_context(world.bus.serve("ubre+tcp://127.0.0.1:0"))
        client = await stack.enter_async_context(connect(world.there.url, bus=world.other))
        if "own" in name:
            world.own_loop = await anyio.to_thread.run_sync(sync.connect, world.there.url)
            stack.push_async_callback(anyio.to_thread.run_sync, world.own_loop.close)
        replies = [client.request("outer", n, timeout=BOUND, returns=int) for n in range(MANY)]
        assert [await reply for reply in replies] == [*range(MANY)]
    await world.bus.aclose()
