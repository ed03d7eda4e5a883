"""What is done for each link about twice a second, and is no pause for everybody where there are many links."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter

import anyio
import pytest

from polybus import Bus, Limits, Peer, connect
from polybus._core.runtime.runtime import Runtime
from polybus.testing import World, simulated
from tests.loops import virtual_time  # noqa: F401


class Owner:
    def expire(self, now: float) -> float:
        return math.inf


class Link:
    def __init__(self, ticks: list[tuple[float, Link]]) -> None:
        self._ticks = ticks

    def tick(self, now: float) -> None:
        self._ticks.append((now, self))

    def broken(self) -> None:
        raise AssertionError("it is not broken")


@pytest.mark.parametrize("count", [1, 250, 251, 8_000])
async def test_links_are_looked_at_twice_a_second_and_a_few_hundred_at_a_time(count: int) -> None:
    runtime = Runtime(Limits())
    await runtime.open()
    ticks: list[tuple[float, Link]] = []
    links = [Link(ticks) for _ in range(count)]
    try:
        runtime.links.update(dict.fromkeys(links))
        began = runtime.time()
        await anyio.sleep(0.01)
        ticks.clear()
        await anyio.sleep(3.05)
        each = Counter(link for _, link in ticks)
        assert set(each.values()) <= {5, 6, 7}
        assert len(each) == count
        at_once = Counter(now for now, _ in ticks)
        assert max(at_once.values()) <= 250
        assert runtime.time() - began < 4
        del runtime.links[links[0]]
        ticks.clear()
        await anyio.sleep(2)
        assert links[0] not in {link for _, link in ticks}
    finally:
        runtime.links.clear()
        await runtime.close()


async def test_an_owner_that_is_watched_again_and_again_is_remembered_once_and_not_when_it_has_gone() -> None:
    runtime, owner = Runtime(Limits()), Owner()
    for number in range(10_000):
        runtime.deadlines.watch(owner, 1e9 - number)
    assert len(runtime.deadlines._due) < 100
    runtime.deadlines.forget(owner)
    runtime.deadlines.expire_overdue()
    assert owner not in runtime.deadlines.watched
    runtime.deadlines.watch(owner, 1e9)
    runtime.deadlines.forget(owner)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


@pytest.mark.native
@simulated()
async def test_of_links_that_have_been_up_for_a_while_nothing_is_left(world: World) -> None:
    server = Bus()
    async with server.serve("ubre+memory://left"):
        async with connect(world.to("memory://left"), protocol="ubre"):
            await anyio.sleep(5)
            (gone,) = {peer.id for peer in server.peers}
        await anyio.sleep(5)
        gc.collect()
        assert gone not in {peer.id for peer in gc.get_objects() if type(peer) is Peer}
