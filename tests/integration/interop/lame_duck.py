"""A seeded ledger of messages over two NATS servers while one of them goes into lame duck mode."""

import random
import signal
from collections import Counter
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from functools import partial

import anyio
from attrs import define, field

from polybus import Bus, BusError, NoHandler, connect
from tests.support import BOUND, eventually

from .nats_servers import NatsServer, nats_cluster

_GRACE = 3
"""Seconds until the server begins to cut its clients."""


def two_servers() -> AbstractContextManager[list[NatsServer]]:
    """Two servers of one NATS cluster, short of time when they end."""
    return nats_cluster(2, lambda _: f'lame_duck_duration: "30s"\nlame_duck_grace_period: "{_GRACE}s"')


@define
class Ledger:
    failed: Counter[str] = field(factory=Counter)
    published: int = 0
    missed: int = 0
    twice: int = 0
    moved: int = 0


class Program:
    """A bus that asks, answers, publishes and hears, each as its seed says."""

    def __init__(self, rng: random.Random, name: str, bus: Bus, *, works: bool) -> None:
        self.rng, self.name, self.bus = rng, name, bus
        self.alone, self.grouped = Counter[str](), Counter[str]()
        self.work = rng.choice([0.0, 0.02, 0.3])
        """Seconds that a request takes."""
        self.pauses = rng.choice([0.002, 0.02, 0.1])
        bus.on("news.>")(self._hear)
        bus.on("news.*.jobs", group="workers")(self._hear_in_group)
        bus.handle(f"ask.{name}")(self._answer)
        if works:
            bus.handle("work")(self._answer)

    async def _hear(self, body: str) -> None:
        self.alone[body] += 1

    async def _hear_in_group(self, body: str) -> None:
        self.grouped[body] += 1

    async def _answer(self, n: int) -> int:
        await anyio.sleep(self.work)
        return n

    async def ask(self, ledger: Ledger, subjects: list[str], over: anyio.Event) -> None:
        n = 0
        while not over.is_set():
            n += 1
            try:
                assert await self.bus.request(self.rng.choice(subjects), n, timeout=BOUND / 2) == n
            except (BusError, TimeoutError) as error:
                ledger.failed[type(error).__name__] += 1
            await anyio.sleep(self.rng.random() * self.pauses)

    async def publish(self, sent: list[str], over: anyio.Event) -> None:
        while not over.is_set():
            sent.append(f"{self.name} {len(sent)}")
            await self.bus.publish("news.x.jobs", sent[-1])
            await anyio.sleep(self.rng.random() * self.pauses)


async def keep(first: NatsServer, second: NatsServer, seed: int) -> Ledger:
    """Let programs talk while the first server goes into lame duck mode."""
    rng, ledger, sent = random.Random(seed), Ledger(), list[str]()
    subjects = ["work", "ask.a", "ask.b", "ask.c"]
    programs = list[Program]()
    async with AsyncExitStack() as stack:
        homes = [(name, first if name in "ab" else second) for name in "abc"]
        for name, server in homes:
            # The only worker is at the server that ends, or there are some at both.
            works = name == "a" or bool(seed % 2)
            program = Program(rng, name, Bus(), works=works)
            programs.append(program)
            await stack.enter_async_context(connect(server.url, bus=program.bus))
        for program in programs:  # the servers know by now what each of them wants
            for subject in subjects:
                await eventually(partial(_answers, program.bus, subject))
        over = anyio.Event()
        async with anyio.create_task_group() as group:
            for program in programs:
                for _ in range(rng.choice([1, 4])):
                    group.start_soon(program.ask, ledger, subjects, over)
                group.start_soon(program.publish, sent, over)
            await anyio.sleep(0.5 + rng.random())
            first.signal(signal.SIGUSR2)
            await anyio.sleep(_GRACE + 2)
            over.set()
        with suppress(AssertionError):  # counted below
            await eventually(lambda: not _missed(programs, sent) and _moved(programs) >= 2)
        ledger.moved, ledger.missed = _moved(programs), _missed(programs, sent)
    ledger.published = len(sent)
    ledger.twice = sum(count - 1 for heard in _heard(programs) for count in heard.values())
    return ledger


async def _answers(bus: Bus, subject: str) -> bool:
    try:
        return bool(await bus.request(subject, 1) == 1)
    except NoHandler:
        return False


def _heard(programs: list[Program]) -> list[Counter[str]]:
    return [*(program.alone for program in programs), sum((program.grouped for program in programs), Counter())]


def _missed(programs: list[Program], sent: list[str]) -> int:
    return sum(not heard[body] for heard in _heard(programs) for body in sent)


def _moved(programs: list[Program]) -> int:
    return sum(program.bus.stats().reconnects for program in programs)
