"""`polybus.js` beside npm ubre and socket.io-client: ``python -m bench.pages``. Needs the Node modules of `make peers`.

Each client is a Node process. Its server runs under uvicorn: a FastAPI application for polybus and ubre, python-socketio for
socket.io. They take turns in each round. Prints medians of rates and of the processor time of client and server.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from .processes import Child, child, cpu_seconds

__all__ = ["main"]

_PROGRAM = Path(__file__).with_suffix(".mjs")
_SERVERS = {"polybus": "ubre-uvicorn@asyncio", "ubre": "ubre-uvicorn@asyncio", "socketio": "socketio@asyncio"}
_WORKLOADS = ("serial", "64", "publications")
_MICROSECONDS = 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        ends = {name: _started(stack, name, server) for name, server in _SERVERS.items()}
        print("| workload | client | per second | of ubre | client's µs | of ubre | server's µs |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for workload in _WORKLOADS:
            _measure(workload, ends, options.rounds, options.seconds)


def _started(stack: ExitStack, name: str, server: str) -> tuple[Child, Child]:
    serving = stack.enter_context(child("server", server))
    url = serving.answer()["url"].removeprefix("ubre+")
    client = Child(["node", str(_PROGRAM), name, url], name)
    stack.callback(client.stop)
    return client, serving


def _measure(workload: str, ends: dict[str, tuple[Child, Child]], rounds: int, seconds: float) -> None:
    samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ends}
    for turn in range(rounds + 1):
        for name in sorted(ends, reverse=turn % 2 == 0):
            client, server = ends[name]
            before = cpu_seconds(server.pid)
            client.tell(f"{workload} {seconds}")
            found = client.answer()
            used = cpu_seconds(server.pid) - before
            count = found["count"]
            if turn:  # the first one warms up
                samples[name].append(
                    (count / found["seconds"], found["cpu"] / count * _MICROSECONDS, used / count * _MICROSECONDS)
                )
    medians = {name: [median(values) for values in zip(*taken, strict=True)] for name, taken in samples.items()}
    base = medians["ubre"]
    for name, (rate, client_cpu, server_cpu) in medians.items():
        beside = f"{rate / base[0]:.2f} | {client_cpu:.1f} | {client_cpu / base[1]:.2f}"
        print(f"| {workload} | {name} | {rate:,.0f} | {beside} | {server_cpu:.1f} |", flush=True)


if __name__ == "__main__":
    main()
