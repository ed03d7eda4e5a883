"""Whoever writes is killed, and everything is there once. `kills.py` does it twenty times."""

from pathlib import Path

import pytest

from tests.unit.capture.generator import traffic

from .kills import check, disturbed

pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(900)]


def test_events_and_pairs_are_there_once_though_driver_and_jvm_were_killed(tmp_path: Path) -> None:
    made = traffic(5_000)
    capture = made.write(tmp_path / "capture", rows=250, segment_batches=8)
    seen = disturbed(capture, tmp_path / "out", kills=2, rows=1250, sink="pipeline")
    assert len(seen) == 2
    assert seen[0] > 0
    assert check(capture, tmp_path / "out", "pipeline") == sum(made.events.values())
