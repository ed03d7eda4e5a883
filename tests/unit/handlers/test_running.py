"""Handlers that take only so many calls at once: `running=`."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from polybus import Bus, Channel, Cluster, DeadlineExceeded, Limits, Router, TooManyRequests, connect
from polybus.errors import BusError
from polybus.testing import NatsEngine, pair
from tests.support import eventually


class Gauge:
    """Counts how many are inside, and keeps them there until they are let go."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.begun: list[Any] = []
        self._released = 0
        self._bell = anyio.Event()

    @asynccontextmanager
    async def entered(self, who: Any = None) -> AsyncIterator[None]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.begun.append(who)
        try:
            yield
        finally:
            self.inside -= 1

    async def held(self, who: Any = None) -> Any:
        async with self.entered(who):
            while not self._released:
                await self._bell.wait()
            self._released -= 1
        return who

    def release(self, count: int = 1) -> None:
        self._released += count
        self._bell.set()
        self._bell = anyio.Event()


def limited(bus: Bus, running: int, subject: str = "work") -> Gauge:
    gauge = Gauge()

    @bus.handle(subject, running=running)
    async def work(who: Any = None) -> Any:
        return await gauge.held(who)

    return gauge


@pytest.fixture(params=["a client", "the bus itself"])
def asking(request: pytest.FixtureRequest) -> Callable[[Bus], Any]:
    @asynccontextmanager
    async def asker(bus: Bus) -> AsyncIterator[Bus]:
        async with bus if request.param == "the bus itself" else pair(bus) as client:
            yield client

    return asker


async def test_so_many_run_at_once_and_the_others_wait(asking: Callable[[Bus], Any]) -> None:
    bus = Bus()
    gauge = limited(bus, 3)
    async with asking(bus) as client:
        replies = [client.request("work", n) for n in range(10)]
        await eventually(lambda: bus.stats().waiting == 7 and gauge.inside == 3)
        assert bus.stats().running == 3
        gauge.release(10)
        assert [await reply for reply in replies] == list(range(10))
        assert gauge.most == 3
        await eventually(lambda: bus.stats().running == bus.stats().waiting == 0)


async def test_what_waits_for_a_handler_takes_no_place_of_others() -> None:
    bus = Bus(limits=Limits(running=2, waiting=16))
    gauge = limited(bus, 1)

    @bus.handle("ping")
    def ping() -> str:
        return "pong"

    async with pair(bus) as client:
        replies = [client.request("work") for _ in range(8)]
        await eventually(lambda: bus.stats().waiting == 7)
        for _ in range(20):
            assert await client.request("ping") == "pong"
        gauge.release(8)
        for reply in replies:
            await reply
        assert gauge.most == 1


async def test_a_place_goes_round_among_those_who_wait() -> None:
    bus = Bus()
    gauge = limited(bus, 1)
    async with pair(bus) as greedy, pair(bus) as modest:
        replies = [greedy.request("work", f"greedy {n}") for n in range(4)]
        await eventually(lambda: bus.stats().waiting == 3)
        replies += [modest.request("work", "modest")]
        await eventually(lambda: bus.stats().waiting == 4)
        for count in range(1, 6):
            await eventually(lambda: len(gauge.begun) == count)  # noqa: B023
            gauge.release()
        for reply in replies:
            await reply
    assert gauge.begun == ["greedy 0", "greedy 1", "modest", "greedy 2", "greedy 3"]


async def test_one_that_waits_ends_by_its_deadline_and_by_a_cancel(asking: Callable[[Bus], Any]) -> None:
    bus = Bus()
    gauge = limited(bus, 1)
    async with asking(bus) as client:
        first = client.request("work", "first")
        await eventually(lambda: gauge.inside == 1)
        with pytest.raises(DeadlineExceeded) as caught:
            await client.request("work", "late", timeout=0.02)
        assert caught.value.where == "local"
        given_up = client.request("work", "given up")
        await eventually(lambda: bus.stats().waiting == 1)
        given_up.cancel()
        await eventually(lambda: bus.stats().waiting == 0)
        last = client.request("work", "last")
        gauge.release(2)
        assert (await first, await last) == ("first", "last")
    assert gauge.begun == ["first", "last"]


