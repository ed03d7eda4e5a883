"""polybus.testing.simulated: virtual time, seeded faults, and runs that are a function of their seed."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, BusError, DeadlineExceeded, connect
from polybus.testing import FaultRates, World, simulated

pytestmark = pytest.mark.native

SOON = Backoff(initial=0.01, maximum=0.1)
ROUGH = FaultRates(delay=0.05, cut=1.0, pause=1.0, restart=0.5, longest=0.5)


def echoing() -> Bus:
    bus = Bus()

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    return bus


def linked(world: World, name: str = "", **options: Any) -> Any:
    """A client of the server at `memory://a`."""
    return connect(world.to("memory://a", name), protocol="ubre", **options)


async def rough_ride(world: World) -> str:
    """Ask a server that is killed now and then, over connections of which two protocols make use, and are cut."""

    @asynccontextmanager
    async def start() -> AsyncIterator[None]:
        async with (bus := echoing()).serve("ubre+memory://orders"), bus.serve("uprotocol+memory://more"):
            yield

    client = Bus()
    async with (
        world.process("orders", start),
        client.connect(world.to("memory://orders"), protocol="ubre", backoff=SOON) as orders,
        client.connect(world.to("memory://more"), protocol="uprotocol", backoff=SOON) as more,
    ):
        for number in range(40):
            with suppress(BusError):
                await world.random.choice((orders, more)).request("echo", number, timeout=0.5)
            await anyio.sleep(world.random.random() / 10)
        await world.calm()
        assert await orders.request("echo", "healed", timeout=5) == "healed"
        assert await more.request("echo", "healed", timeout=5) == "healed"
    return world.trace


def hearing(**options: Any) -> tuple[Bus, list[Any]]:
    bus = Bus()
    heard: list[Any] = []

    @bus.on("news", **options)
    def hear(body: Any) -> None:
        heard.append(body)

    return bus, heard


def trace_of(seed: int) -> str:
    return simulated(seeds=[seed], faults=ROUGH)(rough_ride)()


# -- time ----------------------------------------------------------------------------------------------------------------


def test_an_hour_of_virtual_time_is_not_waited_for() -> None:
    @simulated(limit=10_000)
    async def main(world: World) -> tuple[float, float]:
        bus = Bus()

        @bus.handle("never")
        async def never() -> None:
            await anyio.sleep_forever()

        async with bus:
            began = world.time
            with pytest.raises(DeadlineExceeded):
                await bus.request("never", timeout=3600)
            return began, world.time

    began, ended = main()
    assert began == 0
    assert 3600 <= ended <= 3600.02


def test_a_run_that_takes_longer_than_its_limit_fails() -> None:
    @simulated(limit=5)
    async def main(world: World) -> None:
        async with Bus():
            await anyio.sleep_forever()

    with pytest.raises(TimeoutError, match=r"after 5 s of virtual time: simulated\(limit="):
        main()


def test_a_run_in_which_nothing_will_ever_happen_fails_at_once() -> None:
    @simulated(limit=math.inf)
    async def main(world: World) -> None:
        await anyio.Event().wait()

    with pytest.raises(RuntimeError, match="virtual time would stand still forever"):
        main()


# -- seeds ---------------------------------------------------------------------------------------------------------------


def test_a_run_is_a_function_of_its_seed() -> None:
    traces = [trace_of(seed) for seed in (1, 2, 3)]
    assert len(set(traces)) == 3
    assert [trace_of(seed) for seed in (1, 2, 3)] == traces


def test_a_seed_that_fails_says_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_x.py::test_of_mine (call)")
    seen: list[int] = []

    @simulated(seeds=10)
    async def main(world: World) -> None:
        seen.append(world.seed)
        await anyio.sleep(1.5)
        world.note("the last words")
        assert world.seed != 4, "the mistake"

    with pytest.raises(AssertionError, match="the mistake") as raised:
        main()
    assert seen == [0, 1, 2, 3, 4]
    (note,) = raised.value.__notes__
    assert "seed 4 failed after 1.5 s" in note
    assert "1.5000 the last words" in note
    assert "POLYBUS_SEED=4 python -m pytest 'tests/test_x.py::test_of_mine'" in note

    monkeypatch.setenv("POLYBUS_SEED", "4")
    seen.clear()
    with pytest.raises(AssertionError, match="the mistake"):
        main()
    assert seen == [4]


def test_without_a_seed_there_is_nothing_to_run() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        simulated(seeds=[])


@simulated(seeds=2)
@pytest.mark.parametrize("number", [1, 2])
async def test_a_simulation_is_a_test_like_any_other(world: World, number: int, tmp_path: Any) -> None:
    assert number in (1, 2)
    assert tmp_path.exists()


# -- what is left --------------------------------------------------------------------------------------------------------


def test_a_task_that_is_left_fails_the_run() -> None:
    tasks: list[Any] = []

    @simulated()
    async def main(world: World) -> None:
        tasks.append(asyncio.get_running_loop().create_task(anyio.sleep(1), name="left behind"))

    with pytest.raises(AssertionError, match="left behind"):
        main()


def test_a_timer_that_is_left_fails_the_run() -> None:
    @simulated()
    async def main(world: World) -> None:
        asyncio.get_running_loop().call_later(7, print)

    with pytest.raises(AssertionError, match="due in 7 s"):
        main()


# -- faults --------------------------------------------------------------------------------------------------------------


def test_frames_of_different_connections_overtake_each_other() -> None:
    orders = set[tuple[int, ...]]()

    async def scenario(world: World) -> None:
        bus, heard = hearing(inline=True)
        async with bus.serve("ubre+memory://a"), linked(world) as one, linked(world) as two:
            for number, client in enumerate((one, two, one, two)):
                await client.publish("news", number)
            await anyio.sleep(1)
        orders.add(tuple(heard))

    simulated(seeds=30, faults=FaultRates(delay=0.5))(scenario)()
    assert {order.index(1) < order.index(0) for order in orders} == {True, False}
    assert all(order.index(0) < order.index(2) and order.index(1) < order.index(3) for order in orders)


@simulated()
async def test_until_a_server_learns_of_a_cut_it_has_two_connections_of_that_client(world: World) -> None:
    bus = echoing()
    async with bus.serve("ubre+memory://a"), linked(world, backoff=SOON) as client:
        world.connections[0].cut(theirs=5.0)
        assert await client.request("echo", 2) == 2
        assert len(bus.peers) == 2
        await anyio.sleep(5)
        assert len(bus.peers) == 1


@simulated()
async def test_a_pause_holds_back_all_connections_of_a_peer(world: World) -> None:
    async with echoing().serve("ubre+memory://a"), linked(world, "slow") as one, linked(world, "slow") as two:
        async with linked(world, "other") as three:
            began = world.time
            world.pause("slow", 3)
            assert await three.request("echo", 3) == 3
            assert world.time == began
            replies = [one.request("echo", 1), two.request("echo", 2)]
            assert [await reply for reply in replies] == [1, 2]
            assert world.time == began + 3


@simulated()
async def test_a_full_connection_asks_its_sender_to_pause(world: World) -> None:
    bus, heard = hearing(inline=True)
    async with bus.serve("ubre+memory://a"), linked(world) as client:
        world.connections[0].pause(3)
        for _ in range(30):
            await client.publish("news", "x" * 10_000)
        assert client.stats().queued > 10
        await anyio.sleep(3.1)
        assert client.stats().queued == 0
    assert len(heard) == 30


def test_faults_are_not_negative() -> None:
    with pytest.raises(ValueError, match="cut"):
        FaultRates(cut=-1)
