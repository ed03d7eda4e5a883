"""A day on which seven things go wrong: programs of the public API, and the log that they write themselves.

Consoles ask a plant over four protocols, over a bridge, and in a tunnel. A number in each body says which request it was, so
that requests and answers can be told apart in the bytes of the frames, without a codec.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs

from polybus import Bus, BusError, Limits, NotFound, RequestCancelled, RequestError, Route, bridge, connect

PROTOCOLS: Final = ("ubre", "csb", "jrep", "uprotocol")
DEADLINE: Final = 0.15
"""Seconds that a request which is never answered is worth; all others are worth more than they take.
Whoever asks gives up as soon as it runs: at the deadline itself the server might still say that it is over."""
SLOW: Final = 0.1
GET, SLOW_GET, LOST_GET = 0x00010001, 0x00010002, 0x00010003


@attrs.define
class Log:
    """What the programs have seen, as they write it down."""

    outcomes: Counter[tuple[str, str, str]] = attrs.Factory(Counter)
    """Requests by link, what was asked, and how it ended."""
    elapsed_ns: dict[int, int] = attrs.Factory(dict)
    """By number of the request, for those that were answered."""
    heard: int = 0
    """Publications that the subscriber got before it was killed."""


@attrs.define
class Day:
    """The programs of the day."""

    capture: Path
    log: Log = attrs.Factory(Log)
    begun: anyio.Event = attrs.Factory(anyio.Event)
    """Set when a handler runs that never answers: whoever asks gives up then."""
    _numbers: Any = attrs.Factory(itertools.count)

    async def ask(self, link: str, bus: Any, subject: Any, what: str, **more: Any) -> None:
        """Ask once, and write down what came of it."""
        number = next(self._numbers)
        began = time.monotonic_ns()
        outcome = "lost"
        reply = bus.request(subject, {"number": f"n{number:06d}n", **more}, timeout=DEADLINE if what == "lost" else 30)
        if what == "lost":
            await self.begun.wait()
            self.begun = anyio.Event()
            reply.cancel()
        try:
            await reply
            outcome = "ok"
        except RequestError:
            outcome = "error"
        except RequestCancelled:
            pass  # lost
        if outcome != "lost":
            self.log.elapsed_ns[number] = time.monotonic_ns() - began
        self.log.outcomes[link, what, outcome] += 1

    async def over_protocols(self) -> None:
        """Consoles of four protocols ask the plant; one tank is slow, one does not exist, and one is never answered."""
        for protocol in PROTOCOLS:
            subjects, form = _subjects(protocol), "?format=protobuf" * (protocol == "uprotocol")
            async with _plant(subjects, self).serve(f"{protocol}+tcp://127.0.0.1:0{form}") as listener:
                async with connect(listener.url, record=self.capture) as console:
                    for number in range(24):
                        await self.ask(protocol, console, subjects["get"], "get", missing=number % 8 == 7)
                    if protocol != "csb":  # which cannot cancel: its server says at the deadline that it is over
                        await self.ask(protocol, console, subjects["lost"], "lost")
                    # Which takes so long that its deadline passes.
                    for _ in range(2):
                        async with anyio.create_task_group() as tasks:
                            for _ in range(12 if protocol == "ubre" else 1):
                                tasks.start_soon(self.ask, protocol, console, subjects["slow"], "slow")

    async def over_a_bridge_and_in_a_tunnel(self) -> None:
        console, inside, machines = Bus(), Bus(), _plant(_subjects("csb"), self)
        far = _plant({"get": "far.tank.get", "slow": "far.tank.slow", "lost": "far.tank.lost"}, self)
        console.handle_tunnels("plant.{id}", machines, protocol="csb")
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            far_listener = await enter(far.serve("uprotocol+tcp://127.0.0.1:0?format=protobuf"))
            await enter(connect(far_listener.url, bus=inside))
            near = await enter(console.serve("ubre+tcp://127.0.0.1:0"))
            await enter(bridge(console, inside, routes=[Route("tank.*", "far.tank.{1}")]))
            await enter(machines)
            for bus in (console, inside, machines):
                await enter(bus.record(self.capture))
            page = await enter(connect(near.url, record=self.capture))
            for number in range(8):
                await self.ask("bridge", page, "tank.get", "get", missing=number == 7)
            await self.ask("bridge", page, "tank.slow", "slow", times=3)
            plant = await enter(connect(page.tunnel("plant.7"), protocol="csb", record=self.capture))
            for _ in range(4):
                await self.ask("tunnel", plant, GET, "get")
            await self.ask("tunnel", plant, SLOW_GET, "slow", times=3)

    async def killed(self) -> None:
        """A subscriber is killed, and a console says more than the plant takes."""
        news = Bus(limits=Limits(message=1 << 16))
        async with news.serve("ubre+tcp://127.0.0.1:0") as listener, news.record(self.capture):
            async with _subscriber(listener.url) as child:
                assert child.stdout is not None
                assert await anyio.to_thread.run_sync(child.stdout.readline) == b"listening\n"
                await news.publish("news.sport", "goal")
                assert await anyio.to_thread.run_sync(child.stdout.readline) == b"news.sport\n"
                self.log.heard += 1
                child.send_signal(signal.SIGKILL)
                child.wait()
            async with connect(listener.url) as console:
                try:
                    await console.request("tank.get", "x" * (1 << 17), timeout=5)
                except (BusError, ConnectionError):
                    self.log.outcomes["news", "large", "refused"] += 1


def _subjects(protocol: str) -> dict[str, str | int]:
    if protocol == "csb":
        return {"get": GET, "slow": SLOW_GET, "lost": LOST_GET}
    form = "//v/tank/1/rpc.{}" if protocol == "uprotocol" else "tank.{}"
    return {name: form.format(name) for name in ("get", "slow", "lost")}


def _plant(subjects: Mapping[str, str | int], day: Day) -> Bus:
    bus = Bus()

    @bus.handle(subjects["get"])
    async def get(body: dict[str, Any]) -> dict[str, Any]:
        if body.get("missing"):
            raise NotFound(f"there is no tank {body['number']}")
        return body

    @bus.handle(subjects["slow"])
    async def slow(body: dict[str, Any]) -> dict[str, Any]:
        await anyio.sleep(SLOW * body.get("times", 1))
        return body

    @bus.handle(subjects["lost"])
    async def lost(body: dict[str, Any]) -> None:
        day.begun.set()
        await anyio.sleep_forever()

    return bus


_SUBSCRIBER: Final = """
import sys, anyio
from polybus import connect

async def main():
    async with connect(sys.argv[1]) as bus, bus.subscribe("news.>") as news:
        print("listening", flush=True)
        async for item in news:
            print(item.subject, flush=True)

anyio.run(main)
"""


@asynccontextmanager
async def _subscriber(url: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", _SUBSCRIBER, url], stdout=subprocess.PIPE)  # noqa: ASYNC220  # it does not wait
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def live(capture: Path) -> Log:
    """Live through the day, recorded into a folder; the log of the programs."""
    day = Day(capture)

    async def all_of_it() -> None:
        await day.over_protocols()
        await day.over_a_bridge_and_in_a_tunnel()
        await day.killed()

    anyio.run(all_of_it)
    return day.log