async def test_a_handler_that_is_told_to_stop_keeps_its_place_until_it_has(asking: Callable[[Bus], Any]) -> None:
    bus, gauge, cleaning, cleaned = Bus(), Gauge(), anyio.Event(), anyio.Event()

    @bus.handle("work", running=1)
    async def work(who: str) -> str:
        async with gauge.entered(who):
            if who == "second":
                return who
            try:
                await anyio.sleep_forever()
            finally:
                cleaning.set()
                with anyio.CancelScope(shield=True):
                    await cleaned.wait()
        raise AssertionError

    async with asking(bus) as client:
        first = client.request("work", "first")
        await eventually(lambda: gauge.inside == 1)
        second = client.request("work", "second")
        await eventually(lambda: bus.stats().waiting == 1)
        first.cancel()
        await cleaning.wait()
        assert gauge.begun == ["first"]
        cleaned.set()
        assert await second == "second"
    assert gauge.most == 1


async def test_a_client_that_goes_gives_back_what_it_had_and_what_it_waited_for() -> None:
    bus = Bus()
    gauge = limited(bus, 2)
    async with AsyncExitStack() as stack, pair(bus) as other:
        client = await stack.enter_async_context(pair(bus))
        for n in range(6):
            _ = client.request("work", f"gone {n}")
        await eventually(lambda: bus.stats().waiting == 4)
        replies = [other.request("work", n) for n in range(3)]
        await eventually(lambda: bus.stats().waiting == 7)
        await client.aclose()
        await eventually(lambda: len(gauge.begun) == 4)
        gauge.release(3)
        assert [await reply for reply in replies] == [0, 1, 2]
        assert gauge.begun == ["gone 0", "gone 1", 0, 1, 2]
        await eventually(lambda: bus.stats().running == bus.stats().waiting == 0)


async def test_streams_and_channels_have_their_place_as_long_as_they_are_open(asking: Callable[[Bus], Any]) -> None:
    bus, gauge = Bus(), Gauge()

    @bus.handle("count", running=1)
    async def count(who: str) -> AsyncIterator[str]:
        async with gauge.entered(who):
            while True:
                yield who

    @bus.handle("talk", running=1)
    async def talk(channel: Channel[str, str]) -> None:
        async with gauge.entered():
            async for item in channel:
                await channel.send(item)

    async with asking(bus) as client:
        for subject in ("count", "talk"):
            gauge.most, opening = 0, client.stream if subject == "count" else client.channel
            async with AsyncExitStack() as first:
                one = await first.enter_async_context(opening(subject, *(["one"] if subject == "count" else [])))
                if subject == "talk":
                    await one.send("one")
                assert await anext(aiter(one)) == "one"
                async with opening(subject, *(["two"] if subject == "count" else [])) as two:
                    if subject == "talk":
                        await two.send("two")
                    await eventually(lambda: bus.stats().waiting == 1)
                    await first.aclose()
                    assert await anext(aiter(two)) == "two"
            assert gauge.most == 1
            await eventually(lambda: bus.stats().running == bus.stats().waiting == gauge.inside == 0)


async def test_one_too_many_is_refused_with_the_limits() -> None:
    bus = Bus(limits=Limits(waiting=2))
    gauge = limited(bus, 1, "report.make")
    async with pair(bus) as client:
        replies = [client.request("report.make", n) for n in range(3)]
        await eventually(lambda: bus.stats().waiting == 2)
        with pytest.raises(TooManyRequests) as caught:
            await client.request("report.make", 3)
        assert caught.value.text == (
            "2 of your requests wait (Limits.waiting) behind 1 that the handler of 'report.make' has at once (running=): "
            "ask again when earlier ones have been answered"
        )
        gauge.release(3)
        assert [await reply for reply in replies] == [0, 1, 2]


async def test_a_bus_that_was_left_has_all_places_again() -> None:
    bus = Bus()
    gauge = limited(bus, 1)
    async with pair(bus) as client:
        _ = [client.request("work", n) for n in range(3)], [bus.request("work", n) for n in range(3)]
        await eventually(lambda: bus.stats().waiting == 5)
        await bus.aclose()
    async with pair(bus) as client:
        gauge.release()
        assert await client.request("work", "again") == "again"


