"""`polybus.fastapi.run` with several workers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest

from polybus import LocalProtocolError, connect
from polybus.fastapi import run
from tests.integration.processes.processes import stopped
from tests.integration.processes.test_workers import server_is_there  # noqa: F401  # for all tests here
from tests.support import BOUND, until

ROOT = str(Path(__file__).parents[3])
APP = """
import os
from fastapi import FastAPI
from polybus.fastapi import attach
from tests.integration.processes.crew import make_bus

app, bus = FastAPI(), make_bus()
attach(app, bus)

@app.get("/pid")
async def pid() -> int:
    return os.getpid()
"""
MAIN = """
import logging
from polybus.fastapi import run

if __name__ == "__main__":
    logging.basicConfig()
    run("app_of_crew:app", workers={workers}, log_level="warning", {options})
"""


@contextmanager
def serving(folder: Path, options: str, *, workers: int = 2, app: str = APP) -> Iterator[subprocess.Popen[str]]:
    """A program whose application two workers, or more, serve, and nothing of it afterwards."""
    (folder / "app_of_crew.py").write_text(app)
    (folder / "main.py").write_text(MAIN.replace("{options}", options).replace("{workers}", str(workers)))
    environment = {**os.environ, "PYTHONPATH": ROOT}
    environment.pop("POLYBUS_CLUSTER", None)
    process = subprocess.Popen([sys.executable, "main.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        psutil.wait_procs(children, timeout=BOUND)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().removeprefix("serving ").strip()


async def test_both_workers_answer_over_http_and_over_the_bus_and_end_with_their_parent(tmp_path: Path) -> None:
    with serving(tmp_path, "port=0") as process:
        url = await anyio.to_thread.run_sync(said, process)
        assert not url.endswith(":0")
        workers = set[int]()
        for _ in range(2):
            async with stopped(workers), httpx.AsyncClient(verify=False) as http:  # it would read all certificates first
                workers.add((await http.get(f"{url}/pid", timeout=BOUND)).json())
        assert len(workers) == 2
        async with connect(f"ubre+ws{url.removeprefix('http')}/bus") as bus:
            assert await bus.request("pid") in workers
            assert str(await bus.request("cluster")).startswith("nats+tcp://")
        children = psutil.Process(process.pid).children()
        assert len(children) == 3
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait, BOUND) == 0
        assert psutil.wait_procs(children, timeout=BOUND)[1] == []


def test_at_a_unix_socket_too(tmp_path: Path) -> None:
    with serving(tmp_path, "uds='web.sock'") as process:
        path = tmp_path / "web.sock"
        until(lambda: path.is_socket() or process.poll() is not None)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as http:
            assert http.get("http://here/pid", timeout=BOUND).json() != process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 0
        assert not path.exists()


def test_an_application_whose_bus_has_no_cluster_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = "from fastapi import FastAPI\nfrom polybus import Bus\nfrom polybus.fastapi import attach\n"
    (tmp_path / "app_without_cluster.py").write_text(f"{app}app = FastAPI()\nattach(app, Bus())\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LocalProtocolError, match=r"workers=2.*Bus\(cluster='auto'\)"):
        run("app_without_cluster:app", workers=2)
