"""What a system needs that not every machine has: packages of Python's and npm's, and programs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from attrs import frozen

from ._helpers import nats_server

__all__ = [
    "NATS_PY",
    "NATS_SERVER",
    "NODE",
    "NODE_FOLDER",
    "NPM_UBRE",
    "NPM_WS",
    "Need",
    "package",
]

# `make peers` installs there.
NODE_FOLDER = Path(__file__).parents[2] / "tests" / "integration" / "interop" / "node"


@frozen
class Need:
    """One of them; `version` is empty where it is not installed."""

    name: str
    find: Callable[[], str]

    @property
    def version(self) -> str:
        return self.find()


def package(name: str) -> Need:
    """A distribution of Python's."""

    def find() -> str:
        try:
            return version_of(name)
        except PackageNotFoundError:
            return ""

    return Need(name, find)


def _npm(name: str) -> Need:
    def find() -> str:
        try:
            return str(json.loads((NODE_FOLDER / "node_modules" / name / "package.json").read_bytes())["version"])
        except OSError:
            return ""

    return Need(f"npm {name}", find)


def _program(name: str, find: Callable[[], str | None]) -> Need:
    def version() -> str:
        path = find()
        if path is None:
            return ""
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
        words = run.stdout.split()
        return words[-1].removeprefix("v") if words else "of no version"

    return Need(name, version)


NATS_PY = package("nats-py")
NATS_SERVER = _program("nats-server", nats_server)
NODE = _program("node", lambda: shutil.which("node"))
NPM_UBRE, NPM_WS = _npm("ubre"), _npm("ws")
