"""A cluster for the tests of faults: engines, nodes as processes, and nodes of the test itself that send requests."""

import random
import signal
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from attrs import define, field

from polybus import Backoff, Bus, BusError, Cluster, Disconnected, Limits, Reply, connect
from tests.integration.interop.nats_servers import NatsServer, nats_cluster, nats_server

from .cluster_node import idle, tasks_here
from .processes import BOUND, Process, eventually

SILENCE: dict[str, Any] = {"ping_interval": 1.0, "ping_timeout": 2.0, "connect_timeout": 1.0, "handshake_timeout": 1.0}
CONFIG = "lame_duck_duration: 30s\nlame_duck_grace_period: 1s\nmax_pending: 2MB\nwrite_deadline: 1s\n"
SOON = Backoff(initial=0.02, maximum=0.2)
BEAT = 0.05
_ANY = 1_000_000
_KEPT = 64 + 4
"""Tasks that a bus keeps for handlers to come, and those that one loop has of its own and another has not."""
FINE = frozenset({"good", "Disconnected", "DeadlineExceeded", "Unavailable"})
"""The ends of a request while something is broken."""
_EMPTY = ("pending", "running", "waiting", "queued", "unread", "malformed", "failed")


class Pulse:
    """Seconds that this process was given to run, so that a machine with other work to do is not taken for a slow cluster."""

    def __init__(self) -> None:
        self.beats = 0

    @property
    def seconds(self) -> float:
        return self.beats * BEAT

    async def beat(self) -> None:
        while True:
            await anyio.sleep(BEAT)
            self.beats += 1


@define(eq=False)
class Member:
    ledger: Path
    process: Process
    control: Bus = field(factory=Bus)
    over: anyio.Event = field(factory=anyio.Event)

    def taken(self, word: str) -> list[int]:
        """The numbers that its handlers have taken."""
        lines = self.ledger.read_text().split("\n") if self.ledger.exists() else []
        return [int(line.split()[1]) for line in lines[:-1] if line.startswith(f"{word} ")]

    async def tell(self, subject: str = "") -> dict[str, Any]:
        answer: dict[str, Any] = await self.control.request("control", subject, timeout=BOUND)
        return answer


