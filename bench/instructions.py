"""Instructions of a message, of both ends together in one process: a figure that no neighbour shakes by more than 2 %.

``python -m bench.instructions`` counts them under callgrind (of valgrind), over UBRE and TCP on asyncio with bodies of 64
bytes, where C runs and where its twins in Python do, and fails where one is above its ceiling, which is 5 % above the figure.
The kernel is not counted.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from polybus import Bus, connect
from polybus._core.bus.bus import parts_of
from polybus.speedups import ACTIVE

_FEW, _MANY = 128, 512
"""Messages of the two runs whose difference counts: what begins and ends a run is in both."""
_BODY: Final = {"id": 7, "text": "x" * 45}
_CEILINGS: Final[Mapping[str, Mapping[str, int]]] = {
    "C": {"64 in flight": 92_600, "serial": 203_100, "one way": 30_600},
    "Python": {"64 in flight": 124_700, "serial": 232_200, "one way": 44_100},
}
"""Of CPython 3.11, as Debian builds it."""
_PROGRAM: Final = """
import itertools, time
time.monotonic = itertools.count(0.0, 1e-4).__next__
import asyncio
from bench.instructions import workload
asyncio.run(workload())
"""
"""Each look at the clock takes 0.1 ms: on a busy machine a run lasts longer, with more of what happens every second."""


async def workload() -> None:
    """The messages, with a system call around each run at which callgrind writes what it has counted."""
    server, heard = Bus(), 0

    @server.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    @server.on("news")
    async def news(body: Any) -> None:
        nonlocal heard
        heard += 1

    async with server.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:

        async def serial(count: int) -> None:
            for _ in range(count):
                await client.request("echo", _BODY, timeout=30)

        async def in_flight(count: int) -> None:
            await asyncio.gather(*(serial(count // 64) for _ in range(64)))

        async def one_way(count: int) -> None:
            until = heard + count
            for index in range(count):
                await client.publish("news", _BODY)
                if index % 32 == 31:
                    await asyncio.sleep(0)
            while heard < until:  # noqa: ASYNC110  # no event: what wakes a task is to be the same in every run
                await asyncio.sleep(0)

        for bus in (server, client):  # under callgrind each call takes long, and to look at those costs, too
            parts_of(bus).services.running.workers.clock = lambda: 0.0
        gc.disable()
        runs: tuple[Callable[[int], Awaitable[None]], ...] = (in_flight, serial, one_way)
        for run in runs:
            await run(_MANY)
            for count in (_FEW, _MANY):
                os.getppid()
                await run(count)
            os.getppid()


def counted(twin: str) -> dict[str, int]:
    """Count the instructions of a message in each workload, of one of the twins."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "POLYBUS_SPEEDUPS": "1" if twin == "C" else "0"}
    with TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={folder}/out"]
        command += [sys.executable, "-c", _PROGRAM]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=3600)
        dumps = (Path(folder, f"out.{number + 1}").read_text() for number in range(3 * len(_CEILINGS[twin])))
        counts = [int(re.findall(r"^summary: (\d+)", dump, re.M)[0]) for dump in dumps]
    return {name: (counts[3 * n + 2] - counts[3 * n + 1]) // (_MANY - _FEW) for n, name in enumerate(_CEILINGS[twin])}


def main() -> int:
    if shutil.which("valgrind") is None:
        print("instructions are not counted: valgrind is not installed")
        return 1 if os.environ.get("POLYBUS_CI") else 0
    dear = False
    for twin, ceilings in _CEILINGS.items():
        if twin == "C" and not ACTIVE:
            print("C has not been built here: its instructions are not counted")
            continue
        for name, count in counted(twin).items():
            too_many = sys.version_info[:2] == (3, 11) and count > ceilings[name]
            dear |= too_many
            verdict = ": TOO MANY" if too_many else ""
            print(f"{count:>9,} instructions, {name} ({twin}); the ceiling is {ceilings[name]:,}{verdict}", flush=True)
    return 1 if dear else 0


if __name__ == "__main__":
    sys.exit(main())
