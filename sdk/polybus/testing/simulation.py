"""Simulations: buses, links and brokers in virtual time, with faults that a seed repeats.

A bus takes its time from its event loop, and so do its links, timers, pauses and deadlines; therefore the clock that is handed
in here is a loop (`virtual_time.VirtualLoop`). What does not come from there (ids, jitter, the wall clock) comes from
`Sources`, which a run sets. It is asyncio's, since trio shuffles its tasks on purpose.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import anyio
from attrs import field, frozen
from attrs.validators import ge

from .._util.sources import Sources, sources
from ..plugins import Connector
from ._simulated_network import Network, SimulatedConnection, SimulatedConnector
from .virtual_time import VirtualLoop

__all__ = ["FaultRates", "Process", "SimulatedConnection", "World", "simulated"]

P = ParamSpec("P")
T = TypeVar("T")

_EPOCH: Final = 1_700_000_000
"""Seconds since 1970 at which every simulation begins."""
_SEED: Final = "POLYBUS_SEED"

_not_negative = ge(0.0)


@frozen(kw_only=True)
class FaultRates:
    """Rates of the faults of a simulation: so many in a second of virtual time, in the whole world.

    Frames of one connection never overtake each other, as on a network; those of different connections do.

    Args:
        delay: Seconds that a frame takes at most; how many is drawn for each.
        cut: Connections that are cut. Of a third of them the client learns it later, of a third the server, which then has
            a second connection of that client meanwhile.
        pause: Connections and peers that stand still for a while: nothing comes or leaves.
        restart: Processes (`World.process`) that are killed, and start again later.
        longest: Seconds that a pause, a late notice or the absence of a process takes at most.

    Raises:
        ValueError: A negative number.
    """

    delay: float = field(default=0.0, validator=_not_negative)
    cut: float = field(default=0.0, validator=_not_negative)
    pause: float = field(default=0.0, validator=_not_negative)
    restart: float = field(default=0.0, validator=_not_negative)
    longest: float = field(default=2.0, validator=_not_negative)


class World:
    """The world of a scenario, given by `simulated`: virtual time, a network in memory, and its faults.

    Attributes:
        seed: Of this run.
        random: For what the scenario itself decides by chance.
    """

    def __init__(self, seed: int, faults: FaultRates, loop: VirtualLoop) -> None:
        self.seed: int = seed
        self.random: random.Random = random.Random(f"{seed}/scenario")
        self._loop = loop
        self._faults = faults
        self._network = Network(seed, faults.delay, loop)
        self._chance = random.Random(f"{seed}/faults")
        self._processes: list[Process] = []
        self._calm = anyio.Event()
        self._breaking: asyncio.Task[None] | None = None
        if faults.cut or faults.pause or faults.restart:
            self._breaking = loop.create_task(self._break(), name="faults of the simulation")

    @property
    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._loop.time()

    @property
    def connections(self) -> list[SimulatedConnection]:
        """Connections that are up, as the sides see it that have dialled."""
        return list(self._network.connections)

    @property
    def trace(self) -> str:
        """A hash of all frames, faults and notes until now, with their times: the same for the same seed."""
        return self._network.trace

    @property
    def recent(self) -> list[str]:
        """The last faults and notes."""
        return list(self._network.recent)

    def to(self, url: str, label: str = "") -> Connector:
        """Address in memory for ``connect`` and ``bus.connect``, dialled through the network of this simulation:
        ``connect(world.to("memory://orders"), protocol="ubre")``. A server or a broker serves that address as usual.

        Args:
            url: Without the protocol.
            label: Names the connections in the log, and those of one peer for `pause`; the URL by default.

        Raises:
            ValueError: The URL names nothing.
        """
        return SimulatedConnector(self._network, url, label or url)

    def note(self, *what: object) -> None:
        """Write something into the log; it becomes part of the trace."""
        self._network.note(*what)

    def process(self, name: str, start: Callable[[], AbstractAsyncContextManager[Any]]) -> Process:
        """A part of the world that can be killed and restarted, as an async context manager.

        Args:
            name: For the log.
            start: Makes what runs in it, anew each time: a broker, or buses that serve and are connected.
        """
        return Process(self, name, start)

    def pause(self, label: str, seconds: float) -> None:
        """Let a peer stand still: all connections with this label are paused."""
        for connection in self._network.connections:
            if connection.label == label:
                connection.pause(seconds)

    async def calm(self) -> None:
        """End the faults: no more happen, pauses are over, what was killed has been restarted. Frames go on to take time."""
        self._calm.set()
        if self._breaking is not None:
            await self._breaking
        self._network.calm()

    # -- faults ----------------------------------------------------------------------------------------------------------

    async def _break(self) -> None:
        rates, chance = self._faults, self._chance
        acts = (self._cut_one, self._pause_one, self._restart_one)
        weights = (rates.cut, rates.pause, rates.restart)
        while not self._calm.is_set():
            with anyio.move_on_after(chance.expovariate(sum(weights))):
                await self._calm.wait()
                return
            await chance.choices(acts, weights)[0]()

    async def _cut_one(self) -> None:
        if self._network.connections:
            late = self._chance.uniform(0.0, self._faults.longest)
            ours, theirs = self._chance.choice(((0.0, 0.0), (late, 0.0), (0.0, late)))
            self._chance.choice(self._network.connections).cut(ours=ours, theirs=theirs)

    async def _pause_one(self) -> None:
        if self._network.connections:
            seconds, one = self._chance.uniform(0.0, self._faults.longest), self._chance.choice(self._network.connections)
            if self._chance.random() < 0.5:
                one.pause(seconds)
            else:
                self.pause(one.label, seconds)

    async def _restart_one(self) -> None:
        if self._processes:
            process = self._chance.choice(self._processes)
            await process.kill()
            with anyio.move_on_after(self._chance.uniform(0.0, self._faults.longest)):
                await self._calm.wait()
            await process.start()


class _Killed(Exception):
    """Out of the block of a process: it does not take its leave."""


class Process:
    """A part of a simulation that can be killed and restarted: ``async with world.process("orders", start) as process``."""

    def __init__(self, world: World, name: str, start: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.name: str = name
        self._world = world
        self._start = start
        self._running: AbstractAsyncContextManager[Any] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        await self.start()
        self._world._processes.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world._processes.remove(self)
        self._left = True
        running, self._running = self._running, None
        if running is not None:
            await running.__aexit__(None, None, None)

    async def start(self) -> None:
        """Start it, where it does not run."""
        if self._running is None and not self._left:
            self._world.note(self.name, "starts")
            self._running = running = self._start()
            await running.__aenter__()

    async def kill(self) -> None:
        """End it without a goodbye, where it runs."""
        running, self._running = self._running, None
        if running is not None:
            self._world.note(self.name, "is killed")
            with suppress(_Killed):
                await running.__aexit__(_Killed, _Killed(), None)


def simulated(
    *,
    seeds: int | Iterable[int] = 1,
    faults: FaultRates = FaultRates(),
    limit: float = 3600.0,  # immutable
) -> Callable[[Callable[Concatenate[World, P], Awaitable[T]]], Callable[P, T]]:
    """Make a plain function of an async one: it runs in virtual time, once for each seed, and gets a `World`.

    ``@simulated(seeds=100, faults=FaultRates(delay=0.05, cut=0.5))`` before ``async def test_orders(world): ...`` is a test for
    any runner. Nothing is waited for: an hour of pauses takes as long as what is done in it. A run is a function of its seed:
    the same frames at the same times, in this process or another one. It holds for what takes part in memory: buses, links,
    brokers, bridges, tunnels. Threads, processes and sockets keep their own time.

    When a run fails, the exception carries a note with the seed, the last events, and the line that replays it:
    the environment variable ``POLYBUS_SEED`` takes the place of `seeds`.

    Args:
        seeds: The seeds, or how many from 0 on.
        faults: What goes wrong, from the beginning until `World.calm`; nothing by default.
        limit: Virtual seconds that a run may take.

    Returns:
        What the scenario returns for the last seed.

    Raises:
        ValueError: There is no seed.
        AssertionError: (when it is called) A task or a timer is left at the end.
        RuntimeError: (when it is called) Every task waits, and nothing will ever happen again; or an event loop runs here.
        TimeoutError: (when it is called) A run takes longer than `limit`.
    """
    all_seeds = tuple(range(seeds) if isinstance(seeds, int) else seeds)
    if not all_seeds:
        raise ValueError("simulated(seeds=...) without a seed would run nothing")

    def decorate(scenario: Callable[Concatenate[World, P], Awaitable[T]]) -> Callable[P, T]:
        @wraps(scenario)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            replayed = os.environ.get(_SEED)
            chosen = (int(replayed),) if replayed else all_seeds
            runs = (_run(seed, faults, limit, lambda world: scenario(world, *args, **kwargs), scenario) for seed in chosen)
            (outcome,) = deque(runs, maxlen=1)
            return outcome

        # A test runner sees neither a coroutine function nor a parameter that it would have to fill.
        del run.__wrapped__
        given = signature(scenario)
        run.__signature__ = given.replace(parameters=list(given.parameters.values())[1:])  # type: ignore[attr-defined]
        return run

    return decorate


def _run(seed: int, faults: FaultRates, limit: float, scenario: Callable[[World], Awaitable[T]], origin: Any) -> T:
    worlds: list[World] = []

    async def main() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        ids = random.Random(f"{seed}/ids")
        sources.set(
            Sources(
                urandom=ids.randbytes,
                rng=ids,
                monotonic=loop.time,
                wall_clock_ns=lambda: int((_EPOCH + loop.time()) * 1e9),
            )
        )
        world = World(seed, faults, loop)
        worlds.append(world)
        outcomes: list[T] = []
        with anyio.move_on_after(limit) as scope:
            outcomes.append(await scenario(world))
            await world.calm()
            await anyio.sleep(2 * faults.delay)  # a goodbye may be on its way, and what follows it
        if scope.cancelled_caught:
            text = "the simulation has not ended after {:g} s of virtual time: simulated(limit=...) gives it more"
            raise TimeoutError(text.format(limit))
        await _check_nothing_left(loop)
        return outcomes[0]

    try:
        return anyio.run(main, backend="asyncio", backend_options={"loop_factory": VirtualLoop})
    except BaseException as error:
        for world in worlds:
            error.add_note(_how_to_replay(world, origin))
        raise


async def _check_nothing_left(loop: VirtualLoop) -> None:
    left = await loop.settled()
    tasks = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    assert not tasks, f"tasks are left when the simulation ends: {sorted(map(repr, tasks))}"
    assert left is None, f"a timer is left when the simulation ends, due in {left:g} s"


def _how_to_replay(world: World, origin: Any) -> str:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    command = (
        f"python -m pytest '{test}'" if test else f"python ...  # whatever calls {origin.__module__}.{origin.__qualname__}"
    )
    lines = (f"    {line}" for line in world.recent)
    return "\n".join(
        (
            f"simulated: seed {world.seed} failed after {world.time:g} s of virtual time; the last events:",
            *lines,
            f"Replay it with: {_SEED}={world.seed} {command}",
        )
    )
