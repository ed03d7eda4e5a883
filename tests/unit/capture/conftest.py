"""Recordings are written by a process on asyncio and by a thread on the other loops, so that each test has both of them.

The few that are marked `apart` have the process on every loop. A process takes half a second to begin.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .generator import Traffic, traffic


@pytest.fixture(autouse=True)
def _written_by_a_thread_on_other_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    callspec = getattr(request.node, "callspec", None)
    if request.node.get_closest_marker("apart") is not None:
        return
    loop, options = ("asyncio", {}) if callspec is None else callspec.params.get("anyio_backend", ("asyncio", {}))
    if loop != "asyncio" or options.get("use_uvloop"):
        monkeypatch.setattr("polybus.capture.record.recorder.possible", lambda: False)


@pytest.fixture(scope="module")
def made() -> Traffic:
    """Some traffic, with two gaps of three frames."""
    return traffic(3_000)


@pytest.fixture
def folder(made: Traffic, tmp_path: Path) -> Path:
    """It as a capture of several segments."""
    return made.write(tmp_path / "capture", rows=100, segment_batches=7)
