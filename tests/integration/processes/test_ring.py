"""A ring of servers and gateways under faults: nothing comes twice, nothing comes out of order, and it heals.

What is lost while something is broken is not looked at: at most once is what is promised.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest

from tests.loops import FULL

from .ring import Ring, ring

pytestmark = pytest.mark.anyio

FAULTS = int(os.environ.get("POLYBUS_RING_FAULTS", "0"))
"""Of each ring. POLYBUS_RING_FAULTS=50 is for those who have the time: all rings, single and double links, two loops."""
SEEDS = (1, 2) if FAULTS else (1,)
RINGS = {
    "ubre": ("ubre+tcp",) * 3,
    "csb": ("csb+tcp",) * 3,
    "mixed": ("ubre+tcp", "csb+ws", "jrep+tcp"),
    "others": ("uprotocol+tcp", "ubre+ws", "jrep+ws"),
}


LINKS = {("mixed", 2), ("others", 1)}
if FULL or FAULTS:
    LINKS |= {(name, 1) for name in RINGS}
if FAULTS:
    LINKS |= {(name, 2) for name in RINGS}


@pytest.fixture(params=[("asyncio", {}), ("trio", {})] if FAULTS else [("asyncio", {})], ids=lambda backend: backend[0])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Without uvloop: these tests take their time."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "links"), sorted(LINKS))
async def test_in_a_ring_whose_links_break_nothing_comes_twice_or_out_of_order(name: str, links: int, seed: int) -> None:
    faults = FAULTS or 8
    with anyio.fail_after(300 + 20 * faults):
        async with ring(RINGS[name], seed, links) as it:
            await it.drain()
            await _all_come(it)
            for _ in range(faults):
                for _ in range(it.random.randint(1, 6)):
                    await it.publish(it.random.randint(1, 20), subjects=3)
                await it.fault()
            await it.settle()
            for history in it.histories:
                assert (history.name, history.duplicates(), history.reorderings()) == (history.name, 0, 0)
            await _all_come(it)


@pytest.mark.parametrize("name", sorted(RINGS) if FAULTS else ["mixed"])
async def test_in_a_ring_whose_gateways_are_killed_nothing_comes_twice_or_out_of_order(name: str) -> None:
    kills = FAULTS or 8
    with anyio.fail_after(300 + 20 * kills):
        async with ring(RINGS[name], seed=1, processes=True) as it:
            await it.drain()
            await _all_come(it)
            for _ in range(kills):
                await it.kill()
            await it.settle()
            for history in it.histories:
                assert (history.name, history.duplicates(), history.reorderings()) == (history.name, 0, 0)
            await _all_come(it)


async def _all_come(it: Ring) -> None:
    """While nothing is broken nothing is lost either, and what each publisher says comes in its order, whatever the subject."""
    before = [len(history.heard) for history in it.histories]
    await it.publish(50, subjects=3)
    await it.drain()
    for history, start in zip(it.histories, before, strict=True):
        for which in range(len(it.publishers)):
            numbers = [number for _, publisher, number in history.heard[start:] if publisher == f"p{which}"]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert len(numbers) >= 51
