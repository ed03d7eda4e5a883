"""Simulates buses, links and brokers in virtual time, with faults. A seed makes each run reproducible.

Buses read the time from their event loop, so the simulated clock is an event loop (`virtual_time.VirtualLoop`). Each run
replaces the `Sources` of ids, jitter and wall-clock time. Simulations require asyncio, because trio deliberately shuffles its
tasks.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from hashlib import blake2b
from inspect import iscoroutinefunction, signature
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import anyio
from attrs import field, frozen

from ..plugins import Closed, Connector, DialOptions, Receiver, Transport, TransportFeatures
from ..plugins.tools import Sources, check_count, check_given, seconds, shown, sources
from ..transports.memory import Memory
from .faults import not_negative
from .virtual_time import VirtualLoop

__all__ = ["FaultRates", "Process", "SimulatedConnection", "World", "simulated"]

P = ParamSpec("P")
T = TypeVar("T")

_EPOCH: Final = 1_700_000_000
"""Start of every simulation, in seconds since 1970."""
_SEED: Final = "POLYBUS_SEED"

_HIGH: Final = 64 * 1024
"""Number of bytes in transit in one direction above which the sender must pause."""
_SECONDS: Final = struct.Struct("<d")
_KEPT: Final = 30
"""Number of events shown when a run fails."""


class SimulatedConnector:
    """Connects to an in-memory address through a simulated network."""

    reconnects = True

    def __init__(self, world: World, url: str, label: str) -> None:
        self._world = world
        self._inner: Connector = Memory().connector(url)
        self._label = label
        self.url: str = url

    async def connect(self, options: DialOptions) -> Transport:
        return SimulatedConnection(self._world, await self._inner.connect(options), self._label)


class SimulatedConnection:
    """A simulated connection, as listed in `World.connections`."""

    # The connecting link uses it as a `Transport`, and the in-memory transport as a `Receiver`.

    def __init__(self, world: World, inner: Transport, label: str) -> None:
        self.label: str = label
        """The label given to `World.to`."""
        self._world = world
        self._inner = inner
        self._receiver: Receiver | None = None
        self._told = False
        """True if the connecting side has noticed that the connection is down."""
        self._ours = 0.0
        """Seconds until the connecting side notices a cut."""
        self._full = False
        self._peer_full = False
        self.name: str = inner.name
        self.address: str = inner.address
        self.max_frame: int = inner.max_frame
        self.hops: int = inner.hops
        features = TransportFeatures.of(inner)
        self._hold_peer, self._release_peer = features.pause_reading, features.resume_reading
        self._out = _FrameFlow(world, f"{label} >", self._leave)
        self._in = _FrameFlow(world, f"{label} <", self._arrive)

    # -- faults ----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        self._inner.tick(now)

    def cut(self, *, ours: float = 0.0, theirs: float = 0.0) -> None:
        """Cut the connection and drop frames in transit.

        Args:
            ours: Seconds until the connecting side notices.
            theirs: Seconds until the serving side notices. Until then it still receives frames in transit, and it has two
                connections if the peer reconnects. If set, `ours` is ignored.
        """
        self._world.note(self.label, f"cut, which its client learns after {ours:g} s, its server after {theirs:g} s")
        why = Closed(1006, "cut by the simulation")
        if theirs > 0:
            self._in.forget()
            self._end(why)
            self._world._call_later(theirs, partial(self._inner.abort, why))
        else:
            self._ours = ours
            self.abort(why)

    def pause(self, seconds: float) -> None:
        """Hold frames in both directions for this many seconds. Pass 0 to end a pause."""
        self._world.note(self.label, f"paused for {seconds:g} s")
        self._out.hold(seconds)
        self._in.hold(seconds)

    # -- as a transport --------------------------------------------------------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._world._up.append(self)
        self._inner.start(self)

    def send(self, frame: bytes) -> None:
        if self._told:
            return
        if len(frame) > self._inner.max_frame:
            self._inner.send(frame)  # raises
        self._out.carry(frame)
        self._check_room()

    def write_backlog(self) -> int:
        return self._inner.write_backlog() + self._out.bytes

    def close(self, code: int = 1000, reason: str = "") -> None:
        self._out.then(partial(self._inner.close, code, reason))

    def abort(self, why: Closed) -> None:
        self._out.forget()
        self._in.forget()
        self._inner.abort(why)

    # -- as a receiver ---------------------------------------------------------------------------------------------------

    def frames_received(self, frames: Sequence[bytes]) -> None:
        if not self._told:
            for frame in frames:
                self._in.carry(frame)
            if self._in.bytes > _HIGH:
                self._hold_peer()

    def closed(self, why: Closed) -> None:
        self._out.forget()
        if self._ours > 0:
            self._world._call_later(self._ours, partial(self._end, why))
        else:
            self._in.then(partial(self._end, why))

    def pause_writing(self) -> None:
        self._peer_full = True
        self._check_room()

    def resume_writing(self) -> None:
        self._peer_full = False
        self._check_room()

    # -- both ------------------------------------------------------------------------------------------------------------

    def _leave(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._inner.send(frame)
        self._check_room()

    def _arrive(self, frames: list[bytes]) -> None:
        assert self._receiver is not None
        self._receiver.frames_received(frames)
        if self._in.bytes <= _HIGH:
            self._release_peer()

    def _check_room(self) -> None:
        full = self._peer_full or self._out.bytes > _HIGH
        if full is not self._full and not self._told:
            self._full = full
            assert self._receiver is not None
            if full:
                self._receiver.pause_writing()
            else:
                self._receiver.resume_writing()

    def _end(self, why: Closed) -> None:
        if not self._told:
            self._told = True
            self._world._up.remove(self)
            assert self._receiver is not None
            self._receiver.closed(why)


class _FrameFlow:
    def __init__(self, world: World, label: str, deliver: Callable[[list[bytes]], None]) -> None:
        self._world = world
        self._label = label.encode()
        self._deliver = deliver
        self._waiting: deque[tuple[float, bytes | Callable[[], None]]] = deque()
        self._last = 0.0
        self._held_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.bytes = 0

    def carry(self, frame: bytes) -> None:
        self.bytes += len(frame)
        self._add(frame, self._world._latency())

    def then(self, act: Callable[[], None]) -> None:
        self._add(act, 0.0)

    def hold(self, seconds: float) -> None:
        self._held_until = self._world.time + seconds
        self._arm()

    def forget(self) -> None:
        """Drop all frames in transit, so that they do not delay later actions."""
        self._waiting = deque((0.0, what) for _, what in self._waiting if callable(what))
        self.bytes = 0
        self._held_until = 0.0
        self._arm()

    def _add(self, what: bytes | Callable[[], None], delay: float) -> None:
        self._last = max(self._world.time + delay, self._last)
        self._waiting.append((self._last, what))
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = self._world._loop.call_at(max(self._waiting[0][0], self._held_until), self._deliver_due)

    def _deliver_due(self) -> None:
        self._timer = None
        now, waiting = self._world.time, self._waiting
        frames: list[bytes] = []
        while waiting and waiting[0][0] <= now:
            what = waiting[0][1]
            if callable(what):
                if frames:
                    break  # in the next iteration
                waiting.popleft()
                what()
            else:
                waiting.popleft()
                self.bytes -= len(what)
                self._world._carried(self._label, what)
                frames.append(what)
        if frames:
            self._deliver(frames)
        if self._timer is None:
            self._arm()


@frozen(kw_only=True)
class FaultRates:
    """Fault rates in a simulation, per virtual second, for the whole world.

    As on a real network, frames stay in order on a connection, but not across connections.

    Args:
        delay: Maximum delay per frame, in seconds. The actual delay is random.
        cut: Connections to cut. In a third of cases, the client notices late. In another third, the server does, and so has two
            connections from that client.
        pause: Connections and peers to pause in both directions.
        restart: Processes (`World.process`) to kill and restart later.
        longest: Maximum duration of a pause, late notice or process outage, in seconds.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If a number is negative or infinite.
    """

    delay: float = field(default=0.0, validator=not_negative)
    cut: float = field(default=0.0, validator=not_negative)
    pause: float = field(default=0.0, validator=not_negative)
    restart: float = field(default=0.0, validator=not_negative)
    longest: float = field(default=2.0, validator=not_negative)


class World:
    """The world that `simulated` passes to a scenario: virtual time, an in-memory network, and faults.

    Attributes:
        seed: This run's seed.
        random: Random number generator for use by the scenario.
    """

    def __init__(self, seed: int, faults: FaultRates, loop: VirtualLoop) -> None:
        self.seed: int = seed
        self.random: random.Random = random.Random(f"{seed}/scenario")
        self._loop = loop
        self._faults = faults
        self._up: list[SimulatedConnection] = []
        self._delays = random.Random(f"{seed}/latency").random
        self._later: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._log: deque[str] = deque(maxlen=_KEPT)
        self._hash = blake2b(digest_size=16)
        self._chance = random.Random(f"{seed}/faults")
        self._processes: list[Process] = []
        self._calm = anyio.Event()
        self._breaking: asyncio.Task[None] | None = None
        if faults.cut or faults.pause or faults.restart:
            self._breaking = loop.create_task(self._break(), name="faults of the simulation")

    @property
    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._loop.time()

    @property
    def connections(self) -> list[SimulatedConnection]:
        """Connections that are up, as seen from the connecting side."""
        return list(self._up)

    @property
    def trace(self) -> str:
        """Hash of all frames, faults and notes so far, including their times. Equal seeds produce equal hashes."""
        return self._hash.hexdigest()

    @property
    def recent(self) -> list[str]:
        """The most recent faults and notes."""
        return list(self._log)

    def to(self, url: str, label: str = "") -> Connector:
        """Return an in-memory address to connect to through the simulated network: ``connect(world.to("memory://orders"),
        protocol="ubre")``. Servers and brokers serve the address as usual.

        Args:
            url: URL without the protocol.
            label: Name of the connections in the log. Defaults to the URL. `pause` affects all connections with the same label.

        Raises:
            ValueError: If the URL has no address.
        """
        return SimulatedConnector(self, url, label or url)

    def note(self, *what: object) -> None:
        """Write to the log, which is included in the trace."""
        text = f"{self.time:10.4f} {' '.join(map(str, what))}"
        self._log.append(text)
        self._hash.update(text.encode())

    def process(self, name: str, start: Callable[[], AbstractAsyncContextManager[Any]]) -> Process:
        """Create a part of the world that can be killed and restarted, as an async context manager.

        Args:
            name: Name in the log.
            start: Called on each start to create the contents, such as a broker, or buses that connect and serve.
        """
        return Process(self, name, start)

    def pause(self, label: str, seconds: float) -> None:
        """Pause all connections with this label, as if the peer had stopped responding."""
        for connection in self._up:
            if connection.label == label:
                connection.pause(seconds)

    async def calm(self) -> None:
        """Stop all faults. Ends pauses and restarts killed processes. Frames are still delayed."""
        self._calm.set()
        if self._breaking is not None:
            await self._breaking
        for connection in self._up:
            connection.pause(0.0)
        for act, timer in list(self._later.items()):
            timer.cancel()
            del self._later[act]
            act()

    # -- for its connections ---------------------------------------------------------------------------------------------

    def _latency(self) -> float:
        return self._delays() * self._faults.delay

    def _carried(self, label: bytes, frame: bytes) -> None:
        self._hash.update(_SECONDS.pack(self.time) + label + frame)

    def _call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after this many seconds, or when faults stop."""

        def due() -> None:
            if self._later.pop(act, None) is not None:
                act()

        self._later[act] = self._loop.call_later(seconds, due)

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
        if self._up:
            late = self._chance.uniform(0.0, self._faults.longest)
            ours, theirs = self._chance.choice(((0.0, 0.0), (late, 0.0), (0.0, late)))
            self._chance.choice(self._up).cut(ours=ours, theirs=theirs)

    async def _pause_one(self) -> None:
        if self._up:
            seconds, one = self._chance.uniform(0.0, self._faults.longest), self._chance.choice(self._up)
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
    """Raised in a process's block to kill it."""


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
        """Start the process unless it is running."""
        if self._running is None and not self._left:
            self._world.note(self.name, "starts")
            self._running = running = self._start()
            await running.__aenter__()

    async def kill(self) -> None:
        """Kill the process if it is running, without a graceful shutdown."""
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
    """Run an async function in virtual time, once per seed, with a `World` as first argument.

    Decorate ``async def test_orders(world): ...`` with ``@simulated(seeds=100, faults=FaultRates(delay=0.05, cut=0.5))`` to get
    a plain function that any test runner can call. Pauses take no real time. A run depends only on its seed: the same frames
    are always sent at the same times. You can simulate in-memory buses, links, brokers, bridges and tunnels. Threads, processes
    and sockets still run in real time.

    If a run fails, a note on the exception shows the seed, the last events and a command to replay the run. The command sets
    the ``POLYBUS_SEED`` environment variable, which overrides `seeds`.

    Args:
        seeds: The seeds, or the number of seeds, counting from 0.
        faults: Faults from the start until `World.calm`. None by default.
        limit: Maximum length of a run in virtual seconds.

    Returns:
        A function that returns the scenario's result from the last seed.

    Raises:
        TypeError: If an argument has the wrong type, or the decorated function is not a coroutine function.
        ValueError: If there are no seeds, or `limit` is negative. (When called) If ``POLYBUS_SEED`` is not an integer.
        AssertionError: (when called) If tasks or timers are left at the end.
        RuntimeError: (when called) If an event loop is already running. With an infinite `limit`, if every task waits forever.
        TimeoutError: (when called) If a run takes longer than `limit`, for example because every task waits forever.
    """
    if not isinstance(seeds, Iterable):
        check_count(seeds, "seeds", 0)
    all_seeds = tuple(seeds if isinstance(seeds, Iterable) else range(seeds))
    for seed in all_seeds:
        check_given(seed, int, "seeds", "seeds=[1, 7]")
    if not all_seeds:
        raise ValueError("simulated(seeds=...) needs at least one seed")
    check_given(faults, FaultRates, "faults", "faults=FaultRates(cut=0.5)")
    seconds(limit, "limit", endless=True)

    def decorate(scenario: Callable[Concatenate[World, P], Awaitable[T]]) -> Callable[P, T]:
        if not iscoroutinefunction(scenario):
            raise TypeError(f"simulated() decorates `async def scenario(world): ...`, not {shown(scenario)}")

        @wraps(scenario)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            replayed = os.environ.get(_SEED)
            if replayed and not re.fullmatch(r"-?\d+", replayed):
                raise ValueError(f"{_SEED}={shown(replayed)} must be an integer, as in the note of the run that failed")
            chosen = (int(replayed),) if replayed else all_seeds
            runs = (_run(seed, faults, limit, lambda world: scenario(world, *args, **kwargs), scenario) for seed in chosen)
            (outcome,) = deque(runs, maxlen=1)
            return outcome

        # Test runners must not see a coroutine function or a `world` parameter.
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
                urandom=ids.randbytes, rng=ids, monotonic=loop.time, wall_clock_ns=lambda: int((_EPOCH + loop.time()) * 1e9)
            )
        )
        world = World(seed, faults, loop)
        worlds.append(world)
        outcomes: list[T] = []
        with anyio.move_on_after(limit) as scope:
            outcomes.append(await scenario(world))
            await world.calm()
            await anyio.sleep(2 * faults.delay)  # a close message and its answer may be in transit
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
