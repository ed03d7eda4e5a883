"""A built wheel in an empty environment outside the clone. `make release` tries all of them."""

import sys
from pathlib import Path

import pytest

from scripts import try_wheels


@pytest.mark.timeout(600)
def test_the_pure_wheel_runs_the_programs_of_the_tutorial_with_the_oldest_dependencies(wheel: Path, tmp_path: Path) -> None:
    packages, _ = try_wheels.try_wheel(wheel, sys.executable, "lowest-direct", tmp_path)
    assert packages <= 16


def test_the_sdist_builds_without_a_compiler(dist: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    try_wheels.wheel_without_compiler(sdist, sys.executable, tmp_path)
