"""A ring of servers and gateways whose gateways are killed, and a record of what came where.

Servers that relay, over real sockets, gateways between them in processes of their own, and one publisher and one subscriber on
each server. Servers publish as well. Which gateway is killed when is chosen by a seed and counted in publications, not in
seconds. `tests/simulation` breaks the links of such rings, in virtual time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from polybus import Backoff, Bus, BusError, Message, Route, connect
from tests.support import eventually

from .processes import Process

__all__ = ["BOTH_WAYS", "SOON", "History", "Ring", "ring"]

SOON = Backoff(initial=0.01, maximum=0.05)
BOTH_WAYS = [Route("ring.>", "ring.{rest}"), Route("ring.>", "ring.{rest}", reverse=True)]


class History:
    """What came to one place, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[tuple[str, str, int]] = []

    def take(self, subject: str, body: Any) -> None:
        self.heard.append((subject, body[0], body[1]))

    def duplicates(self) -> int:
        """Publications that came again."""
        return sum(times - 1 for times in Counter(self.heard).values())

    def reorderings(self) -> int:
        """Publications that came after a later one of their publisher on the same subject."""
        wrong, last = 0, dict[tuple[str, str], int]()
        for subject, publisher, number in self.heard:
            before = last.get((subject, publisher), -1)
            wrong += number < before
            last[subject, publisher] = max(number, before)
        return wrong


class Ring:
    """The servers, their gateways and histories."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.servers: list[Bus] = []
        self.clients: list[Bus] = []
        """One on each server, that publishes."""
        self.gateways: list[tuple[Process, list[str]]] = []
        """Those that live, with the URLs that they join."""
        self.started: list[Process] = []
        self.histories: list[History] = []
        self._number = 0

    @property
    def publishers(self) -> list[Bus]:
        """All that publish: clients, and the servers themselves."""
        return [*self.clients, *self.servers]

    async def publish(self, rounds: int, subjects: int = 1) -> None:
        """So many publications of each publisher."""
        for _ in range(rounds):
            self._number += 1
            for which, publisher in enumerate(self.publishers):
                with suppress(BusError):
                    publisher.publish_nowait(f"ring.{which}.{self._number % subjects}", [f"p{which}", self._number])
            for _ in range(10):  # so that what is published travels while the next is
                await anyio.lowlevel.checkpoint()

    async def kill(self) -> None:
        """A gateway is killed while publications pass through it, and another one takes its place."""
        which = self.random.randrange(len(self.gateways))
        process, between = self.gateways[which]
        await self.publish(self.random.randint(1, 20), subjects=3)
        process.kill()
        await self.publish(self.random.randint(1, 20), subjects=3)
        self.gateways[which] = await self.gateway(between)

    async def gateway(self, between: list[str]) -> tuple[Process, list[str]]:
        """A gateway, when it is there."""
        process = await anyio.to_thread.run_sync(Process, "ring_gateway", {"between": between})
        self.started.append(process)
        await anyio.to_thread.run_sync(process.introduce)
        return process, between

    async def drain(self) -> None:
        """Wait until what is published now comes to everybody: what is on its way before that has come then."""
        for _ in range(50):
            self._number += 1
            for which, publisher in enumerate(self.publishers):
                await publisher.publish(f"ring.{which}.end", [f"p{which}", self._number])
            wanted = {(f"p{which}", self._number) for which in range(len(self.publishers))}
            with anyio.move_on_after(2.0):  # one may be lost on a connection of which nobody knows yet that it is gone
                await eventually(partial(self._have, wanted))
                return
        raise AssertionError("publications do not come to everybody any more")

    def end(self) -> None:
        """End the processes that were started."""
        for process in self.started:
            process.stop()

    def _have(self, wanted: set[tuple[str, int]]) -> bool:
        return all(wanted <= {(publisher, number) for _, publisher, number in it.heard[-50:]} for it in self.histories)


@asynccontextmanager
async def ring(wires: tuple[str, ...], seed: int) -> AsyncIterator[Ring]:
    """A running ring with a server on each of the wires."""
    it = Ring(seed)
    async with AsyncExitStack() as stack:
        stack.callback(it.end)
        enter = stack.enter_async_context
        urls: list[str] = []
        for which, wire in enumerate(wires):
            server, history = Bus(), History(f"server {which}")
            server.relay("ring.>")
            server.on("ring.>", inline=True, queue=100_000)(_noting(history))
            urls.append((await enter(server.serve(f"{wire}://127.0.0.1:0"))).url)
            it.servers.append(server)
            it.histories.append(history)
        for at, url in enumerate(urls):
            it.gateways.append(await it.gateway([url, urls[(at + 1) % len(urls)]]))
        for which, url in enumerate(urls):
            publisher, subscriber, history = Bus(), Bus(), History(f"client of {which}")
            await enter(connect(url, bus=publisher, backoff=SOON))
            it.clients.append(publisher)
            subscriber.on("ring.>", inline=True, queue=100_000)(_noting(history))
            await enter(connect(url, bus=subscriber, backoff=SOON))
            it.histories.append(history)
        yield it


def _noting(history: History) -> Callable[..., None]:
    def note(body: Any, message: Message) -> None:
        history.take(str(message.subject), body)

    return note
