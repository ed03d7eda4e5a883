"""Rings of hubs and bridges in virtual time with unstable links: each bus receives everything at most once and in order.

Every bus publishes: hubs, both buses of every bridge, and a client of each hub. A publication that returns to its sender
counts as a duplicate, and a subscription with ``local=False`` never gets it.
"""

import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
from attrs import frozen

from polybus import Backoff, Bus, BusError, Message, Route, bridge
from polybus.testing import FaultRates, World, simulated

__all__ = ["FORMS", "Form", "histories"]

SOON = Backoff(initial=0.02, maximum=0.3)
FAULTS = FaultRates(delay=0.05, cut=0.15, pause=0.1, restart=0.02, longest=3.0)
"""In three minutes about 30 cuts, 20 links that stand still, and 4 gateways that are killed."""
PACE = 0.6
"""Seconds between two publications of a bus, on average."""
BOTH_WAYS = [Route("ring.>", "ring.{rest}"), Route("ring.>", "ring.{rest}", reverse=True)]


@frozen
class Form:
    """What is joined with what, and in which words."""

    protocols: tuple[str, ...]
    """Of the hubs."""
    joined: tuple[tuple[int, int], ...]
    """The hubs that a bridge joins."""
    at_hubs: bool = False
    """A bridge begins at a hub itself, and its other bus dials the next one; else a gateway of two buses dials two hubs."""


MIXED = ("ubre", "csb", "jrep", "uprotocol")
RING, SQUARE = ((0, 1), (1, 2), (2, 0)), ((0, 1), (1, 2), (2, 3), (3, 0))
FORMS = {
    **{f"ring of {protocol}": Form((protocol,) * 3, RING) for protocol in MIXED},
    "mixed ring": Form(MIXED, SQUARE),
    "mixed ring with a chord": Form(MIXED, (*SQUARE, (0, 2))),
    "two gateways side by side": Form(MIXED[:2], ((0, 1), (0, 1))),
    "mixed ring of bridges at the hubs": Form(MIXED, SQUARE, at_hubs=True),
    "chain": Form(MIXED, SQUARE[:-1]),
}


class Town:
    """The buses that live, what each has said, and what it has heard."""

    def __init__(self, world: World, group: anyio.abc.TaskGroup, seconds: float) -> None:
        self.world = world
        self._group = group
        """Of all that buses do here: who restarts one does so in another task."""
        self.ends = world.time + seconds
        self.live: dict[str, Bus] = {}
        """By name; one that is restarted has another name."""
        self.heard: dict[str, list[tuple[str, str, int]]] = {}
        """Subject, publisher and number, by who has heard it."""
        self.from_others: dict[str, list[tuple[str, str, int]]] = {}
        """The same, as subscriptions with ``local=False`` have it."""
        self.said = 0
        self.stands = anyio.Event()
        """Set when all bridges have been entered: until then a bus is no part of a ring."""
        self._lives: Counter[str] = Counter()

    @asynccontextmanager
    async def bus(self, name: str, *, relays: bool = False) -> AsyncIterator[Bus]:
        self._lives[name] += 1
        life = f"{name} {self._lives[name]}"
        bus, heard, others = Bus(), self.heard.setdefault(life, []), self.from_others.setdefault(life, [])
        if relays:
            bus.relay("ring.>")

        @bus.on("ring.>", inline=True, queue=100_000)
        def hear(body: list[Any], message: Message) -> None:
            heard.append((str(message.subject), body[0], body[1]))

        async def listen() -> None:
            async for message in foreign:
                others.append((str(message.subject), message.body[0], message.body[1]))

        async with bus, bus.subscribe("ring.>", queue=100_000, local=False) as foreign:
            self._group.start_soon(listen)
            self._group.start_soon(self._speak, bus, life)
            self.live[life] = bus
            try:
                yield bus
            finally:
                del self.live[life]

    async def _speak(self, bus: Bus, life: str) -> None:
        random, number = self.world.random, 0
        await self.stands.wait()
        await anyio.sleep(random.expovariate(1 / PACE))
        while self.world.time < self.ends and life in self.live:
            number += 1
            await self.say(bus, life, number)
            await anyio.sleep(random.expovariate(1 / PACE))

    async def say(self, bus: Bus, life: str, number: int) -> None:
        """Publish to all, or now and then to one peer alone."""
        self.said += 1
        to = self.world.random.choice(bus.peers) if bus.peers and self.world.random.random() < 0.1 else None
        with suppress(BusError):
            await bus.publish(f"ring.{number % 2}", [life, number], timeout=5.0, to=to)

    def check(self) -> tuple[int, int, int]:
        """Count what came twice, after something later, and back to its publisher; what was published locally is no coming."""
        twice = late = back = 0
        for heard in (*self.heard.values(), *self.from_others.values()):
            twice += sum(times - 1 for times in Counter(heard).values())
            last: dict[tuple[str, str], int] = {}
            for subject, publisher, number in heard:
                late += number < last.get((subject, publisher), 0)
                last[subject, publisher] = max(number, last.get((subject, publisher), 0))
        for life, heard in self.from_others.items():
            back += sum(publisher == life for _, publisher, _ in heard)
        return twice, late, back

    async def heals(self) -> None:
        """Publish until each bus has heard one publication of each."""
        number, missing = 1_000_000, set(self.live)
        while missing:
            number += 2
            for life, bus in self.live.items():
                with suppress(BusError):
                    await bus.publish("ring.end", [life, number])
            await anyio.sleep(2.0)
            wanted = {("ring.end", life, number) for life in self.live}
            missing = {life for life in self.live if not wanted <= set(self.heard[life][-10 * len(wanted) :])}


