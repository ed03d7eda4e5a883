"""A world of five buses, three protocols, a broker and a ring of bridges, with breaking connections and dying processes.

```
        csb            broker             csb
   .------------------>(    )<------------------.
   |                    ubre                    |
 client -----------------------------------> east <--bridge--> gate of east
   |                                           ^                   | jrep
   |         jrep                         ubre |                   v
   '-------------------------------> west <----|--------------------
                                       ^-bridge-> gate of west
```
"""

import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio

from polybus import Backoff, Bus, BusError, Message, Peer, Route, bridge
from polybus.broker import Broker
from polybus.protocols import Csb
from polybus.testing import FaultRates, Process, World, simulated

__all__ = ["FAULTS", "Claims", "disturbed"]

FAULTS = FaultRates(delay=0.05, cut=1.0, pause=0.6, restart=0.3, longest=1.5)
REQUESTS = 10
PUBLICATIONS = 4
SOON = Backoff(initial=0.02, maximum=0.3)
HEALED = 120.0
"""Virtual seconds within which all must work again when nothing breaks any more."""
LATE = 0.02
"""Seconds by which a deadline may fire late: two times the precision of a bus."""


class Claims:
    """What is promised of requests and publications, and what has happened to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: Counter[int] = Counter()
        """Of the handler, by request."""
        self.heard: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
        """Publications: subject, publisher, number; by subscriber, each of its lives apart."""
        self.direct: set[int] = set()
        """Requests over the link to the very bus that answers: others may overtake each other on different ways."""
        self.began: dict[tuple[str, int], list[int]] = defaultdict(list)
        """Those of them whose handlers began, in order, by connection."""
        self.peers: list[Any] = []
        """Kept, so that no other gets the `id()` of one of them."""
        self.broken: list[str] = []
        self.answered = 0
        self.trace = ""
        self.refused: Counter[str] = Counter()
        self.asked = 0
        self.lives: dict[Bus, str] = {}
        """Of all buses that there have been, the name and a number."""
        self.runtimes: list[tuple[str, Any]] = []
        self._lives: Counter[str] = Counter()

    def bus(self, name: str) -> Bus:
        """Make a bus that echoes requests and notes publications; each restart has a new one."""
        self._lives[name] += 1
        life = f"{name} {self._lives[name]}"
        bus = Bus()

        @bus.handle(f"{name}.echo")
        async def echo(number: int, message: Message) -> int:
            self.runs[number] += 1
            if number in self.direct:
                self.began[life, id(message.peer)].append(number)
                self.peers.append(message.peer)
            await anyio.sleep(self.world.random.uniform(0.0, 0.2))
            return number

        @bus.on("ring.>", inline=True, queue=10_000)
        def hear(body: list[Any], message: Message) -> None:
            self.heard[life].append((str(message.subject), body[0], body[1]))

        bus.relay("ring.>")
        self.lives[bus] = life
        return bus

    async def ask(self, peer: Peer, subject: str, timeout: float, *, direct: bool = False) -> bool:
        """Ask, and look at how it ends."""
        self.asked += 1
        number = self.asked
        if direct:
            self.direct.add(number)
        began = self.world.time
        try:
            with anyio.fail_after(timeout + LATE):
                answer = await peer.request(subject, number, timeout=timeout, returns=int)
        except BusError as error:
            self.refused[type(error).__name__] += 1
            self.world.note(f"request {number} to {subject}: {error!r}")
            return False
        except TimeoutError:
            self.broken.append(f"request {number} has not ended {self.world.time - began:g} s after it began")
            return False
        if answer != number:
            self.broken.append(f"request {number} got the answer of {answer}")
        self.answered += 1
        return True

    async def ask_again(self, peer: Peer, subject: str) -> None:
        answered = False
        while not answered:
            await anyio.sleep(0.1)
            answered = await self.ask(peer, subject, 2.0)

    async def publish(self, bus: Bus, number: int) -> None:
        publisher = self.lives[bus]
        with suppress(BusError):
            await bus.publish(f"ring.{publisher.partition(' ')[0]}.{number % 3}", [publisher, number], timeout=1.0)

    def check(self) -> None:
        assert not self.broken, "; ".join(self.broken)
        again = {number: runs for number, runs in self.runs.items() if runs > 1}
        assert not again, f"requests whose handler ran more than once: {again}"
        for life, heard in self.heard.items():
            twice = [each for each, times in Counter(heard).items() if times > 1]
            assert not twice, f"{life} got publications twice: {twice}"
            last: dict[tuple[str, str], int] = {}
            for subject, publisher, number in heard:
                before = last.get((subject, publisher), -1)
                assert number > before, f"{life} got {number} of {publisher} on {subject} after {before}"
                last[subject, publisher] = number
        for (life, _), numbers in self.began.items():
            assert numbers == sorted(numbers), f"{life} began requests of one connection in the order {numbers}"

    def enters(self, *buses: Bus) -> None:
        """Remember what these buses run in, to look at it when they have been left."""
        self.runtimes += [(self.lives[bus], bus._services.running) for bus in buses]

    def check_quiet(self, buses: list[Bus]) -> None:
        """Look whether anything waits in buses that have nothing to do."""
        for bus in buses:
            stats = bus.stats()
            counts = (stats.pending, stats.running, stats.waiting, stats.queued, stats.unread)
            assert counts == (0, 0, 0, 0, 0), f"{self.lives[bus]} keeps {stats}"
            watched = bus._services.running.deadlines.watched
            assert not watched, f"{self.lives[bus]} watches deadlines of {list(watched)}"

    def check_left(self) -> None:
        """Look whether anything is kept for buses that have been left."""
        for life, runtime in self.runtimes:
            assert runtime.buffered == 0, f"{life} keeps {runtime.buffered} bytes"
            assert (runtime.running, runtime.answering, runtime.stopping) == (0, 0, 0), life
            assert not runtime.links, f"{life} has {list(runtime.links)}"
            for address in runtime.addresses.values():
                kept = (address.held, address.links, address.running)
                assert kept == (0, 0, 0), f"{life} keeps bytes, links, places of {address.network}: {kept}"


def _town(claims: Claims, name: str, url: str, dials: str, protocol: str, live: dict[str, list[Bus]]) -> Any:
    """Make a server and its gate to the other one: a process that can be killed."""
    other = "west" if name == "east" else "east"
    ways = [Route(f"{other}.>", f"{other}.{{rest}}"), *(Route("ring.>", "ring.{rest}", reverse=back) for back in (False, True))]

    @asynccontextmanager
    async def start() -> AsyncIterator[None]:
        server, gate = claims.bus(name), claims.bus(f"gate of {name}")
        world = claims.world
        async with (
            server.serve(url),
            bridge(server, gate, routes=ways),
            gate.connect(world.to(dials, f"gate of {name}"), protocol=protocol, backoff=SOON, wait=math.inf),
        ):
            live[name] = [server, gate]
            claims.enters(server, gate)
            try:
                if name == "east":
                    behind = Csb(side="broker-server")
                    async with server.connect(world.to("memory://servers", name), protocol=behind, backoff=SOON, wait=math.inf):
                        yield
                else:
                    yield
            finally:
                del live[name]

    return start


@asynccontextmanager
async def _both(*processes: Process) -> AsyncIterator[None]:
    """Start processes together, as each waits for the others."""
    async with AsyncExitStack() as stack:
        async with anyio.create_task_group() as group:
            for process in processes:
                group.start_soon(stack.enter_async_context, process)
        yield


def _broker() -> AbstractAsyncContextManager[Any]:
    return Broker("csb+memory://clients", "csb+memory://servers")


async def live_in(world: World) -> Claims:
    """Ask and tell while things break; then look whether all promises are kept, and everything works again."""
    claims = Claims(world)
    live: dict[str, list[Bus]] = {}
    east = _town(claims, "east", "ubre+memory://east", "memory://west", "jrep", live)
    west = _town(claims, "west", "jrep+memory://west", "memory://east", "ubre", live)
    client = claims.bus("client")

    def to(url: str, protocol: str) -> Any:
        return client.connect(world.to(url, "client"), protocol=protocol, backoff=SOON, wait=math.inf)

    async with (
        world.process("broker", _broker),
        _both(world.process("east", east), world.process("west", west)),
        to("memory://clients", "csb") as by_broker,
        to("memory://east", "ubre") as at_east,
        to("memory://west", "jrep") as at_west,
    ):
        live["client"] = [client]
        claims.enters(client)
        ways = [
            (by_broker, "east.echo", True), (by_broker, "west.echo", False), (at_east, "east.echo", True),
            (at_east, "west.echo", False), (at_west, "west.echo", True), (at_west, "east.echo", False),
        ]  # fmt: skip
        async with anyio.create_task_group() as group:
            acts = ["ask"] * REQUESTS + ["publish"] * PUBLICATIONS
            world.random.shuffle(acts)
            for number, act in enumerate(acts):
                if act == "ask":
                    peer, subject, direct = world.random.choice(ways)
                    ask = partial(claims.ask, peer, subject, world.random.uniform(0.05, 2.0), direct=direct)
                    group.start_soon(ask)
                else:
                    bus = world.random.choice([bus for buses in live.values() for bus in buses])
                    group.start_soon(claims.publish, bus, number)
                await anyio.sleep(world.random.expovariate(8.0))
        await world.calm()
        claims.check()
        with anyio.fail_after(HEALED):
            for peer, subject, _ in ways:
                await claims.ask_again(peer, subject)
            await _told(claims, [buses[0] for buses in live.values()], [bus for buses in live.values() for bus in buses])
        claims.check()
        await anyio.sleep(2.5)  # deadlines are forgotten when they have passed
        claims.check_quiet([bus for buses in live.values() for bus in buses])
    claims.check_left()
    claims.trace = world.trace
    return claims


async def _told(claims: Claims, publishers: list[Bus], buses: list[Bus]) -> None:
    """Publish until one publication of each publisher has come to each bus."""
    number = 1_000
    missing = buses
    while missing:
        number += 3
        for bus in publishers:
            await claims.publish(bus, number)
        await anyio.sleep(1.0)
        lives = [claims.lives[bus] for bus in publishers]
        wanted = {(f"ring.{life.partition(' ')[0]}.{number % 3}", life, number) for life in lives}
        missing = [bus for bus in buses if not wanted <= set(claims.heard[claims.lives[bus]])]


def disturbed(seeds: Any) -> Any:
    """Make a function that lives in the world once for each seed."""
    return simulated(seeds=seeds, faults=FAULTS, limit=600)(live_in)
