"""`polybus broker`, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from polybus import Bus, connect
from tests.support import BOUND


@contextmanager
def broker(*arguments: str) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "polybus.cli", "broker", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = 3 if "--metrics" in arguments else 2
            yield dict(process.stdout.readline().split() for _ in range(lines)), process
        finally:
            process.kill()


APP = """
from polybus import Bus

bus = Bus()

@bus.handle("echo")
async def echo(body: int) -> int:
    return body
"""
ADDRESSES = ("--clients", "csb+ws://127.0.0.1:0/game", "--servers", "csb+tcp://127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_leaves_in_order(number: signal.Signals) -> None:
    async def use(urls: dict[str, str]) -> None:
        bus = Bus()
        bus.handle("echo")(echo)
        async with connect(urls["servers"], bus=bus), connect(urls["clients"]) as client:
            assert await client.request("echo", 7) == 7

    async def echo(body: int) -> int:
        return body

    with broker(*ADDRESSES, "--metrics", "http://127.0.0.1:0") as (urls, process):
        assert set(urls) == {"clients", "servers", "metrics"}
        anyio.run(use, urls)
        process.send_signal(number)
        assert process.wait(timeout=BOUND) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_serve_connects_to_a_broker(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)

    async def use(url: str) -> None:
        async with connect(url) as client:
            assert await client.request("echo", 7) == 7

    with broker(*ADDRESSES) as (urls, _):
        command = [sys.executable, "-m", "polybus.cli", "serve", "app:bus", urls["servers"] + "&pool=2"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == f"serving {urls['servers']}&pool=2\n"
                anyio.run(use, urls["clients"])
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=BOUND) == 0
                assert process.stderr is not None
                assert process.stderr.read().endswith("INFO polybus: SIGTERM, draining\n")
            finally:
                process.kill()
