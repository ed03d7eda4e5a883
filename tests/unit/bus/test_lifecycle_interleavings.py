"""However entering, leaving, draining and closing interleave, nobody waits for ever and the bus is left in the end."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import Bus, BusError, Context, Limits
from tests.loops import virtual_time  # noqa: F401
from tests.support import eventually


def make_bus(rng: random.Random, states: set[Any]) -> Bus:
    """Its lifespan may take its time, enter its own bus, and fail at both ends; its handlers may end their bus."""

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[str]:
        for _ in range(rng.randrange(4)):
            await anyio.lowlevel.checkpoint()
        if rng.random() < 0.1:
            raise LookupError
        async with anyio.create_task_group() as group:
            if rng.random() < 0.5:
                async with bus:
                    yield "state"
            else:
                yield "state"
            group.cancel_scope.cancel()
        if rng.random() < 0.1:
            raise LookupError

    bus = Bus(lifespan=lifespan, limits=Limits(close_timeout=0.05))

    @bus.handle("work")
    async def work(what: int, ctx: Context) -> Any:
        states.add(ctx.state)
        if what == 1:
            await ctx.bus.aclose()
        elif what == 2:
            await ctx.bus.drain(0.05)
        elif what == 3:
            async with ctx.bus:
                await anyio.lowlevel.checkpoint()
        elif what == 4:
            await anyio.sleep(0.001)

    return bus


async def use(bus: Bus, rng: random.Random, name: str) -> None:
    """Enter the bus in some way, ask it, and leave it in some way."""
    with anyio.CancelScope() as scope:
        if rng.random() < 0.2:
            scope.deadline = anyio.current_time() + rng.random() * 0.005
        async with bus if rng.random() < 0.5 else bus.serve(f"ubre+memory://{name}"):
            for _ in range(rng.randrange(4)):
                await bus.request("work", rng.randrange(8), timeout=0.2)
            way = rng.random()
            if way < 0.1:
                await bus.aclose()
            elif way < 0.2:
                await bus.drain(0.05)
            elif way < 0.3:
                raise KeyError


@pytest.mark.parametrize("seed", range(25))
async def test_a_bus_is_left_however_those_who_use_it_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    states: set[Any] = set()
    bus = make_bus(rng, states)

    async def act(number: int) -> None:
        for turn in range(4):
            try:
                await use(bus, rng, f"{seed}-{number}-{turn}")
            except (KeyError, LookupError, BusError):
                pass

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(act, number)
    await eventually(lambda: bus._services.runtime is None)  # a handler may have entered too
    assert states == {"state"}
    assert not bus.ready
    assert bus._life._entered == 0
    assert bus.stats().running == 0
