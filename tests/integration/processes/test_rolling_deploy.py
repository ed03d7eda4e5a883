"""Workers replaced one after the other under load, as a deployment does it: no request fails, and all who stay hear all once.

That holds for clients too, whose connections end and who come back to other workers: what they would miss is handed over.
"""

import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import anyio
from attrs import define, field

from polybus import Bus, Disconnected, Message, Unavailable, connect
from tests.integration.processes.processes import BOUND, eventually
from tests.integration.processes.test_workers import ANY_PORT, SOON, Crew, crew, server_is_there  # noqa: F401  # for all tests here

ASKERS = 8
PUBLISHERS = 4
HEARERS = 12


@define(eq=False)
class Load:
    """Clients that ask and have published all the time, and what others have heard."""

    good: int = 0
    by: Counter[int] = field(factory=Counter)
    published: dict[tuple[int, int], int] = field(factory=dict)
    """The worker that has published each."""
    refused: int = 0
    unread: int = 0
    stop: bool = False

    async def ask(self, bus: Bus) -> None:
        """A node asks the others of its cluster: nothing may fail."""
        while not self.stop:
            self.by[await bus.request("pid", timeout=BOUND)] += 1
            self.good += 1
            await anyio.sleep(0.01)

    async def ask_again(self, bus: Bus) -> None:
        """A client asks again what its server has refused, for it drains, or has not read: nothing else may happen."""
        while not self.stop:
            self.by[await self.again(bus, "pid", None)] += 1
            self.good += 1
            await anyio.sleep(0.01)

    async def again(self, bus: Bus, subject: str, body: Any) -> Any:
        while True:
            try:
                return await bus.request(subject, body, timeout=BOUND)
            except Unavailable:
                self.refused += 1
            except Disconnected as error:
                assert not error.sent, error
                self.unread += 1
            await anyio.sleep(0.01)

    async def publish_one(self, bus: Bus, subject: str, publisher: int, number: int) -> None:
        query = {"subject": subject, "body": [publisher, number]}
        self.published[publisher, number] = await self.again(bus, "publish", query)

    async def publish(self, bus: Bus, publisher: int) -> None:
        number = 0
        while not self.stop:
            await self.publish_one(bus, "news.today", publisher, number)
            number += 1
            await anyio.sleep(0.01)

    def in_order(self, got: list[tuple[int, int]]) -> bool:
        """True if what each client had each worker publish has come in order: a worker has the next one when one is out."""
        by: dict[tuple[int, int], list[int]] = {}
        for publisher, number in got:
            by.setdefault((publisher, self.published[publisher, number]), []).append(number)
        return all(numbers == sorted(numbers) for numbers in by.values())


class Heard:
    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.got: list[tuple[int, int]] = []
        bus.on("news.*", queue=100_000)(self.hear)

    async def hear(self, message: Message) -> None:
        publisher, number = message.body
        self.got.append((publisher, number))


async def replaced(found: Crew, load: Load) -> None:
    """Replace each worker, as soon as the successor of the last one is ready."""
    for number in sorted(found.workers):
        pid = found.workers[number]
        os.kill(pid, signal.SIGTERM)
        await found.ready_without(pid)
        good = load.good
        await eventually(lambda: load.good > good + 50)  # noqa: B023


async def test_workers_are_replaced_under_load_and_no_request_fails_and_nothing_comes_twice() -> None:
    load = Load()
    async with crew(ANY_PORT, workers=3) as found, AsyncExitStack() as stack:
        url, before = found.process.url, {*found.workers.values()}
        askers = [await stack.enter_async_context(connect(url, backoff=SOON)) for _ in range(ASKERS)]
        publishers = [await stack.enter_async_context(connect(url, backoff=SOON)) for _ in range(PUBLISHERS)]
        engine = await askers[0].request("cluster", timeout=BOUND)
        node = Heard(await stack.enter_async_context(Bus(cluster=engine)))
        clients = [Heard(Bus()) for _ in range(HEARERS)]
        for client in clients:
            await stack.enter_async_context(connect(url, bus=client.bus, backoff=SOON))
            async with client.bus.subscribe("barrier"):
                pass
        async with anyio.create_task_group() as group:
            group.start_soon(load.ask, node.bus)
            for bus in askers:
                group.start_soon(load.ask_again, bus)
            for publisher, bus in enumerate(publishers):
                group.start_soon(load.publish, bus, publisher)
            await replaced(found, load)
            await eventually(lambda: {*found.workers.values()} <= load.by.keys())
            load.stop = True
        assert not before & {*found.workers.values()}
        last = [(PUBLISHERS, number) for number in range(20)]
        for publisher, number in last:
            await load.publish_one(publishers[0], "news.last", publisher, number)
        print(f"{load.good} requests, {load.refused} refused and {load.unread} not read, which were asked again")
        print(f"{len(load.published)} publications, {sum(bus.stats().reconnects for bus in askers)} askers came back")
        # Whoever stays, on one connection or on several, hears everything once: from each worker in order, the last ones last.
        for hearer in (node, *clients):
            await eventually(lambda: {*last} <= {*hearer.got})  # noqa: B023
            assert Counter(hearer.got) == Counter([*load.published])
            assert load.in_order(hearer.got)
        assert all(client.bus.stats().reconnects > 0 for client in clients)