async def _live(world: World, form: Form, seconds: float) -> tuple[Town, tuple[int, int, int]]:
    async with anyio.create_task_group() as group:
        town = Town(world, group, seconds)
        await _live_in(town, form, seconds)
    return town, town.check()


async def _live_in(town: Town, form: Form, seconds: float) -> None:
    world = town.world

    def url(hub: int) -> str:
        return f"memory://hub-{hub}"

    @asynccontextmanager
    async def dialled(bus: Bus, hub: int, label: str) -> AsyncIterator[None]:
        connector = world.to(url(hub), label)
        async with bus.connect(connector, protocol=form.protocols[hub], backoff=SOON, wait=math.inf):
            yield

    @asynccontextmanager
    async def gateway(left: int, right: int) -> AsyncIterator[None]:
        name = f"gate {left}-{right}"
        async with (
            town.bus(f"{name} near") as near,
            town.bus(f"{name} far") as far,
            dialled(near, left, f"{name} near"),
            dialled(far, right, f"{name} far"),
            bridge(near, far, routes=BOTH_WAYS),
        ):
            yield

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        hubs = []
        for at, protocol in enumerate(form.protocols):
            hubs.append(await enter(town.bus(f"hub {at}", relays=True)))
            await enter(hubs[at].serve(f"{protocol}+{url(at)}"))
        for index, (left, right) in enumerate(form.joined):
            if not form.at_hubs:
                await enter(world.process(f"gateway {index}", partial(gateway, left, right)))
            else:
                gate = await enter(town.bus(f"gate {left}-{right}"))
                await enter(dialled(gate, right, f"gate {left}-{right}"))
                await enter(bridge(hubs[left], gate, routes=BOTH_WAYS))
        for at in range(len(hubs)):
            client = await enter(town.bus(f"client {at}"))
            await enter(dialled(client, at, f"client {at}"))
        await anyio.sleep(1.0)
        town.stands.set()
        await anyio.sleep(seconds)
        await world.calm()
        await anyio.sleep(6.0)
        with anyio.fail_after(120):
            await town.heals()


def histories(form: Form, seeds: Any, seconds: float = 180.0) -> Any:
    """Make a function that has one history for each seed, and gives the last town and what was wrong in it.

    Raises:
        AssertionError: (when it is called) Something came twice, out of order or back.
    """

    async def live(world: World) -> Town:
        town, wrong = await _live(world, form, seconds)
        assert wrong == (0, 0, 0), "{} came twice, {} after something later, {} back to their publisher".format(*wrong)
        return town

    return simulated(seeds=seeds, faults=FAULTS, limit=seconds + 400)(live)
