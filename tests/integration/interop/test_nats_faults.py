"""Faults of real NATS servers under load: every request ends, nothing is handled twice, and all is restored.

What is lost while something is broken is not looked at: at most once is what is promised.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from attrs import define, field

from polybus import Backoff, Bus, BusError, DeadlineExceeded, Disconnected, Limits, NoHandler, connect
from tests.support import eventually

from .nats_servers import NatsServer, nats_cluster, nats_server

ROUNDS = int(os.environ.get("POLYBUS_KILL_ROUNDS", "1"))
"""Of each fault. POLYBUS_KILL_ROUNDS=20 is for those who have the time."""
BACKOFF = Backoff(initial=0.01, maximum=0.1)
LIMITS = Limits(ping_interval=1.0, ping_timeout=1.0, connect_timeout=1.0, handshake_timeout=1.0)
PATIENCE = 1.0
"""Seconds that a request waits: NATS tells an asker nothing of a worker that has gone."""
MORE = 100
"""Answers, and publications, after which all goes well again."""
CONFIG = "lame_duck_duration: 30s\nlame_duck_grace_period: 1s\nmax_pending: 2MB\nwrite_deadline: 1s\n"
FINE = ("good", "Disconnected", "DeadlineExceeded", "NoHandler")
"""The ends of a request."""


@define(eq=False)
class Traffic:
    """Buses that ask, answer, publish and hear all the time, and ledgers of what was handled."""

    workers: list[Bus] = field(factory=list)
    askers: list[Bus] = field(factory=list)
    outcomes: Counter[str] = field(factory=Counter)
    handled: Counter[int] = field(factory=Counter)
    jobs: Counter[int] = field(factory=Counter)
    news: list[list[tuple[int, int]]] = field(factory=list)
    asked: int = 0
    published: int = 0
    stop: bool = False

    def worker(self) -> Bus:
        bus = Bus(limits=LIMITS)
        heard = list[tuple[int, int]]()
        self.news.append(heard)
        self.workers.append(bus)

        @bus.handle("work")
        async def work(number: int) -> int:
            self.handled[number] += 1
            await anyio.lowlevel.checkpoint()
            return number

        @bus.on("jobs.*", group="g")
        async def job(number: int) -> None:
            self.jobs[number] += 1

        @bus.on("news.>")
        async def hear(body: list[int]) -> None:
            heard.append((body[0], body[1]))

        return bus

    async def ask(self, bus: Bus) -> None:
        while not self.stop:
            self.asked = number = self.asked + 1
            try:
                answer = await bus.request("work", number, timeout=PATIENCE)
            except (Disconnected, DeadlineExceeded, NoHandler) as error:
                self.outcomes[type(error).__name__] += 1
                await anyio.lowlevel.checkpoint()
            except BusError as error:
                self.outcomes[repr(error)] += 1
            else:
                self.outcomes["good" if answer == number and self.handled[number] == 1 else f"{number}: {answer}"] += 1

    async def publish(self, bus: Bus, publisher: int) -> None:
        number = 0
        while not self.stop:
            number += 1
            self.published += 1
            try:
                await bus.publish(f"news.{publisher}", [publisher, number], timeout=PATIENCE)
                await bus.publish("jobs.new", publisher * 10_000_000 + number, timeout=PATIENCE)
                with anyio.move_on_after(PATIENCE):  # not faster than is heard
                    await bus.request("work", -1 - publisher * 10_000_000 - number, timeout=PATIENCE)
            except BusError:
                await anyio.lowlevel.checkpoint()

    async def more(self) -> None:
        """Wait until all goes well again: answers come, and what is published now is heard everywhere."""
        good, jobs, heard = self.outcomes["good"], self.jobs.total(), [len(one) for one in self.news]
        await eventually(
            lambda: (
                self.outcomes["good"] > good + MORE
                and self.jobs.total() > jobs + MORE // 2
                and all(len(one) > before + MORE // 2 for one, before in zip(self.news, heard, strict=True))
            )
        )

    def check(self) -> None:
        """Nothing was handled twice, nothing came out of order, and nothing else happened to a request."""
        assert not [outcome for outcome in self.outcomes if outcome not in FINE], self.outcomes
        assert [number for number, times in self.handled.items() if times > 1] == []
        assert [number for number, times in self.jobs.items() if times > 1] == []
        for heard in self.news:
            for publisher in {publisher for publisher, _ in heard}:
                numbers = [number for one, number in heard if one == publisher]
                assert numbers == sorted(set(numbers))

    async def settled(self) -> None:
        """All that is published and asked now is heard and answered, and nothing of what was is left."""
        buses = [*self.workers, *self.askers]
        await eventually(lambda: all(bus.stats().links == 1 for bus in buses))
        for bus in buses:
            async with bus.subscribe("barrier"):  # what was restored is known when this is entered
                pass
        for number in range(20):
            asker = self.askers[number % len(self.askers)]
            assert await asker.request("work", 2_000_000_000 + number, timeout=60) == 2_000_000_000 + number
            await asker.publish("jobs.last", 2_000_000_000 + number)
            # Of several connections the server reads now this one first, now that one: in order is what one has published.
            await asker.publish("news.last", [99 + number % len(self.askers), number])
        await eventually(lambda: all(self.jobs[2_000_000_000 + number] == 1 for number in range(20)))
        for heard in self.news:
            await eventually(lambda: sorted(number for one, number in heard if one >= 99) == list(range(20)))  # noqa: B023
        await eventually(lambda: all(_idle(bus) for bus in buses))


def _idle(bus: Bus) -> bool:
    stats = bus.stats()
    # What a server that was stopped delivers after its deadline is refused.
    assert (stats.malformed, stats.failed) == (0, 0), stats
    return stats.pending == stats.running == stats.waiting == stats.queued == stats.unread == 0


@asynccontextmanager
async def traffic_at(urls: list[str]) -> AsyncIterator[Traffic]:
    traffic = Traffic()
    async with AsyncExitStack() as stack:
        for number in range(3):
            url = urls[number % len(urls)]
            await stack.enter_async_context(connect(url, bus=traffic.worker(), backoff=BACKOFF))
            asker = Bus(limits=LIMITS)
            traffic.askers.append(asker)
            await stack.enter_async_context(connect(url, bus=asker, backoff=BACKOFF))
        async with anyio.create_task_group() as group:
            for number, asker in enumerate(traffic.askers):
                for _ in range(4):
                    group.start_soon(traffic.ask, asker)
                group.start_soon(traffic.publish, asker, number)
            await traffic.more()
            yield traffic
            traffic.stop = True  # each ends within its patience
        traffic.check()
        await traffic.settled()
        traffic.check()
    print(f"{ROUNDS} rounds: {dict(traffic.outcomes)}, {traffic.published} publications")


async def kill(server: NatsServer, traffic: Traffic) -> None:
    server.kill()
    lost = traffic.outcomes["Disconnected"]
    await eventually(lambda: traffic.outcomes["Disconnected"] > lost or traffic.outcomes["good"] > 0)
    await anyio.to_thread.run_sync(server.start)


async def end(server: NatsServer, traffic: Traffic) -> None:
    await anyio.to_thread.run_sync(server.terminate)
    await anyio.to_thread.run_sync(server.start)


async def stop(server: NatsServer, traffic: Traffic) -> None:
    """It says nothing, until requests have run into their deadlines or been told that it is silent; of two servers it may be
    the one that nobody asks through."""
    server.signal(signal.SIGSTOP)
    try:
        good, ended = traffic.outcomes["good"], sum(traffic.outcomes[name] for name in FINE[1:])
        await eventually(
            lambda: sum(traffic.outcomes[name] for name in FINE[1:]) > ended + 3 or traffic.outcomes["good"] > good + 10 * MORE
        )
    finally:
        server.signal(signal.SIGCONT)


async def lame_duck(server: NatsServer, traffic: Traffic) -> None:
    """It sends its clients away, one after the other, and ends; and is there again."""
    server.signal(signal.SIGUSR2)
    await anyio.to_thread.run_sync(server.ended)
    await anyio.to_thread.run_sync(server.start)


FAULTS = {"kill": kill, "end": end, "stop": stop, "lame duck": lame_duck}


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[list[NatsServer]]:
    if request.param == 1:
        with nats_server("debian", CONFIG) as one:
            yield [one]
        return
    with nats_cluster(2, lambda _: CONFIG) as two:
        yield two


@pytest.mark.timeout(120 + 60 * ROUNDS)
@pytest.mark.parametrize("servers", [1, 2], indirect=True, ids=["one-server", "two-servers"])
async def test_servers_that_are_killed_stopped_or_leave_cost_no_request_its_end_and_nothing_is_handled_twice(
    servers: list[NatsServer],
) -> None:
    rng = random.Random(len(servers))
    with anyio.fail_after(100 + 60 * ROUNDS):
        async with traffic_at([server.url for server in servers]) as traffic:
            for _ in range(ROUNDS):
                for name in rng.sample(sorted(FAULTS), len(FAULTS)):
                    await FAULTS[name](rng.choice(servers), traffic)
                    await traffic.more()
