"""`polybus bench`. By default it measures a server that it starts with ``python -m polybus.cli.bench LOOP URL...``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Annotated, Any, Literal

import anyio
import anyio.lowlevel
from attrs import asdict, evolve, frozen

from .. import Bus, NoHandler, run
from ..demo.children import leave_with_parent
from ..plugins import ProtocolAdapter, ProtocolFeatures
from ..plugins.registry import find_protocol, join_url, resolve_url
from ..plugins.tools import without_secrets
from ..testing import pair
from .options import (
    Header,
    Tls,
    Wait,
    argument,
    connecting,
    connects,
    duration,
    flag,
    json_line,
    option,
    parse_body,
    parse_protocol,
    parse_subject,
)
from .problems import PeerError, UsageError, unwrapped
from .show import Printer

ECHO = "bench.echo"
ONE_WAY = "bench.one_way"
COUNT = "bench.count"
_WARM_UP = 50
_TURN = 64
_STANDSTILL = 0.5
"""Seconds without progress after which the missing publications count as lost."""


@frozen(kw_only=True)
class Load:
    subject: str | int
    body: Any
    seconds: float
    in_flight: int
    timeout: float
    any_answer: bool = False
    """True if `NoHandler` counts as an answer, because it is a complete round trip."""


@frozen(kw_only=True)
class Rates:
    round_trip_us: float
    """Median round-trip time of sequential requests, in microseconds."""
    round_trip_p99_us: float
    requests_per_s: float
    """Requests per second with `Load.in_flight` concurrent requests."""
    publications_per_s: float | None
    """Publications per second as counted by the server, or `None` if it does not count them."""
    publications_lost: int | None


@connects
def bench(
    url: Annotated[
        str | None,
        argument("[URL]", "Running server. By default, bench starts one in another process and measures each transport."),
    ] = None,
    subject: Annotated[
        str, option("SUBJECT", "Subject to request from a running server. By default, one without a handler.")
    ] = "",
    body: Annotated[str | None, option("BODY", "JSON body for --subject.")] = None,
    size: Annotated[int, option("N", "Body size in bytes, unless --body is given.", min=0)] = 64,
    in_flight: Annotated[int, option("N", "Number of concurrent requests.", min=1, max=4096)] = 64,
    seconds: Annotated[float, duration("Seconds for each measurement.", min=0.01)] = 1.0,
    protocol: Annotated[str, option("P", "Protocol to measure without URL, such as ubre or 'ubre?format=binary'.")] = "ubre",
    loop: Annotated[Literal["asyncio", "uvloop", "trio"], option("LOOP", "Event loop: asyncio, uvloop or trio.")] = "asyncio",
    timeout: Annotated[float, duration("Seconds to wait for each answer.")] = 5.0,
    as_json: Annotated[bool, flag("--json", "Print one JSON document.")] = False,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Measure round-trip times, requests per second and publications per second."""
    if loop != "asyncio" and find_spec(loop) is None:
        raise UsageError(f"--loop {loop}: not installed: pip install {loop}")
    value = "x" * size if body is None else parse_body(body)
    asked = parse_subject(url, subject) if url is not None and subject else subject or ECHO
    load = Load(subject=asked, body=value, seconds=seconds, in_flight=in_flight, timeout=timeout)
    results: dict[str, Rates] = {}
    if url is not None:
        resolve_url(url)
        foreign = load if subject else evolve(load, subject="polybus.bench", any_answer=True)
        results[without_secrets(url)] = _run(loop, partial(connecting, url, header, tls, wait, timeout), foreign)
    else:
        if subject:
            raise UsageError("--subject requires a running server: add its URL")
        adapter = find_protocol(*parse_protocol(protocol))
        if ProtocolFeatures.of(adapter).dials:
            raise UsageError(f"--protocol {protocol}: bench cannot start a server for it: add the URL of one that runs")
        results["memory"] = _run(loop, lambda: pair(make_bus(), protocol=adapter), load)
        with tempfile.TemporaryDirectory(prefix="polybus-") as folder, _serving(adapter, folder, loop) as urls:
            for transport, real in urls.items():
                results[transport] = _run(loop, partial(connecting, real, None, None, 0.0, timeout), load)
    if as_json:
        print(json_line(_result(results, load, loop), pretty=True), flush=True)
    else:
        _show(results, load, loop, local=url is None)


