"""`polybus bench`: throughput of a wire, here or to the user's server."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import anyio
from attrs import asdict, evolve

from .. import Bus
from ..plugins.registry import find_protocol, resolve_url, split_url
from ..plugins.tools import without_secrets
from ..testing import pair
from .options import Header, Tls, Wait, argument, connects, duration, flag, option
from .problems import PeerError, UsageError, unwrapped
from .rates import COUNT, ECHO, ONE_WAY, Load, Rates, make_bus, measure
from .show import Printer
from .values import connecting, json_line, parse_body, parse_subject


@connects
def bench(
    url: Annotated[
        str | None, argument("[URL]", "A running server; default: our own in another process, over each transport.")
    ] = None,
    subject: Annotated[str, option("SUBJECT", "Subject to request from a running server; default: one that it lacks.")] = "",
    body: Annotated[str | None, option("BODY", "JSON, for --subject.")] = None,
    size: Annotated[int, option("N", "Bytes of the body, without --body.", min=0)] = 64,
    in_flight: Annotated[int, option("N", "Requests in flight at the same time.", min=1, max=4096)] = 64,
    seconds: Annotated[float, duration("For each measurement.", min=0.01)] = 1.0,
    protocol: Annotated[str, option("P", "Without URL: ubre or 'ubre?format=binary'.")] = "ubre",
    loop: Annotated[Literal["asyncio", "uvloop", "trio"], option("LOOP", "asyncio, uvloop or trio.")] = "asyncio",
    timeout: Annotated[float, duration("Seconds to wait for each answer.")] = 5.0,
    as_json: Annotated[bool, flag("--json", "One JSON document.")] = False,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Measure round trips, requests per second and publications per second."""
    if loop != "asyncio" and find_spec(loop) is None:
        raise UsageError(f"--loop {loop}: it is not installed here: pip install {loop}")
    value = "x" * size if body is None else parse_body(body)
    asked = parse_subject(url, subject) if url is not None and subject else subject or ECHO
    load = Load(subject=asked, body=value, seconds=seconds, in_flight=in_flight, timeout=timeout)
    results: dict[str, Rates] = {}
    if url is not None:
        resolve_url(url)
        foreign = load if subject else evolve(load, subject="polybus.bench", any_answer=True)
        results[without_secrets(url)] = _run(loop, _at, url, foreign, header, tls, wait)
    else:
        if subject:
            raise UsageError("--subject is for a running server: name its URL too")
        find_protocol(*_split(protocol))
        results["memory"] = _run(loop, _in_memory, protocol, load)
        with tempfile.TemporaryDirectory(prefix="polybus-") as folder:
            addresses = _addresses(folder)
            with _serving(protocol, addresses.values(), loop) as urls:
                for transport, real in zip(addresses, urls, strict=True):
                    results[transport] = _run(loop, _at, real, load, None, None, 0.0)
    if as_json:
        print(json_line(_result(results, load, loop), pretty=True), flush=True)
    else:
        _show(results, load, loop, local=url is None)


def _run(loop: str, function: Any, *args: Any) -> Rates:
    backend = "trio" if loop == "trio" else "asyncio"
    options = {"use_uvloop": True} if loop == "uvloop" else {}
    rates: Rates = unwrapped(lambda: anyio.run(function, *args, backend=backend, backend_options=options))
    return rates


async def _at(url: str, load: Load, header: list[str] | None, tls: Tls, wait: float) -> Rates:
    async with connecting(url, header, tls, wait, load.timeout) as bus:
        return await _rates(bus, load)


async def _in_memory(protocol: str, load: Load) -> Rates:
    async with pair(make_bus(), protocol=find_protocol(*_split(protocol))) as bus:
        return await _rates(bus, load)


async def _rates(bus: Bus, load: Load) -> Rates:
    return await measure(bus, load, (ONE_WAY, COUNT) if load.subject == ECHO else None)


# -- our own server
# --------------------------------------------------------------------------------------------------------------


def _split(protocol: str) -> tuple[str, dict[str, str]]:
    parts = split_url(f"{protocol.partition('?')[0]}+memory://bench?{protocol.partition('?')[2]}")
    return parts.protocol, dict(parts.options)


def _addresses(folder: str) -> dict[str, str]:
    unix = {"unix": f"unix://{folder}/bench.sock"} if os.name == "posix" else {}
    return unix | {"tcp": "tcp://127.0.0.1:0", "ws": "ws://127.0.0.1:0/bench"}


@contextmanager
def _serving(protocol: str, addresses: Collection[str], loop: str) -> Iterator[list[str]]:
    """Run a process that serves at all addresses; yields its URLs."""
    name, _, options = protocol.partition("?")
    urls = [f"{name}+{address}{'?' if options else ''}{options}" for address in addresses]
    command = [sys.executable, "-m", "polybus.cli.rates", loop, *urls]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = [server.stdout.readline().strip().partition(" ") for _ in urls]
            if any(word != "serving" for word, _, _ in lines):
                said = server.communicate(timeout=10)[1].strip().splitlines() or ["it said nothing"]
                raise PeerError(f"the server process did not start: {said[-1]}")
            yield [real for _, _, real in lines]
        finally:
            server.kill()


# -- output
# ----------------------------------------------------------------------------------------------------------------------


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
    where = "client and server on this machine, no network between" if local else "this side's share of the work included"
    printer.line("", f"{python}; {where}", style="dim")
    sys.stdout.flush()