async def test_a_router_that_several_buses_include_gives_each_its_places() -> None:
    router, gauge = Router(), Gauge()

    @router.handle("work", running=1)
    async def work(who: str) -> Any:
        return await gauge.held(who)

    one, two = Bus(), Bus()
    one.include(router)
    two.include(router, prefix="deep.")
    async with one, two:
        replies = [one.request("work", "one"), one.request("work", "one"), two.request("deep.work", "two")]
        await eventually(lambda: sorted(gauge.begun) == ["one", "two"])
        assert (one.stats().waiting, two.stats().waiting) == (1, 0)
        gauge.release(3)
        for reply in replies:
            await reply


def test_what_is_no_number_of_calls_is_refused_at_registration() -> None:
    bus = Bus()
    with pytest.raises(ValueError, match="running=0 must be at least 1"):
        bus.handle("work", running=0)
    with pytest.raises(TypeError, match=r"running=2\.5 must be an integer, not float"):
        bus.handle("work", running=2.5)  # type: ignore[call-overload]


@pytest.mark.parametrize(("running", "text"), [(64, "the handler of"), (1, r"run \(Cluster.running\)")])
async def test_in_a_cluster_one_too_many_is_asked_elsewhere(running: int, text: str) -> None:
    async with NatsEngine() as engine:
        asker = Bus(cluster=engine.url)
        full, free = (Bus(cluster=Cluster(engine.url, running=running, waiting=0)) for _ in range(2))
        gauge = limited(full, 1)
        full.handle("ping")(lambda: "full")
        async with asker, full:
            first = asker.request("work", "first")
            await eventually(lambda: gauge.inside == 1)
            with pytest.raises(
                TooManyRequests, match=rf"0 requests of the cluster wait \(Cluster.waiting\) behind 1 that {text}"
            ):
                await asker.request("work", "nobody else is there")
            assert running == 1 or await asker.request("ping") == "full"  # this node has room, that handler has none
            other = limited(free, 8)
            other.release(20)
            async with free:
                outcomes: Counter[str] = Counter()
                for n in range(20):
                    try:
                        outcomes[await asker.request("work", f"to {n}")] += 1
                    except TooManyRequests:  # three times the same node was chosen
                        outcomes["refused"] += 1
                assert other.begun == [f"to {n}" for n in range(20) if outcomes[f"to {n}"]]
                assert gauge.begun == ["first"]
                assert outcomes["refused"] < 15
            gauge.release()
            assert await first == "first"


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_no_place_is_lost_and_none_given_twice(seed: int) -> None:
    rng, bus = random.Random(seed), Bus(limits=Limits(running=3, waiting=8, total_running=16))
    gauges = {f"work.{n}": Gauge() for n in (1, 2, 5)}

    def register(subject: str, gauge: Gauge) -> None:
        @bus.handle(subject, running=int(subject[-1]))
        async def work(n: int) -> int:
            async with gauge.entered(n):
                for _ in range(n % 4):
                    await anyio.lowlevel.checkpoint()
            return n

    for subject, gauge in gauges.items():
        register(subject, gauge)

    async def client(number: int) -> None:
        for _ in range(4):
            async with connect("ubre+memory://places") as own:
                asker = bus if number == 0 else own
                replies = [
                    asker.request(rng.choice([*gauges]), rng.randrange(100), timeout=rng.choice([0.001, 30])) for _ in range(20)
                ]
                for reply in replies:
                    how = rng.random()
                    if how < 0.2:
                        reply.cancel()
                    elif how < 0.8:
                        with suppress(BusError):
                            await reply.wait()
                if rng.random() < 0.3:
                    await own.aclose()

    async with bus.serve("ubre+memory://places"):
        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(client, number)
        await eventually(lambda: bus.stats().running == bus.stats().waiting == 0)
        for subject, gauge in gauges.items():
            assert 1 <= gauge.most <= int(subject[-1])
            assert gauge.inside == 0
            replies = [bus.request(subject, n) for n in range(9)]
            assert [await reply for reply in replies] == list(range(9))
