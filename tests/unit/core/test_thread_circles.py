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
from tests.support import BOUND, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.native]

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


Circle = Callable[[World], None]
CIRCLES: dict[str, Circle] = {}


def circle(define: Circle) -> Circle:
    CIRCLES[define.__name__.replace("_", " ")] = define
    return define


@circle
def an_async_handler_with_a_session(world: World) -> None:
    @world.bus.handle("outer")
    async def outer(n: int, db: Annotated[str, Depends(world.pool.session)]) -> int:
        await anyio.lowlevel.checkpoint()
        return n


@circle
def a_def_handler_with_a_session(world: World) -> None:
    @world.bus.handle("outer")
    def outer(n: int, db: Annotated[str, Depends(world.pool.session)]) -> int:
        return n


@circle
def a_dependency_with_a_session(world: World) -> None:
    def repository(db: Annotated[str, Depends(world.pool.session)]) -> Iterator[str]:
        yield db

    @world.bus.handle("outer")
    def outer(n: int, rows: Annotated[str, Depends(repository)]) -> int:
        return n


@circle
def a_session_that_a_plain_dependency_takes(world: World) -> None:
    def take() -> Iterator[str]:
        held = world.pool.session()
        next(held)
        return held

    @world.bus.handle("outer")
    def outer(n: int, held: Annotated[Any, Depends(take)]) -> int:
        held.close()
        return n


@circle
def a_stream_with_a_session(world: World) -> None:
    @world.bus.handle("items")
    async def items(n: int, db: Annotated[str, Depends(world.pool.session)]) -> AsyncIterator[int]:
        yield n

    @world.bus.handle("outer")
    async def outer(n: int) -> int:
        async with world.bus.stream("items", n, returns=int) as stream:
            return [item async for item in stream][0]


@circle
def a_def_handler_that_asks(world: World) -> None:
    @world.bus.handle("outer")
    def outer(n: int, ctx: sync.Context) -> int:
        return ctx.bus.request("inner", n, returns=int)


@circle
def a_def_handler_that_asks_through_an_async_one(world: World) -> None:
    @world.bus.handle("outer")
    def outer(n: int, bus: sync.BlockingBus) -> int:
        return bus.request("between", n, returns=int)


@circle
def a_def_handler_that_asks_with_a_session(world: World) -> None:
    @world.bus.handle("outer")
    def outer(n: int, bus: sync.BlockingBus, db: Annotated[str, Depends(world.pool.session)]) -> int:
        return bus.request("between", n, returns=int)


@circle
def an_async_handler_that_asks_with_a_session(world: World) -> None:
    @world.bus.handle("outer")
    async def outer(n: int, db: Annotated[str, Depends(world.pool.session)]) -> int:
        return await world.bus.request("between", n, returns=int)


@circle
def a_dependency_that_asks(world: World) -> None:
    def asked(bus: sync.BlockingBus) -> Iterator[int]:
        yield bus.request("inner", 1, returns=int)
        bus.request("inner", 1, returns=int)

    @world.bus.handle("outer")
    def outer(n: int, one: Annotated[int, Depends(asked)]) -> int:
        return n * one


@circle
def threads_of_a_def_handler_that_ask(world: World) -> None:
    @world.bus.handle("outer")
    def outer(n: int, bus: sync.BlockingBus) -> int:
        with ThreadPoolExecutor(2) as threads:
            return max(threads.map(lambda each: bus.request("inner", each, returns=int), (0, n)))


@circle
def two_buses_that_ask_each_other(world: World) -> None:
    @world.other.handle("middle")
    def middle(n: int, peer: sync.BlockingPeer) -> int:
        return peer.request("inner", n, returns=int)

    @world.bus.handle("outer")
    async def outer(n: int) -> int:
        return await world.bus.request("over there", n, returns=int)

    @world.bus.handle("over there")
    def over_there(n: int, bus: sync.BlockingBus) -> int:
        return bus.request("middle", n, returns=int, to=bus.peers[0])


@circle
def a_twin_with_an_event_loop_of_its_own(world: World) -> None:
    @world.bus.handle("outer")
    def outer(n: int) -> int:
        return int(world.own_loop.request("inner", n))


@circle
def a_twin_that_a_handler_opens(world: World) -> None:
    @world.bus.handle("outer")
    def outer(n: int) -> int:
        with sync.connect(world.there.url) as twin:
            return twin.request("inner", n, returns=int)


@circle
def a_publisher_that_waits_for_a_full_queue(world: World) -> None:
    @world.bus.on("told", queue=1, when_full="block")
    def told(n: int) -> None:
        pass

    @world.bus.handle("outer")
    def outer(n: int, bus: sync.BlockingBus) -> int:
        for _ in range(3):
            bus.publish("told", n)
        return n


@circle
def a_def_handler_that_reads_a_stream(world: World) -> None:
    @world.bus.handle("items")
    async def items(n: int) -> AsyncIterator[int]:
        yield await world.bus.request("inner", n, returns=int)

    @world.bus.handle("outer")
    def outer(n: int, bus: sync.BlockingBus) -> int:
        with bus.stream("items", n, returns=int) as stream:
            return next(stream)


@circle
def a_def_handler_that_waits_for_a_publication(world: World) -> None:
    @world.bus.handle("answer")
    def answer(n: int, bus: sync.BlockingBus) -> None:
        bus.publish(f"answered.{n}", n)

    @world.bus.handle("outer")
    def outer(n: int, bus: sync.BlockingBus) -> int:
        with bus.subscribe(f"answered.{n}", returns=int) as answers:
            bus.notify("answer", n)
            return answers.receive().body


@circle
def a_lock_over_a_question(world: World) -> None:
    lock = threading.Lock()

    @world.bus.handle("outer")
    def outer(n: int, bus: sync.BlockingBus) -> int:
        with lock:
            return bus.request("inner", n, returns=int)


@pytest.mark.parametrize("name", CIRCLES)
@bounded
async def test_no_circle_of_threads_stands_still(name: str) -> None:
    world = World()
    CIRCLES[name](world)
    async with AsyncExitStack() as stack:
        world.there = await stack.enter_async_context(world.bus.serve("ubre+tcp://127.0.0.1:0"))
        client = await stack.enter_async_context(connect(world.there.url, bus=world.other))
        if "own" in name:
            world.own_loop = await anyio.to_thread.run_sync(sync.connect, world.there.url)
            stack.push_async_callback(anyio.to_thread.run_sync, world.own_loop.close)
        replies = [client.request("outer", n, timeout=BOUND, returns=int) for n in range(MANY)]
        assert [await reply for reply in replies] == [*range(MANY)]
    await world.bus.aclose()
