"""`polybus.fastapi.run`: what it says, what it takes, and what it sets up in uvicorn."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import polybus.sync
from polybus import Bus, Limits
from polybus.fastapi import attach, run
from polybus.fastapi._server import DrainingServer

PROGRAM = """
from fastapi import FastAPI
from polybus import Bus, Limits
from polybus.fastapi import attach, run

app, bus = FastAPI(), Bus(limits=Limits(message=3_000_000, ping_interval=5, ping_timeout=4))
attach(app, bus)

@bus.handle("size")
async def size(body: str) -> int:
    return len(body)

@app.get("/")
async def page() -> str:
    return "here"

if __name__ == "__main__":
    run({app}, port={port}, log_level="warning")
"""


def started(folder: Path, app: str, port: int = 0) -> subprocess.Popen[str]:
    (folder / "site_of_test.py").write_text(PROGRAM.replace("{app}", app).replace("{port}", str(port)))
    return subprocess.Popen([sys.executable, "site_of_test.py"], cwd=folder, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("app", ["app", "'site_of_test:app'"], ids=["object", "import string"])
def test_it_says_where_it_serves_and_takes_frames_as_large_as_the_bus_does(tmp_path: Path, app: str) -> None:
    with started(tmp_path, app) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("serving ").strip()
            assert url.startswith("http://127.0.0.1:")
            assert httpx.get(url).json() == "here"
            with polybus.sync.connect(f"ubre+ws{url.removeprefix('http')}/bus", limits=Limits(message=3_000_000)) as bus:
                assert bus.request("size", "x" * 2_500_000) == 2_500_000
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_port_that_is_taken_ends_it_with_status_3(tmp_path: Path) -> None:
    with started(tmp_path, "app") as first:
        try:
            assert first.stdout is not None
            port = int(first.stdout.readline().rpartition(":")[2])
            with started(tmp_path, "app", port) as second:
                assert second.wait(60) == 3
        finally:
            first.kill()


def test_reloading_is_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match="uvicorn --reload"):
        run(FastAPI(), reload=True)


def test_several_workers_want_to_be_told_where_the_application_is() -> None:
    with pytest.raises(TypeError, match=r"run\('module:app', workers=2\)"):
        run(FastAPI(), workers=2)


@pytest.mark.parametrize(("workers", "kind"), [(0, ValueError), (1.5, TypeError)])
def test_a_number_of_workers_that_cannot_be_is_told(workers: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"workers={workers}"):
        run("app:app", workers=workers)


def test_a_drain_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="drain=inf: a finite number of seconds"):
        run(FastAPI(), drain=float("inf"))


def test_options_of_uvicorn_are_its_own_and_win() -> None:
    app = FastAPI()
    attach(app, Bus())
    server = DrainingServer(1.0, {"app": app, "ws_ping_interval": 7.0, "ws_max_size": 5})
    assert (server.config.ws_ping_interval, server.config.ws_max_size) == (7.0, 5)
    with pytest.raises(TypeError, match="no_such_option"):
        run(app, no_such_option=1)


def test_without_uvicorn_it_says_what_to_install() -> None:
    script = """
import sys
sys.modules["uvicorn"] = None
from polybus.fastapi import run
try:
    run(None)
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'polybus[fastapi]'" in done.stdout
