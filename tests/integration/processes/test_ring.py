"""A ring of servers and gateways that are killed: nothing comes twice, nothing comes out of order, and it heals.

Servers that relay, over real sockets, gateways between them in processes of their own, one publisher and one subscriber on each
server; servers publish and hear as well. What is lost while something is broken is not looked at: at most once is what is
promised. `tests/simulation` breaks links and gateways of such rings in virtual time.
"""

import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from attrs import define, field

from polybus import Bus, BusError, Message, connect

from .processes import Process, eventually
from .ring_gateway import SOON

KILLS = int(os.environ.get("POLYBUS_RING_FAULTS", "8"))
"""POLYBUS_RING_FAULTS=50 is for those who have the time."""
WIRES = ("ubre+tcp", "csb+ws", "jrep+tcp")


@define
class Ring:
    """Who publishes, the gateways that live, and what came where."""

    urls: list[str] = field(factory=list)
    publishers: list[Bus] = field(factory=list)
    gateways: list[Process] = field(factory=list)
    """Each between the server of its number and the next."""
    started: list[Process] = field(factory=list)
    heard: dict[str, list[tuple[str, int, int]]] = field(factory=dict)
    """By place: subject, publisher and number."""
    number: int = 0

    def listen(self, bus: Bus, place: str) -> None:
        heard = self.heard[place] = []

        @bus.on("ring.>", inline=True, queue=100_000)
        def note(body: Any, message: Message) -> None:
            heard.append((str(message.subject), body[0], body[1]))

    async def start_gateway(self, which: int) -> Process:
        between = [self.urls[which], self.urls[(which + 1) % len(self.urls)]]
        process = await anyio.to_thread.run_sync(Process, "ring_gateway", {"between": between})
        self.started.append(process)
        await anyio.to_thread.run_sync(process.introduce)
        return process

    async def publish(self, rounds: int) -> None:
        """So many publications of each publisher, on three subjects."""
        for _ in range(rounds):
            self.number += 1
            for which, publisher in enumerate(self.publishers):
                with suppress(BusError):
                    publisher.publish_nowait(f"ring.{which}.{self.number % 3}", [which, self.number])
            for _ in range(10):  # so that what is published travels while the next is
                await anyio.lowlevel.checkpoint()

    async def drained(self) -> None:
        """Wait until what is published now comes to everybody: what is on its way before that has come then."""
        for _ in range(50):
            self.number += 1
            for which, publisher in enumerate(self.publishers):
                await publisher.publish(f"ring.{which}.end", [which, self.number])
            wanted = {(f"ring.{which}.end", which, self.number) for which in range(len(self.publishers))}
            with anyio.move_on_after(2.0):  # one may be lost on a connection of which nobody knows yet that it is gone
                await eventually(partial(self._have_come, wanted))
                return
        raise AssertionError("publications do not come to everybody any more")

    def end(self) -> None:
        for gateway in self.started:
            gateway.stop()

    def _have_come(self, wanted: set[tuple[str, int, int]]) -> bool:
        return all(wanted <= {*heard[-50:]} for heard in self.heard.values())

    async def all_come(self) -> None:
        """While nothing is broken nothing is lost, and what each publisher says comes in its order, whatever the subject."""
        before = {place: len(heard) for place, heard in self.heard.items()}
        await self.publish(50)
        await self.drained()
        for place, heard in self.heard.items():
            for which in range(len(self.publishers)):
                numbers = [number for _, publisher, number in heard[before[place] :] if publisher == which]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                assert len(numbers) >= 51


@asynccontextmanager
async def ring() -> AsyncIterator[Ring]:
    """A running ring with a server on each of the wires."""
    it, servers = Ring(), [Bus() for _ in WIRES]
    async with AsyncExitStack() as stack:
        for server, wire in zip(servers, WIRES, strict=True):
            server.relay("ring.>")
            it.listen(server, f"server {wire}")
            it.urls.append((await stack.enter_async_context(server.serve(f"{wire}://127.0.0.1:0"))).url)
        stack.callback(it.end)
        for which in range(len(WIRES)):
            it.gateways.append(await it.start_gateway(which))
        for url in it.urls:
            subscriber = Bus()
            it.listen(subscriber, f"client of {url}")
            await stack.enter_async_context(connect(url, bus=subscriber, backoff=SOON))
            it.publishers.append(await stack.enter_async_context(connect(url, backoff=SOON)))
        it.publishers += servers
        yield it


async def test_in_a_ring_whose_gateways_are_killed_nothing_comes_twice_or_out_of_order() -> None:
    rng = random.Random(1)
    with anyio.fail_after(300 + 20 * KILLS):
        async with ring() as it:
            await it.drained()
            await it.all_come()
            for _ in range(KILLS):
                which = rng.randrange(len(it.gateways))
                await it.publish(rng.randint(1, 20))
                it.gateways[which].kill()  # while publications pass through it
                await it.publish(rng.randint(1, 20))
                it.gateways[which] = await it.start_gateway(which)
            await it.drained()
            for place, heard in it.heard.items():
                assert len(heard) == len({*heard}), f"{place} has heard something twice"
                for subject, publisher, _ in {(subject, publisher, 0) for subject, publisher, _ in heard}:
                    numbers = [number for *of, number in heard if of == [subject, publisher]]
                    assert numbers == sorted(numbers), f"{place}, {subject}"
            await it.all_come()
