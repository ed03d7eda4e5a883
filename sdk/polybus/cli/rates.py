"""Measurements of `polybus bench` on one link; and the server at its other end, in another process: ``python -m
polybus.cli.rates LOOP URL...``"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import anyio
import anyio.lowlevel
from attrs import frozen

from .. import Bus, NoHandler, run
from ..demo.children import leave_with_parent

ECHO = "bench.echo"
ONE_WAY = "bench.one_way"
COUNT = "bench.count"
_WARM_UP = 50
_TURN = 64
_STANDSTILL = 0.5
"""Seconds without progress after which missing publications count as lost."""


@frozen(kw_only=True)
class Load:
    subject: str | int
    body: Any
    seconds: float
    in_flight: int
    timeout: float
    any_answer: bool = False
    """True if `NoHandler` counts as an answer: it has made the round trip."""


@frozen(kw_only=True)
class Rates:
    round_trip_us: float
    """Median of sequential requests, in microseconds."""
    round_trip_p99_us: float
    requests_per_s: float
    """With many in flight."""
    publications_per_s: float | None
    """Counted by the server; None if it does not count."""
    publications_lost: int | None


async def measure(bus: Bus, load: Load, counts: tuple[str, str] | None) -> Rates:
    """Measure the only link of a bus; `counts` are the subjects to publish to and to request the count from."""
    (peer,) = bus.peers

    async def ask() -> None:
        try:
            await peer.request(load.subject, load.body, timeout=load.timeout)
        except NoHandler:
            if not load.any_answer:
                raise

    for _ in range(_WARM_UP):
        await ask()
    times = sorted(await _one_by_one(ask, load.seconds))
    rate = await _at_once(ask, load.in_flight, load.seconds)
    published, lost = (None, None) if counts is None else await _one_way(bus, *counts, load)
    return Rates(
        round_trip_us=times[len(times) // 2] * 1e6,
        round_trip_p99_us=times[int(len(times) * 0.99)] * 1e6,
        requests_per_s=rate,
        publications_per_s=published,
        publications_lost=lost,
    )


async def _one_by_one(ask: Callable[[], Awaitable[None]], seconds: float) -> list[float]:
    times: list[float] = []
    now = perf_counter()
    end = now + seconds
    while now < end:
        began = now
        await ask()
        now = perf_counter()
        times.append(now - began)
    return times


async def _at_once(ask: Callable[[], Awaitable[None]], in_flight: int, seconds: float) -> float:
    answered = 0
    began = perf_counter()
    end = began + seconds

    async def go_on() -> None:
        nonlocal answered
        while True:  # at least once, on any machine
            await ask()
            answered += 1
            if perf_counter() >= end:
                return

    async with anyio.create_task_group() as group:
        for _ in range(in_flight):
            group.start_soon(go_on)
    return answered / (perf_counter() - began)


async def _one_way(bus: Bus, subject: str, count: str, load: Load) -> tuple[float | None, int | None]:
    """Publish, and request the count behind that on the same link, until all are counted or progress stops."""
    before = await bus.request(count, timeout=load.timeout, returns=int)
    sent = 0
    began = perf_counter()
    end = began + load.seconds
    while sent == 0 or perf_counter() < end:
        for _ in range(_TURN):
            await bus.publish(subject, load.body)
        sent += _TURN
        await anyio.lowlevel.checkpoint()
    seen, counted = 0, perf_counter()
    while seen < sent and perf_counter() - counted < _STANDSTILL:  # frames may be read before they are counted
        now = await bus.request(count, timeout=load.timeout + load.seconds * 10, returns=int) - before
        if now != seen:
            seen, counted = now, perf_counter()
    return seen / (counted - began), sent - seen


def make_bus() -> Bus:
    """Bus that echoes requests and counts publications."""
    bus = Bus()
    seen = 0

    @bus.handle(ECHO)
    async def echo(body: object) -> object:
        return body

    @bus.on(ONE_WAY, when_full="drop_newest", queue=100_000)
    async def count(body: object) -> None:
        nonlocal seen
        seen += 1

    @bus.handle(COUNT)
    async def counted() -> int:
        return seen

    return bus


def main(loop: str, *urls: str) -> None:
    """Serve until the parent process is gone."""
    leave_with_parent()
    run(make_bus(), *urls, drain=1, backend="trio" if loop == "trio" else "asyncio", uvloop=loop == "uvloop")


if __name__ == "__main__":
    main(*sys.argv[1:])
