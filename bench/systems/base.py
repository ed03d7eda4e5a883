"""Interface between a system and the harness: a server, a client and the bytes that light raw clients send to it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from time import perf_counter
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
from attrs import field, frozen

__all__ = [
    "BACKLOG",
    "YIELD_EVERY",
    "Client",
    "Counter",
    "Driver",
    "Laps",
    "Wire",
    "json_text",
    "nats_server",
    "serve_uvicorn",
    "split_address",
    "start",
    "started_nats",
]

BACKLOG = 4096
YIELD_EVERY = 64
"""Publications after which a client yields to the loop if its library has no await there."""
_PR_SET_PDEATHSIG = 1


def json_text(size: int) -> bytes:
    """JSON text of an object, exactly `size` bytes long."""
    start, end = b'{"id":7,"name":"', b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


def split_address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


@frozen
class Laps:
    """Result of a client's run: number of messages, and for serial ones the seconds of each."""

    count: int
    seconds: list[float] = field(factory=list)


class Client(ABC):
    """A connection of a system, with its body prepared.

    By default each request is awaited in one of as many tasks as requests are in flight, as programs use a library.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.published = 0

    @abstractmethod
    async def request(self) -> object:
        """Send the body and wait until it is back."""

    @abstractmethod
    async def publish(self) -> object:
        """Send the body one-way."""

    @abstractmethod
    async def counted(self, total: int) -> int:
        """Number of one-way messages of this connection that the server has counted, out of `total`."""

    async def requests(self, in_flight: int, seconds: float) -> Laps:
        """Keep `in_flight` requests in flight for `seconds`."""
        if in_flight == 1:
            return await self._serial(seconds)
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

    async def publications(self, seconds: float) -> Laps:
        """Publish for `seconds`, as fast as possible, and wait until all have been counted."""
        publish, count = self.publish, 0
        end = perf_counter() + seconds
        while perf_counter() < end:
            await publish()
            count += 1
        self.published += count
        arrived = await self.counted(self.published)
        if arrived != self.published:
            raise RuntimeError(f"{self.published - arrived} of {self.published} messages were lost")
        return Laps(count)


class Counter:
    """Counts publications and wakes waiters for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.wanted = -1
        self.reached = anyio.Event()

    def add(self) -> None:
        self.count += 1
        if self.count == self.wanted:
            self.reached.set()

    async def wait(self, wanted: int) -> int:
        if self.count < wanted:
            self.wanted, self.reached = wanted, anyio.Event()
            with anyio.move_on_after(10):
                await self.reached.wait()
        return self.count


@frozen
class Wire:
    """Bytes of a client without a library for fan-out and idle connections.

    `burst` asks the server to publish ``%d`` times to all subscribers; `path` is a WebSocket's, or empty.
    """

    subscribe: bytes
    burst: bytes
    path: str = ""


class Driver(Protocol):
    """A module of this folder."""

    async def serve(self, options: dict[str, Any], ready: Callable[[str], None]) -> None:
        """Serve until cancelled; calls `ready` with its URL once."""

    def connect(self, options: dict[str, Any], url: str, size: int) -> AbstractAsyncContextManager[Client]:
        """Open a connection."""


async def serve_uvicorn(app: Any, ready: Callable[[int], None]) -> None:
    """Serve an application under uvicorn as `polybus.fastapi.run` configures it; calls `ready` with its port."""
    import uvicorn

    largest = 4 * 1024 * 1024
    config = uvicorn.Config(
        app, ws="websockets-sansio", ws_per_message_deflate=False, ws_max_size=largest, log_level="error", backlog=BACKLOG
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as sock:
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [sock])
            while not server.started:  # noqa: ASYNC110  # uvicorn tells nobody
                await anyio.sleep(0.001)
            ready(sock.getsockname()[1])


# -- additional processes of a server
# --------------------------------------------------------------------------------------------


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(*command: str) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one in any case (Linux)."""
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent
    )


def nats_server() -> str | None:
    """Path of Debian's package, or BENCH_NATS_SERVER."""
    return os.environ.get("BENCH_NATS_SERVER") or shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def started_nats() -> Iterator[str]:
    """Start a separate NATS server; yields its address."""
    path = nats_server()
    assert path is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with start(path, "-a", "127.0.0.1", "-p", str(port)) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
