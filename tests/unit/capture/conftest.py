"""Recorded traffic."""

from pathlib import Path

import pytest

from .generator import Traffic, traffic


@pytest.fixture(scope="module")
def made() -> Traffic:
    """Some traffic, with two gaps of three frames."""
    return traffic(3_000)


@pytest.fixture
def folder(made: Traffic, tmp_path: Path) -> Path:
    return made.write(tmp_path / "capture", rows=100, segment_batches=7)
