"""A real uvicorn for the tests: in their own event loop, or an example in a separate process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from polybus import Bus
from polybus.fastapi import attach
from tests.loops import ASYNCIO, PARAMS, TRIO, UVLOOP
from tests.support import BOUND

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
POST = {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"127.0.0.1")], "server": ("127.0.0.1", 1)}
"""The scope of a request."""


def listen_options(bus: Bus) -> Any:
    return SimpleNamespace(host=bus._services.running, subprotocol="", origins=(), hosts=(), private=False)


async def read_all(stream: anyio.abc.ByteReceiveStream) -> bytes:
    read = b""
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
        while True:
            read += await stream.receive()
    return read


class Slow:
    """A handler `slow`: that it has begun or was stopped can be waited for; it answers when it is let go."""

    def __init__(self, bus: Bus) -> None:
        self.began, self.let_go, self.stopped = anyio.Event(), anyio.Event(), anyio.Event()
        bus.handle("slow")(self.handle)

    async def handle(self) -> str:
        self.began.set()
        try:
            await self.let_go.wait()
        except anyio.get_cancelled_exc_class():
            self.stopped.set()
            raise
        return "at last"


def echoing(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    return bus


def served(**options: Any) -> tuple[FastAPI, Bus]:
    app, bus = FastAPI(), echoing(**options)
    attach(app, bus)
    return app, bus


@pytest.fixture(scope="module", name="anyio_backend", params=[PARAMS[ASYNCIO], PARAMS[UVLOOP]])
def both_loops(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A module's `anyio_backend`: the event loops that uvicorn runs on."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(scope="module", name="anyio_backend", params=[PARAMS[ASYNCIO], PARAMS[TRIO]])
def both_servers(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A module's `anyio_backend`: uvicorn's event loop, and hypercorn's."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


class OverAsgi(WebSocketsSansIOProtocol):
    """Not uvicorn's own class, so its connections are not adopted."""


@pytest.fixture(name="way", params=[pytest.param("auto", id="adopted"), pytest.param(OverAsgi, id="asgi")])
def both_ways(request: pytest.FixtureRequest) -> Any:
    """``ws=`` of uvicorn: its own, whose connections are taken over, and one whose connections stay with it."""
    return request.param


@asynccontextmanager
async def running(app: Any, **options: Any) -> AsyncIterator[Uvicorn]:
    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, **{"log_level": "critical", "timeout_graceful_shutdown": 1, **options})
    running = Uvicorn(config)
    running.port = sock.getsockname()[1]
    task = asyncio.get_running_loop().create_task(running.serve(sockets=[sock]))
    task.add_done_callback(lambda _: running.up.set())
    try:
        await running.up.wait()
        assert not task.done(), task
        yield running
    finally:
        running.should_exit = True
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        task.result()


class Uvicorn(uvicorn.Server):
    port = 0

    def __init__(self, config: uvicorn.Config) -> None:
        self.up = asyncio.Event()
        self._leave = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:  # uvicorn sets it wherever it finds a reason
        return self._leave.is_set()

    @should_exit.setter
    def should_exit(self, wanted: bool) -> None:
        if wanted:
            self._leave.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._leave.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(2):
            while self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks)
        await self.lifespan.shutdown()


class Program:
    """An application that `polybus.fastapi.run` serves, in a process of its own. It is up when this is made.

    Args:
        path: The program.
        environment: What it gets besides ours; ``PORT="0"`` takes a free one.
    """

    def __init__(self, path: Path, **environment: str) -> None:
        self.site = ""
        self.lines: list[str] = []
        self._up = threading.Event()
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen([sys.executable, str(path)], env=os.environ | environment, **piped)
        threading.Thread(target=self._read, daemon=True).start()
        assert self._up.wait(BOUND) and self.site, self.process.poll()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:  # to its end: nobody else takes what it says of each request
                self.lines.append(line)
                if line.startswith("serving "):
                    self.site = line.split()[1]
                    self._up.set()
        self._up.set()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def program(path: Path, **environment: str) -> AsyncIterator[Program]:
    made = await anyio.to_thread.run_sync(lambda: Program(path, **environment))
    try:
        yield made
    finally:
        made.kill()


def example(name: str, **environment: str) -> AbstractAsyncContextManager[Program]:
    """An example that serves, at a port that it chooses itself unless one is given."""
    return program(EXAMPLES / name / "app.py", **{"PORT": "0", **environment})
