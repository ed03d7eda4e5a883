"""The wheel of this tree, and where it cannot be built."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import try_wheels


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without the module in C, built from this tree."""
    if try_wheels.UV is None or find_spec("hatchling") is None:
        text = "needs uv and hatchling: pip install -e '.[dev]'"
        pytest.fail(text, pytrace=False) if os.environ.get("POLYBUS_CI") else pytest.skip(text)
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=try_wheels.ROOT, env={**os.environ, "POLYBUS_SPEEDUPS": "0"}, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built
