"""``/metrics`` of `polybus.run` and `polybus serve`: of one process, and of several workers."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from polybus import connect
from tests.support import free_port

from .processes import BOUND, Process, eventually, running
from .test_workers import server_is_there  # noqa: F401  # for all tests here

RECEIVED = "polybus_messages_received_total"


async def scraped(port: int) -> dict[str, Metric]:
    def ask() -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=BOUND)

    answer = await anyio.to_thread.run_sync(ask)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = list(text_string_to_metric_families(answer.text))
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def values(families: dict[str, Metric], sample: str, label: str) -> dict[str | None, float]:
    samples = [one for family in families.values() for one in family.samples if one.name == sample]
    return {one.labels.get(label): one.value for one in samples}


@asynccontextmanager
async def workers(port: int, anyio_backend: Any) -> AsyncIterator[Process]:
    """A program with three, all of them ready."""
    run = {"workers": 3, "health": f"http://127.0.0.1:{port}", "metrics": True, "backend": anyio_backend[0]}
    async with running("crew", urls=["ubre+tcp://127.0.0.1:0"], run=run, durations=True) as process:
        yield process


async def all_answer(port: int) -> dict[str, Metric]:
    """A scrape for which all three have answered."""
    found: dict[str, Metric] = {}

    async def there() -> bool:
        found.clear()
        found.update(await scraped(port))
        nodes = values(found, "polybus_nodes", "state")
        return nodes == {"answered": 3, "silent": 0} and values(found, "polybus_workers", "state")["ready"] == 3

    await eventually(there, BOUND)
    return found


async def test_one_scrape_answers_for_all_workers(anyio_backend: Any) -> None:
    port = free_port()
    async with workers(port, anyio_backend) as process:
        before = values(await all_answer(port), RECEIVED, "node")
        async with connect(process.url) as bus:
            pid = await bus.request("pid", timeout=BOUND)
            families = await all_answer(port)
            by_node = values(families, "polybus_handler_duration_seconds_count", "node")
            mine = next(name for name in before if name is not None and name.endswith(f":{pid}"))
            assert by_node == {mine: 1}
        states = {"ready": 3, "not ready": 0, "starts": 0, "silent": 0, "ended": 0}
        assert values(families, "polybus_workers", "state") == states
        assert values(families, "polybus_worker_restarts_total", "state") == {None: 0}
        os.kill(pid, signal.SIGKILL)

        async def restarted() -> bool:
            return values(await scraped(port), "polybus_worker_restarts_total", "state") == {None: 1}

        await eventually(restarted, BOUND)
        assert mine not in values(await all_answer(port), RECEIVED, "node")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import sys
sys.modules["prometheus_client"] = None
import polybus
try:
    polybus.run(polybus.Bus(), "ubre+tcp://127.0.0.1:0", health="http://127.0.0.1:0", metrics=True)
except ImportError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "run(metrics=True) needs prometheus-client: pip install 'polybus[prometheus]'\n"


def test_the_command_has_a_flag_for_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from polybus import Bus\nbus = Bus()\n")
    command = [sys.executable, "-m", "polybus", "serve", "app:bus", "ubre+tcp://127.0.0.1:0", "--metrics"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "for example --health http://127.0.0.1:8081" in ended.stderr
    port = free_port()
    with subprocess.Popen(
        [*command, "--health", f"http://127.0.0.1:{port}"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"serving ")
            page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=BOUND).text
            assert RECEIVED in page and "process_cpu_seconds" in page  # of the program: the library's own
        finally:
            process.terminate()
