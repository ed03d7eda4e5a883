"""What survives `kill -9`: a history of stored publications and of workers that are killed, by a seed that is printed.

Whatever is killed: what `publish` has said to be stored is stored, once; every such publication is handled, and one that no
handler can deal with is a dead letter, and no other. A publication that was handled twice was given out twice.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from attrs import define, field

from polybus import Bus, Cluster, DeadlineExceeded, Limits, Store
from polybus.cluster.durable.administration import Administration
from tests.integration.interop.nats_servers import NatsServer, nats_cluster, nats_server
from tests.integration.interop.test_rest_copies import jetstream
from tests.loops import ASYNCIO, FULL, PARAMS, TRIO

from .cluster_world import CONFIG, SILENCE
from .processes import Process, eventually

PUBLICATIONS = int(os.environ.get("POLYBUS_HISTORY", "50000" if FULL else "3000"))
"""POLYBUS_HISTORY=100000 POLYBUS_HISTORY_KILLS=200 is for those who have the time."""
KILLS = int(os.environ.get("POLYBUS_HISTORY_KILLS", "100" if FULL else "6"))
SEED = int(os.environ.get("POLYBUS_FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
IN_FLIGHT = 64
AHEAD = PUBLICATIONS // 3
"""Publications that are stored before the workers have handled as many: whoever is killed later has something to do."""
SOON = 30 + PUBLICATIONS / 1000
"""Seconds in which workers go on, whoever was killed, but for those in which they are given again what they have handled: a
server that was killed may have forgotten tens of thousands of acknowledgements."""
WORKERS = 3
POISON = 500
"""Every so many publications one that no handler can deal with."""
RUNS: Sequence[dict[str, Any]] = ({}, {"uvloop": True}, {"backend": "trio"})


@contextmanager
def keepers(count: int, folder: Path) -> Iterator[list[NatsServer]]:
    """A server that keeps, or several that keep together."""

    def config(number: int) -> str:
        return f'{CONFIG}server_name: "s{number}"\njetstream {{ store_dir: "{folder / f"js{number}"}" }}'

    if count == 1:
        with nats_server("debian", config(0)) as one:
            yield [one]
    else:
        with nats_cluster(count, config) as several:
            yield several


@define(eq=False)
class History:
    """What was published, and what the workers have written down."""

    folder: Path
    servers: Sequence[NatsServer]
    victims: Sequence[NatsServer]
    """Servers that are killed, too."""
    rng: random.Random
    workers: list[Process] = field(factory=list)
    stored: set[int] = field(factory=set)
    killed: Counter[str] = field(factory=Counter)
    _ledgers: list[Path] = field(factory=list)
    _read: dict[Path, int] = field(factory=dict)
    _again: int = 0
    """Lines of the workers about what had been handled before."""
    taken: Counter[tuple[int, int]] = field(factory=Counter)
    """By number and attempt."""
    done: Counter[int] = field(factory=Counter)

    async def start_worker(self) -> None:
        ledger = self.folder / f"ledger{len(self._ledgers)}"
        ledger.touch()
        self._ledgers.append(ledger)
        options = {
            "cluster": f"{self.rng.choice(self.servers).url}/shop",
            "ledger": str(ledger),
            "limits": SILENCE,
            "run": self.rng.choice(RUNS),
        }
        self.workers.append(await anyio.to_thread.run_sync(Process, "durable_worker", options))

    async def publish(self, bus: Bus, first: int) -> None:
        for number in range(first, PUBLICATIONS, IN_FLIGHT):
            await self.soon(lambda: number <= self.reached + AHEAD, bus)  # noqa: B023  # it is waited for at once
            kind = "poison" if number % POISON == POISON - 1 else "good"
            await bus.publish(f"work.{kind}", number, id=str(number), timeout=120.0)
            self.stored.add(number)

    @property
    def reached(self) -> int:
        """Publications that have been handled or are poison, about: those that cannot be are not waited for."""
        return len(self.done) * POISON // (POISON - 1)

    async def soon(self, condition: Callable[[], bool], bus: Bus) -> None:
        """Wait for what the workers are to have done, from when they are given what is new, and explain where they have not."""
        while not condition():
            before = self._again
            try:
                await eventually(lambda: condition() or self._again > before, SOON)  # noqa: B023  # it is waited for at once
            except AssertionError as error:
                raise AssertionError(await self.explain(bus)) from error

    async def keep_reading(self) -> None:
        while True:
            self.read()
            await anyio.sleep(0.05)  # nothing tells that another process has written

    def read(self) -> None:
        """Read what has been written down since the last time."""
        for ledger in self._ledgers:
            with ledger.open("rb") as file:
                file.seek(self._read.get(ledger, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[ledger] = self._read.get(ledger, 0) + len(whole)
            for line in whole.decode().splitlines():
                word, number, attempt = line.split()
                self._again += int(number) in self.done
                if word == "taken":
                    self.taken[int(number), int(attempt)] += 1
                else:
                    self.done[int(number)] += 1

    async def explain(self, bus: Bus) -> str:
        """Say what is known of publications that were not handled: by workers, by the engine, and by the logs of both."""
        missing = {number for number in self.stored - self.done.keys() if number % POISON != POISON - 1}
        told = [f"{len(missing)} not handled, {self.killed} killed"]
        told += [f"{n}: taken as attempts {[a for m, a in self.taken if m == n]}" for n in sorted(missing)[:50]]
        with anyio.move_on_after(20), suppress(DeadlineExceeded):
            engine, letters = jetstream(bus, SOON), await dead_letters(bus)
            told.append(f"dead letters that are good: {sorted(missing & set(letters))}; of {len(letters)}")
            for word in ("STREAM.INFO.shop-work", "CONSUMER.INFO.shop-work.ledger"):
                told.append(f"{word}: {await engine.ask(word)}")
        told += [f"worker {worker.pid}, running {worker.running()}:\n{worker.log()[-3000:]}" for worker in self.workers]
        told += [f"server {server.url}:\n{server.log()[-4000:]}" for server in self.servers]
        return "\n".join(told)

    def kill_one(self) -> Process | NatsServer:
        candidates: list[Process | NatsServer] = [*self.workers, *self.victims]
        victim = self.rng.choice(candidates)
        self.killed["worker" if isinstance(victim, Process) else "server"] += 1
        victim.kill()
        return victim

    async def replace(self, victim: Process | NatsServer) -> None:
        """Start another worker, or the same server, in place of one that was killed."""
        if isinstance(victim, Process):
            self.workers.remove(victim)
            victim.stop()
            await self.start_worker()
        else:
            await anyio.to_thread.run_sync(victim.start)


async def dead_letters(bus: Bus) -> list[int]:
    return sorted([int(letter.body) async for letter in Administration.of(bus).letters()])


@pytest.mark.timeout(120 + PUBLICATIONS / 100)
@pytest.mark.parametrize("anyio_backend", [PARAMS[ASYNCIO], PARAMS[TRIO]])
@pytest.mark.parametrize(("servers", "killed"), [(1, 0), (1, 1), (3, 3)])
async def test_whatever_is_killed_all_that_was_stored_is_handled_and_only_poison_is_dead(
    servers: int, killed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    print(f"POLYBUS_FAULT_SEED={SEED}")
    rng = random.Random(f"{SEED} {request.node.name}")
    with keepers(servers, tmp_path) as running:
        await history(History(tmp_path, running, running[:killed], rng), servers)


async def history(it: History, replicas: int) -> None:
    store = Store("work", "work.>", replicas=replicas)
    bus = Bus(cluster=Cluster(f"{it.servers[0].url}/shop", stores=[store], wait=60.0), limits=Limits(**SILENCE))
    try:
        async with bus:
            for _ in range(WORKERS):
                await it.start_worker()
            async with anyio.create_task_group() as reading:
                reading.start_soon(it.keep_reading)
                async with anyio.create_task_group() as group:
                    for first in range(IN_FLIGHT):
                        group.start_soon(it.publish, bus, first)
                    for kill in range(1, KILLS + 1):
                        await it.soon(lambda: len(it.stored) >= kill * PUBLICATIONS // (KILLS + 1), bus)  # noqa: B023  # at once
                        await it.replace(it.kill_one())
                assert it.stored == set(range(PUBLICATIONS))
                good = {number for number in it.stored if number % POISON != POISON - 1}
                await it.soon(lambda: it.done.keys() >= good, bus)
                reading.cancel_scope.cancel()
            poison = sorted(it.stored - good)

            letters: list[int] = []

            async def dead() -> bool:
                with suppress(DeadlineExceeded):  # servers that were killed may still look for the leader of this store
                    letters[:] = await dead_letters(bus)
                return len(letters) >= len(poison)

            await eventually(dead)
            state = (await jetstream(bus, SOON).ask("STREAM.INFO.shop-work"))["state"]
            it.read()
            print(f"{it.killed} killed; {len(it.taken) - len(it.stored)} redelivered, {_twice(it.done)} handled twice")
            assert letters == poison
            assert state["messages"] == PUBLICATIONS
            assert it.done.keys() == good
            # A server that is killed may have forgotten how often it had given something out.
            assert max(it.taken.values()) <= 1 + it.killed["server"], "no attempt was given out twice"
    finally:
        for worker in it.workers:
            worker.stop()


def _twice(done: Counter[int]) -> int:
    return sum(count - 1 for count in done.values())
