"""W7: what an import costs, and the time from the start of a process to its first reply."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .processes import ChildFailed, child
from .results import Row
from .systems import REFERENCE
from .systems._base import System

__all__ = ["import_cpu_ms", "measure"]

_STARTS = 9
_TIMEOUT = 30.0

_IMPORT = "import time; a = time.process_time(); import {module}; print((time.process_time() - a) * 1000)"

_RAW_HELLO = """
import asyncio, sys

async def main():
    reader, writer = await asyncio.open_connection(sys.argv[1], int(sys.argv[2]))
    writer.write(b"\\0\\0\\0\\x01E" + b"\\0\\0\\0\\x05hello")
    await reader.readexactly(9)
    print("here", flush=True)
    writer.close()

asyncio.run(main())
"""

_HELLO = """
import asyncio, sys
from polybus import connect

async def main():
    async with connect(sys.argv[1]) as bus:
        await bus.request("bench.echo", {"id": 7})
        print("here", flush=True)

asyncio.run(main())
"""


def import_cpu_ms(module: str) -> float:
    """Processor milliseconds of an import in a fresh interpreter, the least of several, with the byte code cached."""
    command = [sys.executable, "-c", _IMPORT.format(module=module)]
    runs = (subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT) for _ in range(_STARTS + 1))
    return min(float(run.stdout) for run in runs)


def measure(systems: Sequence[System], tell: Callable[[str], None]) -> list[Row]:
    """Import time of each module that matters, then the way to the first reply over a raw socket and over polybus."""
    tell("W7")
    rows = [_import_row(module) for module in ("asyncio", "anyio", "websockets.asyncio.client", "polybus")]
    for system in systems:
        if system.loop == "asyncio" and (system.key == REFERENCE or system.driver == "ours"):
            if system.options.get("body") != "bytes":
                rows.append(_hello_row(system))
    return rows


def _import_row(module: str) -> Row:
    name = f"import {module}"
    try:
        return Row(workload="W7", system=name, values={"cpu_ms": import_cpu_ms(module)})
    except subprocess.SubprocessError as error:
        return Row(workload="W7", system=name, error=f"{type(error).__name__}")


def _hello_row(system: System) -> Row:
    try:
        with child("server", system.key) as server:
            wall, cpu = _hello(system, server.answer()["url"])
    except (ChildFailed, subprocess.SubprocessError) as error:
        return Row(workload="W7", system=system.key, error=f"{type(error).__name__}: {error}")
    return Row(workload="W7", system=system.key, values={"first_reply_ms": wall, "cpu_ms": cpu})


def _hello(system: System, url: str) -> tuple[float, float]:
    from .systems._frames import split_address

    raw = system.key == REFERENCE
    targets = [str(part) for part in split_address(url)] if raw else [url]
    with tempfile.TemporaryDirectory() as folder:
        # A file and not -c, so that both start as a program does.
        script = Path(folder) / "hello.py"
        script.write_text(_RAW_HELLO if raw else _HELLO)
        runs = [_first_line([sys.executable, str(script), *targets]) for _ in range(_STARTS)]
    return min(wall for wall, _ in runs), min(cpu for _, cpu in runs)


def _first_line(command: list[str]) -> tuple[float, float]:
    """Wall milliseconds until the process prints, and its processor milliseconds in all."""
    before, started = os.times(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            wall = time.perf_counter() - started
            process.wait(_TIMEOUT)
        finally:
            if process.poll() is None:
                process.kill()
    if line.strip() != b"here":
        raise ChildFailed(f"the first reply never came (status {process.returncode})")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall * 1000, cpu * 1000
