"""Several processes that serve an application whose bus is alone: one of them says so, whatever the server."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import psutil
import pytest
from starlette.applications import Starlette

from polybus import Bus
from polybus.fastapi import _attachment, attach
from polybus.testing import NatsEngine
from tests.support import BOUND, free_port, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="addresses have names in the kernel on Linux alone")

ROOT = str(Path(__file__).parents[3])
APP = """
import logging
logging.basicConfig(level=logging.DEBUG, format="LOG %(process)d %(levelname)s %(message)s")
for name in ("asyncio", "hypercorn", "watchfiles"):
    logging.getLogger(name).setLevel(logging.WARNING)
from starlette.applications import Starlette
from polybus import Bus
from polybus.fastapi import _attachment, attach

app = Starlette()
attach(app, Bus(cluster="auto"))
"""
SERVERS = {
    "uvicorn": ["uvicorn", "app_alone:app", "--port", "{port}", "--workers", "{workers}"],
    "uvicorn that reloads": ["uvicorn", "app_alone:app", "--port", "{port}", "--reload"],
    "hypercorn": ["hypercorn", "app_alone:app", "--bind", "127.0.0.1:{port}", "--workers", "{workers}"],
}


class Served:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self, level: str, text: str) -> list[tuple[int, str]]:
        """The lines of one level with a text: who has logged it, and the line."""
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        found = [line.split(" ", 3) for line in lines if line.startswith("LOG ") and text in line]
        return [(int(process), line) for _, process, at, line in found if at == level]


@contextmanager
def served(folder: Path, server: str, workers: int, port: int) -> Iterator[Served]:
    (folder / "app_alone.py").write_text(APP)
    command = [sys.executable, "-m", *(word.format(port=port, workers=workers) for word in SERVERS[server])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), f"{ROOT}/sdk"))}
    environment.pop("POLYBUS_CLUSTER", None)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield Served(folder)
        finally:
            children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            process.wait(BOUND)
            psutil.wait_procs(children, timeout=BOUND)


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_of_several_workers_with_a_bus_each_one_warns_once_and_names_the_remedy(tmp_path: Path, server: str) -> None:
    port = free_port()
    with served(tmp_path, server, 3, port) as workers:
        until(lambda: len(workers.lines("INFO", "POLYBUS_CLUSTER is not set, so this bus is a single process")) == 3)
        until(lambda: len(workers.lines("WARNING", "one of several") + workers.lines("DEBUG", "one of several")) == 2)
        ((warned, line),) = workers.lines("WARNING", "one of several")
        ((first, _),) = workers.lines("DEBUG", "no other process serves at")
        assert f"one of several at 127.0.0.1:{port} (process {first} is another)" in line
        assert "Bus(cluster='auto')" in line
        assert "POLYBUS_CLUSTER" in line
        assert warned != first


def test_one_worker_says_nothing_also_when_it_is_replaced(tmp_path: Path) -> None:
    with served(tmp_path, "uvicorn that reloads", 1, free_port()) as worker:
        until(lambda: len(worker.lines("DEBUG", "no other process serves at")) == 1)

        def noticed() -> bool:
            """Change the file until uvicorn has seen it: a change before its first look is none."""
            os.utime(tmp_path / "app_alone.py")
            return "detected changes in" in (tmp_path / "log").read_text(errors="replace")

        until(noticed)
        until(lambda: len(worker.lines("DEBUG", "no other process serves at")) >= 2)
    assert worker.lines("WARNING", "one of several") == []


@pytest.mark.parametrize("alone", [True, False])
async def test_an_address_is_taken_as_long_as_a_bus_is_alone_there_and_by_no_node_of_a_cluster(alone: bool) -> None:
    async with NatsEngine() as engine:
        bus = Bus(cluster=None if alone else engine.url)
        app, beside = Starlette(), Starlette()
        attach(app, bus)
        attach(beside, Bus())
        with socket.create_server(("127.0.0.1", 0)) as listening:
            host, port = listening.getsockname()
            name = _attachment._addresses()[f"{host}:{port}"]

            def free() -> bool:
                with socket.socket(socket.AF_UNIX) as other:
                    try:
                        other.bind(name)
                    except OSError:
                        return False
                    return True

            async with app.router.lifespan_context(app):
                await anyio.wait_all_tasks_blocked()
                assert free() is not alone
                async with beside.router.lifespan_context(beside):  # of the same process
                    await anyio.wait_all_tasks_blocked()
            assert free()
