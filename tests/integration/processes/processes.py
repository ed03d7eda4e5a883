"""Real processes for the tests: started with a line of JSON, found by the address they print, stopped by their own id."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread
import psutil
import pytest

from polybus import Bus
from tests.support import BOUND, eventually, port_of

__all__ = ["BOUND", "MIB", "Process", "asyncio_and_trio", "control", "eventually", "loop_of", "marked", "running"]

MIB = 1024 * 1024

_ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", name="anyio_backend", params=[("asyncio", {}), ("trio", {})], ids=["asyncio", "trio"])
def asyncio_and_trio(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A module's `anyio_backend`: its tests and programs run on both. Without uvloop: these tests take their time."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


class Process:
    """A program of this package in a process of its own."""

    def __init__(self, module: str, options: dict[str, Any]) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # closed in `stop`
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", _full(module), json.dumps(options)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self.urls: list[str] = []
        """Where it serves."""

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def port(self) -> int:
        return port_of(self.url)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_line(self) -> bytes:
        assert self._process.stdout is not None
        descriptor, end, line = self._process.stdout.fileno(), time.monotonic() + BOUND, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            part = os.read(descriptor, 1) if ready else b""
            if not part:
                raise AssertionError(f"the program said {line!r} and no more; its log:\n{self.log()}")
            line += part
        return line

    def introduce(self) -> None:
        line = self.read_line()
        # `polybus.run` says "serving URL".
        self.urls = [line.split()[1].decode()] if line.startswith(b"serving ") else json.loads(line)["urls"]

    def log(self) -> str:
        # Its place in the file is ours too: to seek in order to read would have it write over its own first lines.
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    def memory(self) -> int:
        """Bytes that are its own: what would be free if it ended."""
        return int(psutil.Process(self.pid).memory_full_info().uss)

    def files(self) -> int:
        return int(psutil.Process(self.pid).num_fds())

    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()

    async def ended(self, seconds: float = BOUND) -> int:
        return await anyio.to_thread.run_sync(lambda: self._process.wait(seconds))

    def stop(self) -> None:
        if self.running():
            self._process.kill()
        self._process.wait(BOUND)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def _full(module: str) -> str:
    return module if "." in module else f"tests.integration.processes.{module}"


def loop_of(anyio_backend: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The options that make a program run on the event loop of the test."""
    return {"backend": anyio_backend[0], "uvloop": bool(anyio_backend[1].get("use_uvloop"))}


@asynccontextmanager
async def running(module: str = "server", **options: Any) -> AsyncIterator[Process]:
    process = await anyio.to_thread.run_sync(Process, module, options)
    try:
        await anyio.to_thread.run_sync(process.introduce)
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(process.stop)


@asynccontextmanager
async def stopped(pids: Iterable[int]) -> AsyncIterator[None]:
    """Processes that do not run meanwhile: of those that listen at one port the kernel may prefer one again and again."""
    processes = [psutil.Process(pid) for pid in pids]

    async def stop() -> bool:
        return all(process.status() == psutil.STATUS_STOPPED for process in processes)

    try:
        for process in processes:
            process.suspend()
        await eventually(stop, BOUND)
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


async def control(bus: Bus) -> dict[str, Any]:
    """What the program at the other end has counted: ``stats``, ``counted``, ``tasks``."""
    answer: dict[str, Any] = await bus.request("control", timeout=BOUND)
    answer["counted"] = Counter(answer["counted"])
    return answer


def marked(mark: str) -> list[psutil.Process]:
    """The processes, also of other parents, that have this ``POLYBUS_MARK`` in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("POLYBUS_MARK") == mark:
                found.append(process)
    return found
