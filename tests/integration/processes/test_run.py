"""`polybus.run` from its start to the last signal, where something does not go as it should."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

import polybus
from polybus import Backoff, Bus, BusError, connect
from polybus._core.bus.bus import parts_of
from tests.support import free_port

from .processes import BOUND, asyncio_and_trio, eventually, loop_of, running  # noqa: F401  # pytest finds the fixture by its name here
from .test_restart import probe

SOON = Backoff(initial=0.02, maximum=0.2)
QUICK = {"close_timeout": 0.2}


async def test_while_a_bus_starts_the_process_lives_but_is_not_ready_and_a_signal_ends_it(anyio_backend: Any) -> None:
    port = free_port()
    run = {"health": f"http://127.0.0.1:{port}", "drain": 600, "delay": 600}
    async with running(lifespan="slow", run=run, **loop_of(anyio_backend)) as server:
        assert (await probe(port, "/livez"), await probe(port, "/readyz")) == (200, 503)
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
        assert "Traceback" not in server.log()


async def test_a_second_signal_ends_the_process_though_its_lifespan_does_not(anyio_backend: Any) -> None:
    async with running(lifespan="stuck", run={}, **loop_of(anyio_backend)) as server:
        server.signal(signal.SIGTERM)
        await eventually(lambda: "draining" in server.log())
        server.signal(signal.SIGTERM)
        assert await server.ended() == 128 + signal.SIGTERM


async def test_the_threads_that_keep_the_process_after_the_drain_are_named_and_a_signal_ends_it(anyio_backend: Any) -> None:
    on_asyncio = anyio_backend[0] == "asyncio"
    async with running(run={"drain": 0.1}, limits=QUICK, **loop_of(anyio_backend)) as server:
        async with connect(server.url, backoff=SOON) as bus:
            reply = bus.request("stuck", timeout=600)
            await bus.request("echo", 1)
            server.signal(signal.SIGTERM)
            with anyio.fail_after(BOUND), pytest.raises(BusError):
                await reply
        says = "the process waits for them" if on_asyncio else "they end with the process"
        await eventually(lambda: f"stuck): {says}" in server.log())
        if on_asyncio:
            server.signal(signal.SIGTERM)
        assert await server.ended() == (-signal.SIGTERM if on_asyncio else 0)


def test_run_ends_with_the_lifespan_of_its_bus_that_has_failed() -> None:
    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(fail, bus)
            yield

    async def fail(bus: Bus) -> None:
        await eventually(lambda: parts_of(bus).links.gates)
        raise LookupError("no database")

    with pytest.raises(ExceptionGroup) as raised:
        polybus.run(Bus(lifespan=lifespan), "ubre+tcp://127.0.0.1:0")
    assert raised.group_contains(LookupError, match="no database")


IMPORTS = "import signal; print('importing', flush=True); signal.pause()"
RUNS = f"""
import polybus
from polybus import running
def resolve(url):
    {IMPORTS}
running.resolve_url = resolve
polybus.run(polybus.Bus(), "ubre+tcp://127.0.0.1:0")
"""


@pytest.mark.parametrize("program", [["-m", "polybus", "serve", "app:bus", "ubre+tcp://127.0.0.1:0"], ["-c", RUNS]])
def test_sigterm_ends_process_1_while_it_imports(program: list[str], tmp_path: Path) -> None:
    """As in a container: for process 1 the kernel drops each signal that has no handler."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of processes here")
    (tmp_path / "app.py").write_text(IMPORTS)
    process = subprocess.Popen([*alone, sys.executable, *program], cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        (first,) = psutil.Process(process.pid).children()
        first.send_signal(signal.SIGTERM)
        assert process.wait(BOUND) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_goes_wrong_at_the_start_is_raised_as_it_is(backend: str) -> None:
    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        if not bus.ready:
            raise ConnectionRefusedError("no database")  # an error of the system keeps its traceback, too
        yield

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit, match=f"cannot listen on .*{port}.*port 0 is a free one") as caught:
            polybus.run(Bus(), f"ubre+tcp://127.0.0.1:{port}", backend=backend)
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(SystemExit, match="cannot listen on .*in use.*port 0 is a free one"):
            polybus.run(Bus(), "ubre+tcp://127.0.0.1:0", health=f"http://127.0.0.1:{port}", backend=backend)
    with pytest.raises(ConnectionRefusedError, match="no database"):
        polybus.run(Bus(lifespan=lifespan), "ubre+tcp://127.0.0.1:0", backend=backend)
    for health in ("127.0.0.1:8081", "https://127.0.0.1:8081", "http://127.0.0.1"):
        with pytest.raises(SystemExit, match="health="):
            polybus.run(Bus(), "ubre+tcp://127.0.0.1:0", health=health, backend=backend)


def test_workers_whose_address_is_in_use_end_with_one_line_and_status_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = tmp_path / "app.py"
        program.write_text(
            "import polybus\n"
            "bus = polybus.Bus(cluster='nats+tcp://127.0.0.1:1/shop')\n"
            f"polybus.run(bus, 'ubre+tcp://127.0.0.1:0', workers=3, health='http://127.0.0.1:{port}')\n"
        )
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot listen on" in done.stderr
    assert str(port) in done.stderr
    assert "port 0 is a free one" in done.stderr
