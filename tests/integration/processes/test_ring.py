"""A ring of servers and gateways that are killed: nothing comes twice, nothing comes out of order, and it heals.

What is lost while something is broken is not looked at: at most once is what is promised.
"""

from __future__ import annotations

import os

import anyio
import pytest

from .ring import Ring, ring

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("POLYBUS_RING_FAULTS", "8"))
"""POLYBUS_RING_FAULTS=50 is for those who have the time."""


async def test_in_a_ring_whose_gateways_are_killed_nothing_comes_twice_or_out_of_order() -> None:
    with anyio.fail_after(300 + 20 * KILLS):
        async with ring(("ubre+tcp", "csb+ws", "jrep+tcp"), seed=1) as it:
            await it.drain()
            await _all_come(it)
            for _ in range(KILLS):
                await it.kill()
            await it.drain()
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
