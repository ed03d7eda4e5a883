"""What every system offers to the harness: a server, a client and the bytes that light raw clients send to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from time import perf_counter
from typing import Any, Protocol, cast

from attrs import Factory, field, frozen

from ._needs import Need

__all__ = ["Client", "Driver", "Laps", "LightDriver", "LightWire", "Publisher", "System", "json_text"]


def json_text(size: int) -> bytes:
    """The JSON text of an object, exactly `size` bytes long."""
    start, end = b'{"id":7,"name":"', b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


@frozen
class Laps:
    """What a run of a client gave: how many messages, and for serial ones the seconds that each took."""

    count: int
    seconds: list[float] = field(factory=list)


class Client(ABC):
    """One connection of a system, with the body that it sends already made.

    The defaults await each request in one of as many tasks as requests are in flight, which is how a program uses a library.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    async def request(self) -> object:
        """Sends the body and waits until it is back."""

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        """Keeps `in_flight` requests under way for `seconds`."""
        if in_flight == 1:
            return await self._serial(seconds)
        import anyio

        counts: list[int] = []
        end = perf_counter() + seconds

        async def work() -> None:
            request, count = self.request, 0
            while perf_counter() < end:
                await request()
                count += 1
            counts.append(count)

        async with anyio.create_task_group() as group:
            for _ in range(in_flight):
                group.start_soon(work)
        return Laps(sum(counts))

    async def _serial(self, seconds: float) -> Laps:
        laps = []
        now = perf_counter()
        end = now + seconds
        while now < end:
            await self.request()
            before, now = now, perf_counter()
            laps.append(now - before)
        return Laps(len(laps), laps)


class Publisher(Client):
    """One that takes part in the one-way workloads too."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.published = 0

    @abstractmethod
    async def publish(self) -> object:
        """Sends the body one-way."""

    @abstractmethod
    async def counted(self, total: int) -> None:
        """Returns when the server has counted `total` one-way messages of this connection."""

    async def publications(self, seconds: float) -> Laps:
        """Publishes for `seconds`, as fast as it is let, and waits until all have been counted."""
        publish, count = self.publish, 0
        end = perf_counter() + seconds
        while perf_counter() < end:
            await publish()
            count += 1
        self.published += count
        await self.counted(self.published)
        return Laps(count)


class LightWire(Protocol):
    """The bytes with which a client that knows no library plays its part in fan-out and idle connections."""

    websocket: bool

    def greeting(self, host: str) -> bytes:
        """Sent first; empty where there is no handshake."""

    def subscribe(self) -> bytes:
        """Makes this connection receive the fan-out."""

    def burst(self, count: int) -> bytes:
        """Asks the server to publish `count` times to everybody that subscribed."""


class Driver(Protocol):
    """A module of this folder."""

    async def serve(self, options: dict[str, Any], ready: Callable[[str], None]) -> None:
        """Serves until it is cancelled; calls `ready` with its URL once."""

    def connect(self, options: dict[str, Any], url: str, size: int) -> AbstractAsyncContextManager[Client]:
        """Opens one connection; a `Publisher` where the system takes part in one-way workloads."""


class LightDriver(Driver, Protocol):
    """One that takes part in fan-out and idle connections."""

    def light(self, options: dict[str, Any]) -> LightWire:
        """The wire for light clients."""


@frozen(kw_only=True)
class System:
    """One row: a driver with its options on one event loop.

    `beside` is the system of ours that goes the same kind of way: TCP, WebSocket, or an engine in between.
    """

    name: str
    loop: str
    driver: str
    workloads: frozenset[str]
    options: dict[str, Any] = Factory(dict)
    note: str = ""
    needs: tuple[Need, ...] = ()
    beside: str = ""

    @property
    def key(self) -> str:
        return f"{self.name}@{self.loop}"

    @property
    def missing(self) -> str:
        """What it needs and is not installed; empty where all is there."""
        return ", ".join(need.name for need in self.needs if not need.version)

    def load(self) -> Driver:
        return cast(Driver, import_module(f"bench.systems.{self.driver}"))

    def light(self) -> LightWire:
        """The wire for light clients, of a system that takes part in what needs them."""
        return cast(LightDriver, self.load()).light(self.options)

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Runs `main` on this system's event loop."""
        import anyio

        if self.loop == "trio":
            anyio.run(main, backend="trio")
        else:
            anyio.run(main, backend="asyncio", backend_options={"use_uvloop": self.loop == "uvloop"})