@define(eq=False)
class World:
    """A cluster, and the record of what was asked of it."""

    servers: Sequence[NatsServer]
    rng: random.Random
    folder: Path
    group: TaskGroup
    members: list[Member] = field(factory=list)
    gone: list[Member] = field(factory=list)
    askers: list[Bus] = field(factory=list)
    down: set[NatsServer] = field(factory=set)
    outcomes: Counter[str] = field(factory=Counter)
    told: deque[str] = field(factory=lambda: deque(maxlen=20))
    """The last requests that were not answered, and why."""
    pulse: Pulse = field(factory=Pulse)
    figures: list[float] = field(factory=list)
    asked_by: dict[int, Bus] = field(factory=dict)
    tasks: int = 0
    """As many as there are here with nothing to do."""
    tasks_there: int = 0
    """As many as each member may have then."""
    _number: int = 0
    _stop: bool = False
    _asking: int = 0

    # -- members ---------------------------------------------------------------------------------------------------------

    def engine(self) -> str:
        return f"{self.rng.choice([server for server in self.servers if server not in self.down]).url}/shop"

    async def start(self, url: str | None = None) -> Member:
        """Start a node of that engine."""
        ledger = self.folder / str(self.number())
        backend: dict[str, Any] = self.rng.choice([{}, {"uvloop": True}, {"backend": "trio"}])
        options = {"cluster": url or self.engine(), "ledger": str(ledger), "limits": SILENCE, "run": backend}
        process = await anyio.to_thread.run_sync(Process, "cluster_node", options)
        member = Member(ledger, process)
        await self.group.start(self._live, member)
        return member

    async def _live(self, member: Member, *, task_status: Any) -> None:
        try:
            await anyio.to_thread.run_sync(member.process.introduce)
            async with connect(member.process.url, bus=member.control, backoff=SOON):
                self.members.append(member)
                task_status.started()
                await member.over.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(member.process.stop)

    def lose(self, member: Member) -> None:
        self.members.remove(member)
        self.gone.append(member)
        member.over.set()

    async def reconnects(self) -> dict[Any, int]:
        """How often each has come back to an engine, when all of them are there."""
        found: dict[Any, int] = {member: (await member.tell())["stats"]["reconnects"] for member in self.members}
        for bus in self.askers:
            await eventually(lambda: bus.stats().links == 1)  # noqa: B023
            found[bus] = bus.stats().reconnects
        return found

    async def passed(self, seconds: float) -> None:
        """Wait until this process was given so many seconds."""
        until = self.pulse.seconds + seconds
        await eventually(lambda: self.pulse.seconds >= until)

    # -- traffic ---------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        self._number += 1
        return self._number

    async def hold(self, count: int = 100) -> dict[int, Reply[Any]]:
        """Ask so many requests that are answered when they are released; return when handlers have them all."""
        replies = {}
        for _ in range(count):
            number = self.number()
            asker = self.asked_by[number] = self.rng.choice(self.askers)
            replies[number] = asker.request("hold", number, timeout=BOUND)
        await eventually(lambda: {number for one in self.members for number in one.taken("hold")}.issuperset(replies))
        return replies

    async def release(self) -> None:
        await self.askers[0].publish("release", timeout=BOUND)

    async def released(self, replies: dict[int, Reply[Any]]) -> set[int]:
        """Release them until each is over: with its own answer, or because the other end was lost. Gives which were."""
        lost = set[int]()

        async def all_over() -> bool:
            await self.release()  # again: a node that was cut off when it was said has not heard it
            return all(reply.done() for reply in replies.values())

        await eventually(all_over)
        for number, reply in replies.items():
            try:
                assert await reply == number
            except Disconnected as error:
                assert error.sent
                lost.add(number)
        return lost

    async def lost(self, replies: dict[int, Reply[Any]]) -> None:
        """Each of them ends because the other end is lost, and may have been handled."""
        for reply in replies.values():
            try:
                answer = await reply
            except Disconnected as error:
                assert error.sent, error
            else:
                raise AssertionError(f"answered with {answer}")

    async def ask_on(self, bus: Bus, subject: str = "work", timeout: float = 5.0) -> None:
        """Ask one request after the other, until the round is over."""
        self._asking += 1
        try:
            while not self._stop:
                number = self.number()
                try:
                    answer = await bus.request(subject, number, timeout=timeout)
                except BusError as error:
                    name = type(error).__name__
                    self.told.append(f"{number}: {error!r}")
                    self.outcomes[name if name in FINE else repr(error)] += 1
                else:
                    self.outcomes["good" if answer == number else f"{number}: {answer}"] += 1
                await anyio.sleep(0.02)
        finally:
            self._asking -= 1

    async def more(self, count: int = 20) -> None:
        good = self.outcomes["good"]
        await eventually(lambda: self.outcomes["good"] >= good + count)

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Each asker asks all the time, as long as the block lasts."""
        self._stop = False
        for bus in self.askers:
            self.group.start_soon(self.ask_on, bus)
        await self.more()
        yield
        await self.more()
        self._stop = True
        await eventually(lambda: self._asking == 0)

    # -- checks ----------------------------------------------------------------------------------------------------------

    def check(self, allowed: frozenset[str] = FINE) -> None:
        """Nothing else happened to a request than what may, and nothing was handled twice."""
        assert set(self.outcomes) <= allowed, (self.outcomes, *self.told)
        for word in ("work", "hold", "job"):
            taken = Counter(number for member in (*self.members, *self.gone) for number in member.taken(word))
            assert [number for number, times in taken.items() if times > 1] == []

    async def settled(self, allowed: frozenset[str] = FINE) -> None:
        """All know all, what is asked and published now is answered and heard once, and nothing is left of what was."""
        count = len(self.members) + len(self.askers)
        subject = f"news.{self.number()}"

        async def all_known() -> bool:
            for bus in self.askers:
                nodes = await bus.nodes()
                assert (len(nodes), nodes.complete) == (count, True)
            for member in self.members:
                assert (await member.tell())["nodes"] == count
            return True

        await eventually(all_known, BOUND)
        for bus in self.askers:
            async with bus.subscribe("barrier"):  # what was restored is known when this is entered
                pass
        jobs = [self.number() for _ in range(20)]
        for number in jobs:
            asker = self.askers[number % len(self.askers)]
            assert await asker.request("work", number, timeout=BOUND) == number
            await asker.publish("jobs.new", number)
            await self.askers[0].publish(subject, [number])
        await eventually(
            lambda: Counter(number for one in self.members for number in one.taken("job") if number in jobs) == Counter(jobs)
        )
        for member in self.members:
            await eventually(lambda: heard_at(member, subject, jobs))  # noqa: B023
            await eventually(lambda: _quiet(member, self.tasks_there))  # noqa: B023
        for bus in self.askers:
            await eventually(lambda: idle(bus) and not any(_left(bus.stats(), _EMPTY).values()))  # noqa: B023
        await eventually(lambda: len(tasks_here()) <= self.tasks)
        self.check(allowed)

    async def warmed_up(self) -> None:
        """Take note of how many tasks there are where nothing happens."""
        self.tasks = self.tasks_there = _ANY
        await self.settled()
        self.tasks_there = max([len((await member.tell())["tasks"]) for member in self.members]) + _KEPT
        self.tasks = len(tasks_here())


def _left(stats: Any, names: Sequence[str]) -> dict[str, int]:
    return {name: getattr(stats, name) for name in names}


async def heard_at(member: Member, subject: str, numbers: list[int]) -> bool:
    """A node has heard these of a subject, in this order, and no others."""
    heard = (await member.tell(subject))["heard"]
    assert heard == numbers
    return True


async def _quiet(member: Member, tasks: int) -> bool:
    """Nothing is left but the request that asks for it, which is no request of the cluster."""
    told = await member.tell()
    stats = told["stats"]
    left = {name: stats[name] for name in _EMPTY if stats[name]}
    assert left == {"running": 1}, stats
    assert told["idle"]
    assert len(told["tasks"]) <= tasks, told["tasks"]
    return True


@contextmanager
def engines(count: int) -> Iterator[list[NatsServer]]:
    """A server, or several that know each other."""
    if count == 1:
        with nats_server("debian", CONFIG) as one:
            yield [one]
    else:
        with nats_cluster(count, lambda _: CONFIG) as several:
            yield several


@asynccontextmanager
async def world_at(servers: Sequence[NatsServer], rng: random.Random, folder: Path, nodes: int = 3) -> AsyncIterator[World]:
    """Nodes, two buses that ask them, and what was noted of both."""
    async with anyio.create_task_group() as group:
        world = World(servers, rng, folder, group)
        group.start_soon(world.pulse.beat)
        async with AsyncExitStack() as stack:
            for number in range(nodes):
                await world.start(f"{servers[number % len(servers)].url}/shop")
            for number in range(2):
                bus = Bus(cluster=Cluster(f"{servers[number % len(servers)].url}/shop"), limits=Limits(**SILENCE))
                await stack.enter_async_context(bus)
                world.askers.append(bus)
            await world.warmed_up()
            try:
                yield world
            finally:
                for member in world.members:  # one that was stopped hears nothing
                    if member.process.running():
                        member.process.signal(signal.SIGCONT)
        for member in [*world.members]:
            world.lose(member)
        group.cancel_scope.cancel()
