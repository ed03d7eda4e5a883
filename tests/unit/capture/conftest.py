"""Recordings are written by a thread, but where a test asks for the process, which takes half a second to begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from polybus.capture.interpreter import possible

from .generator import Traffic, traffic


@pytest.fixture(autouse=True)
def by_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings of this test are written by a thread, as where there are no processes."""
    monkeypatch.setattr("polybus.capture.record.recorder.possible", lambda: False)


@pytest.fixture
def by_process(by_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings of this test are written as usual: by a process."""
    monkeypatch.setattr("polybus.capture.record.recorder.possible", possible)


@pytest.fixture(scope="module")
def made() -> Traffic:
    """Some traffic, with two gaps of three frames."""
    return traffic(3_000)


@pytest.fixture
def folder(made: Traffic, tmp_path: Path) -> Path:
    """It as a capture of several segments."""
    return made.write(tmp_path / "capture", rows=100, segment_batches=7)
