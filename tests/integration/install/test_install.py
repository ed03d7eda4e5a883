"""A built wheel in an empty environment outside the clone. `make release` tries all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import try_wheels


@pytest.mark.timeout(600)
def test_the_pure_wheel_runs_the_programs_of_the_tutorial_with_the_oldest_dependencies(tmp_path: Path) -> None:
    if try_wheels.UV is None or find_spec("hatchling") is None:
        text = "needs uv and hatchling: pip install -e '.[dev]'"
        pytest.fail(text, pytrace=False) if os.environ.get("POLYBUS_CI") else pytest.skip(text)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=try_wheels.ROOT, env={**os.environ, "POLYBUS_SPEEDUPS": "0"}, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    packages, _ = try_wheels.try_wheel(wheel, sys.executable, "lowest-direct", tmp_path)
    assert packages <= 16
