"""The packages of this tree."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import try_wheels
from tests.support import missing


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel without the module in C and the sdist, built from this tree."""
    if try_wheels.UV is None or find_spec("hatchling") is None:
        missing("needs uv and hatchling: pip install -e '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=try_wheels.ROOT, env={**os.environ, "POLYBUS_SPEEDUPS": "0"}, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built
