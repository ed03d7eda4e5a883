"""Runs the command: in this process where possible, or as users do."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from polybus import Bus
from polybus.cli.app import run

from .app import make

APP = (Path(__file__).parent / "app.py").read_text()
COMMAND = [sys.executable, "-m", "polybus"]
TCP = "ubre+tcp://127.0.0.1:0"


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that has to fail with one line on stderr and nothing on stdout."""
    status = run(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert err.startswith("polybus: ")
    return status, err.removeprefix("polybus: ").strip()


@contextmanager
def serving(url: str = TCP, **options: Any) -> Iterator[str]:
    """The bus of `app` in a thread of this process; its URL."""

    @asynccontextmanager
    async def served() -> AsyncIterator[str]:
        bus = make()
        bus.relay("news.>")
        async with bus.serve(url, **options) as listener:
            yield listener.url

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(served()) as real:
        yield real


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which has ended when the block is left."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, *arguments], text=True, **pipes | options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def publishing(bus: AbstractAsyncContextManager[Bus], subject: str = "news.today") -> Iterator[None]:
    """Somebody publishes while the block runs: nothing tells from outside that a subscription stands."""

    async def publish() -> None:
        async with bus as publisher:
            while True:
                await publisher.publish(subject, {"n": 1})
                await anyio.sleep(0.01)

    with start_blocking_portal() as portal:
        going_on = portal.start_task_soon(publish)
        yield
        going_on.cancel()


def next_line(process: subprocess.Popen[str]) -> str:
    """What it says next on stdout."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@contextmanager
def serve_process(folder: Path, *options: str, url: str = TCP, app: str = APP) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`polybus serve app:bus` in a process of its own; its URL and the process."""
    (folder / "app.py").write_text(app)
    with started("serve", "app:bus", url, *options, cwd=folder, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
        word, _, real = next_line(process).partition(" ")
        assert word == "serving", process.communicate(timeout=60)
        yield real, process


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def line(self, status: int, *words: str) -> str:
        """Run a command that has to fail with this status and one line on stderr, which is returned."""
        found, text = one_line(self._capsys, *words)
        assert found == status, text
        return text

    def both(self, status: int, *words: str) -> tuple[str, str]:
        """Run a command that has to end with this status; what it says on stdout and stderr."""
        found = run(words)
        out, err = self._capsys.readouterr()
        assert found == status, err
        return out, err

    def err(self, status: int, *words: str) -> str:
        return self.both(status, *words)[1]

    def out(self, *words: str) -> str:
        return self.both(0, *words)[0]

    def json(self, *words: str) -> Any:
        return json.loads(self.out(*words))

    def rows(self, *words: str) -> list[Any]:
        """The lines of JSON on stdout."""
        return [json.loads(line) for line in self.out(*words).splitlines()]
