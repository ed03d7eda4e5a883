"""Child processes: ``python -m bench.child ROLE SYSTEM ...``; answers are lines of JSON on stdout."""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from .light import fan_out, open_idle
from .processes import Meter
from .systems import SYSTEMS, System
from .systems.base import Client, Laps
from .workloads import WORKLOADS, Workload

__all__ = ["main"]


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def leave_with_parent() -> threading.Event:
    """End this process when the parent closes the pipe, in any way; its first line sets the event."""
    told = threading.Event()

    def watch() -> None:
        while sys.stdin.buffer.readline():
            told.set()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    return told


def run_server(system: System, arguments: argparse.Namespace) -> None:
    driver = system.load()

    async def main() -> None:
        await driver.serve(system.options, lambda url: say(url=url))

    system.run(main)


def run_client(system: System, arguments: argparse.Namespace) -> None:
    driver, workload = system.load(), WORKLOADS[arguments.workload]

    async def main() -> None:
        async with driver.connect(system.options, arguments.url, workload.size) as client:
            run = load_of(client, workload)
            await run(arguments.warmup)
            gc.collect()
            say(**await metered(run, arguments.seconds, arguments.server))

    system.run(main)


def load_of(client: Client, workload: Workload) -> Callable[[float], Awaitable[Laps]]:
    if workload.kind == "publish":
        return client.publications
    return lambda seconds: client.requests(workload.in_flight, seconds)


async def metered(run: Callable[[float], Awaitable[Laps]], seconds: float, server: int) -> dict[str, Any]:
    meter = Meter(server)
    laps = await run(seconds)
    result: dict[str, Any] = meter.read(laps.count)
    if len(laps.seconds) > 1:
        centiles = statistics.quantiles(laps.seconds, n=100)
        result |= {"p50": centiles[49], "p99": centiles[98]}
    return result


def run_fan(system: System, arguments: argparse.Namespace) -> None:
    wire, connections = system.light(), WORKLOADS[arguments.workload].connections
    say(**fan_out(wire, arguments.url, connections, arguments.deliveries, arguments.server))


def run_idle(system: System, arguments: argparse.Namespace) -> None:
    wire, connections = system.light(), WORKLOADS[arguments.workload].connections
    say(ready=True)
    arguments.told.wait()
    opened = open_idle(wire, arguments.url, connections)
    say(opened=len(opened))
    threading.Event().wait()


ROLES = {"server": run_server, "client": run_client, "fan": run_fan, "idle": run_idle}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.child")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--workload", choices=WORKLOADS, default="64")
    parser.add_argument("--url", default="")
    parser.add_argument("--server", type=int, default=0, metavar="PID")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--warmup", type=float, default=0.3)
    parser.add_argument("--deliveries", type=int, default=30_000)
    arguments = parser.parse_args()
    arguments.told = leave_with_parent()
    raise_file_limit()
    try:
        ROLES[arguments.role](SYSTEMS[arguments.system], arguments)
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        raise


def raise_file_limit() -> None:
    """Raise the limit of file descriptors for thousands of connections."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 16_384 if hard == resource.RLIM_INFINITY else min(16_384, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