def _run(loop: str, opened: Callable[[], AbstractAsyncContextManager[Bus]], load: Load) -> Rates:
    async def run() -> Rates:
        async with opened() as bus:
            return await measure(bus, load)

    backend = "trio" if loop == "trio" else "asyncio"
    options = {"use_uvloop": True} if loop == "uvloop" else {}
    return unwrapped(lambda: anyio.run(run, backend=backend, backend_options=options))


# -- measurements of one link --------------------------------------------------------------------------------------------


async def measure(bus: Bus, load: Load) -> Rates:
    """Measure a bus with one link. Publications are measured only with our own server, which counts them."""
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
    published, lost = await _one_way(bus, load) if load.subject == ECHO else (None, None)
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
        while True:  # at least once, however slow the machine is
            await ask()
            answered += 1
            if perf_counter() >= end:
                return

    async with anyio.create_task_group() as group:
        for _ in range(in_flight):
            group.start_soon(go_on)
    return answered / (perf_counter() - began)


async def _one_way(bus: Bus, load: Load) -> tuple[float, int]:
    """Publish, then request the count on the same link until all publications are counted or progress stops."""
    before = await bus.request(COUNT, timeout=load.timeout, returns=int)
    sent = 0
    began = perf_counter()
    end = began + load.seconds
    while sent == 0 or perf_counter() < end:
        for _ in range(_TURN):
            await bus.publish(ONE_WAY, load.body)
        sent += _TURN
        await anyio.lowlevel.checkpoint()
    seen, counted = 0, perf_counter()
    while seen < sent and perf_counter() - counted < _STANDSTILL:  # the server may read frames before it counts them
        now = await bus.request(COUNT, timeout=load.timeout + load.seconds * 10, returns=int) - before
        if now != seen:
            seen, counted = now, perf_counter()
    return seen / (counted - began), sent - seen


# -- our own server ------------------------------------------------------------------------------------------------------


@contextmanager
def _serving(protocol: ProtocolAdapter, folder: str, loop: str) -> Iterator[dict[str, str]]:
    """Start a server on each transport that this machine has. Yields its URLs by transport."""
    addresses = {"unix": f"unix://{folder}/bench.sock"} if os.name == "posix" else {}
    addresses |= {"tcp": "tcp://127.0.0.1:0", "ws": "ws://127.0.0.1:0/bench"}
    urls = [join_url(protocol, address) for address in addresses.values()]
    command = [sys.executable, "-m", "polybus.cli.bench", loop, *urls]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline().strip().partition(" ") for _ in urls]
            if any(word != "serving" for word, _, _ in lines):
                said = server.communicate(timeout=10)[1].strip().splitlines() or ["no output"]
                raise PeerError(f"the server process did not start: {said[-1]}")
            yield {transport: real for transport, (_, _, real) in zip(addresses, lines, strict=True)}
        finally:
            server.kill()


def make_bus() -> Bus:
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
    leave_with_parent()
    run(make_bus(), *urls, drain=1, backend="trio" if loop == "trio" else "asyncio", uvloop=loop == "uvloop")


# -- output --------------------------------------------------------------------------------------------------------------


def _result(results: dict[str, Rates], load: Load, loop: str) -> dict[str, Any]:
    wires = [{"wire": wire, **asdict(rates)} for wire, rates in results.items()]
    python = {"python": platform.python_version(), "implementation": platform.python_implementation(), "loop": loop}
    machine = {**python, "system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()}
    return {"machine": machine, "in_flight": load.in_flight, "seconds": load.seconds, "wires": wires}


def _show(results: dict[str, Rates], load: Load, loop: str, *, local: bool) -> None:
    heads = ("wire", "round trip", "p99", f"{load.in_flight} in flight", "one way")
    rows = [
        (
            wire,
            f"{rates.round_trip_us:.0f} µs",
            f"{rates.round_trip_p99_us:.0f} µs",
            f"{rates.requests_per_s:,.0f} requests/s",
            "" if rates.publications_per_s is None else f"{rates.publications_per_s:,.0f} publications/s",
        )
        for wire, rates in results.items()
    ]
    printer = Printer()
    printer.table(heads, rows)
    python = f"{platform.python_implementation()} {platform.python_version()}, {loop}, {os.cpu_count()} cores"
    where = "client and server on this machine" if local else "including the work of this client"
    printer.line("", f"{python}; {where}", style="dim")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
