"""Running the command: in this process, where that is enough, or as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polybus.cli.app import run

COMMAND = [sys.executable, "-m", "polybus.cli"]

APP = """
from polybus import Bus, Forbidden

bus = Bus()

@bus.handle("greet")
async def greet(name: str) -> str:
    return f"Hello, {name}"

@bus.handle("echo")
async def echo(body: object) -> object:
    return body

@bus.handle(0x00010001)
async def numbered(body: object) -> object:
    return {"numbered": body}

@bus.handle("7")
async def text(body: object) -> object:
    return {"text": body}

@bus.handle("vault")
async def vault() -> None:
    raise Forbidden("not you")

@bus.handle("break")
async def break_down() -> None:
    raise RuntimeError("a secret")
"""


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that has to fail with one line on stderr and nothing on stdout."""
    status = run(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert err.startswith("polybus: ")
    return status, err.removeprefix("polybus: ").strip()


@contextmanager
def serving(
    folder: Path, *options: str, url: str = "ubre+tcp://127.0.0.1:0", app: str = APP
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`polybus serve app:bus` in a process of its own; its URL and the process."""
    (folder / "app.py").write_text(app)
    process = subprocess.Popen(
        [*COMMAND, "serve", "app:bus", url, *options],
        cwd=folder,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        word, _, real = process.stdout.readline().strip().partition(" ")
        assert word == "serving", process.communicate(timeout=60)
        yield real, process
    finally:
        process.kill()
        process.communicate(timeout=60)
