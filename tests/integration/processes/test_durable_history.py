"""What survives `kill -9`: a history of stored publications and of workers that are killed, by a seed that is printed.

Whatever is killed: what `publish` has said to be stored is stored, once; every such publication is handled, and one that no
handler can deal with is a dead letter, and no other. A publication that was handled twice was given out twice.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from attrs import define, field

from polybus import Bus, BusError, Cluster, Limits, Store
from polybus._bus.bus import parts_of
from polybus.cluster.backbone import Backbone
from polybus.cluster.durable.administration import Administration
from polybus.cluster.durable.jetstream import JetStream, JetStreamError
from tests.integration.interop.nats_servers import NatsServer, nats_server
from tests.loops import ASYNCIO, FULL, PARAMS, TRIO
from tests.support import free_port

from .cluster_world import CONFIG, SILENCE
from .processes import Process, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.interop]

PUBLICATIONS = int(os.environ.get("POLYBUS_HISTORY", "50000" if FULL else "3000"))
"""POLYBUS_HISTORY=100000 POLYBUS_HISTORY_KILLS=200 is for those who have the time."""
KILLS = int(os.environ.get("POLYBUS_HISTORY_KILLS", "100" if FULL else "6"))
SEED = int(os.environ.get("POLYBUS_FAULT_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
IN_FLIGHT = 64
WORKERS = 3
POISON = 500
"""Every so many publications one that no handler can deal with."""
_TOLD, _LOG = 50, 20_000
"""Publications, and characters of each log, that are printed of a history that fails."""
RUNS: Sequence[dict[str, Any]] = ({}, {"uvloop": True}, {"backend": "trio"})


@contextmanager
def keepers(count: int, folder: Path) -> Iterator[list[NatsServer]]:
    """A server that keeps, or several that keep together."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(count)]
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
        servers = []
        for number, port in enumerate(ports):
            config = f'{CONFIG}server_name: "s{number}"\njetstream {{ store_dir: "{folder / f"js{number}"}" }}\n'
            if count > 1:
                config += f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
            servers.append(stack.enter_context(nats_server("debian" if count == 1 else "wheel", config)))
        yield servers


@define(eq=False)
class History:
    """What was published, and what the workers have written down."""

    folder: Path
    servers: Sequence[NatsServer]
    victims: Sequence[NatsServer]
    """Servers that are killed, too."""
    rng: random.Random
    stored: set[int] = field(factory=set)
    killed: Counter[str] = field(factory=Counter)
    _ledgers: list[Path] = field(factory=list)
    _read: dict[Path, int] = field(factory=dict)
    taken: Counter[tuple[int, int]] = field(factory=Counter)
    """By number and attempt."""
    done: Counter[int] = field(factory=Counter)
    story: dict[int, list[str]] = field(factory=dict)
    """By number, what which ledger has of it."""

    async def start_worker(self) -> Process:
        ledger = self.folder / f"ledger{len(self._ledgers)}"
        ledger.touch()
        self._ledgers.append(ledger)
        options = {
            "cluster": f"{self.rng.choice(self.servers).url}/shop",
            "ledger": str(ledger),
            "limits": SILENCE,
            "run": self.rng.choice(RUNS),
        }
        return await anyio.to_thread.run_sync(Process, "durable_worker", options)

    async def publish(self, bus: Bus, first: int) -> None:
        for number in range(first, PUBLICATIONS, IN_FLIGHT):
            kind = "poison" if number % POISON == POISON - 1 else "good"
            await bus.publish(f"work.{kind}", number, id=str(number), timeout=120.0)
            self.stored.add(number)

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
                self.story.setdefault(int(number), []).append(f"{ledger.name}: {word}, attempt {attempt}")
                if word == "taken":
                    self.taken[int(number), int(attempt)] += 1
                else:
                    self.done[int(number)] += 1

    def kill_one(self, workers: list[Process]) -> Process | NatsServer:
        candidates: list[Process | NatsServer] = [*workers, *self.victims]
        victim = self.rng.choice(candidates)
        self.killed["worker" if isinstance(victim, Process) else "server"] += 1
        victim.kill()
        return victim


async def tell(it: History, bus: Bus, workers: Sequence[Process], missing: Sequence[int]) -> None:
    """Print what may explain why publications are not handled."""
    print(f"{it.killed} killed; {len(missing)} not handled: {missing[:_TOLD]}")
    for number in missing[:_TOLD]:
        print(f"  {number}: {it.story.get(number, 'never taken')}")
    for word in ("STREAM.INFO.shop-work", "STREAM.INFO.shop-dead", "CONSUMER.INFO.shop-work.ledger"):
        try:
            print(word, await ask(bus).ask(word))
        except (BusError, JetStreamError) as error:
            print(f"{word}: {error!r}")
    try:
        print("dead letters:", await dead_letters(bus))
    except (BusError, JetStreamError) as error:
        print(f"dead letters: {error!r}")
    for worker in workers:
        print(f"worker {worker.pid}, running {worker.running()}, its log:\n{worker.log()[-_LOG:]}")
    for server in it.servers:
        print(f"server {server.port}, its log:\n{server.log()[-_LOG:]}")


def ask(bus: Bus) -> JetStream:
    backbone = parts_of(bus).links.cluster
    assert isinstance(backbone, Backbone)
    return JetStream(backbone)


async def dead_letters(bus: Bus) -> list[int]:
    """The numbers of the publications that are dead letters."""
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
    workers: list[Process] = []
    try:
        async with bus:
            workers += [await it.start_worker() for _ in range(WORKERS)]
            async with anyio.create_task_group() as group:
                for first in range(IN_FLIGHT):
                    group.start_soon(it.publish, bus, first)
                for kill in range(1, KILLS + 1):
                    await eventually(lambda: len(it.stored) >= kill * PUBLICATIONS // (KILLS + 1))  # noqa: B023
                    victim = it.kill_one(workers)
                    if isinstance(victim, Process):
                        workers.remove(victim)
                        victim.stop()
                        workers.append(await it.start_worker())
                    else:
                        await anyio.to_thread.run_sync(victim.start)
            assert it.stored == set(range(PUBLICATIONS))
            good = {number for number in it.stored if number % POISON != POISON - 1}

            def handled() -> bool:
                it.read()
                return it.done.keys() >= good

            try:
                await eventually(handled, 30 + PUBLICATIONS / 1000)
            except AssertionError:
                await tell(it, bus, workers, sorted(good - it.done.keys()))
                raise
            poison = sorted(it.stored - good)

            async def dead() -> bool:
                return len(await dead_letters(bus)) >= len(poison)

            await eventually(dead)
            letters = await dead_letters(bus)
            state = (await ask(bus).ask("STREAM.INFO.shop-work"))["state"]
            it.read()
            print(f"{it.killed} killed; {len(it.taken) - len(it.stored)} redelivered, {_twice(it.done)} handled twice")
            assert letters == poison
            assert state["messages"] == PUBLICATIONS
            assert it.done.keys() == good
            # A server that is killed may have forgotten how often it had given something out.
            assert max(it.taken.values()) <= 1 + it.killed["server"], "no attempt was given out twice"
    finally:
        for worker in workers:
            worker.stop()


def _twice(done: Counter[int]) -> int:
    return sum(count - 1 for count in done.values())
