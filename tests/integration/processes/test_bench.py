"""The benchmark measures what it says, small, and leaves no process behind."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from bench.results import Floor, Row, Sample
from bench.runner import compared
from tests.support import BOUND

from .processes import marked

ROOT = Path(__file__).resolve().parents[3]
SYSTEMS = "ubre-uvicorn@uvloop,csb-broker@asyncio"

pytestmark = pytest.mark.native


def test_a_run_measures_each_system_and_leaves_no_process_behind() -> None:
    mark = secrets.token_hex(8)
    command = [sys.executable, "-m", "bench", "--rounds", "1", "--seconds", "0.2", "--only", "one-way", "--systems", SYSTEMS]
    environment = {**os.environ, "POLYBUS_MARK": mark}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=BOUND, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    for system in ("R@asyncio", *SYSTEMS.split(",")):
        figures = re.findall(rf"^\| {system} \| ([1-9][0-9,]*) \| \**[0-9.]+ ?", run.stdout, re.M)
        assert len(figures) == 1, run.stdout
    assert marked(mark) == []


def test_ratios_are_to_the_raw_peer_of_the_same_moment() -> None:
    near = [Sample(rate=10.0, client_us=1.0, server_us=2.0), Sample(rate=10.0, client_us=2.0, server_us=3.0)]
    sample = compared(Sample(rate=5.0, client_us=5.0, server_us=7.0, between_us=8.0), near)
    assert (sample.ends_of_r, sample.between_of_r, sample.ratio) == (3.0, 2.0, 0.5)


def test_a_bound_is_held_against_the_other_system_of_the_same_run() -> None:
    rows = [Row(workload="64", system=name, samples=[Sample(client_us=us)]) for name, us in (("ours", 30.0), ("limit", 5.0))]
    bound = Floor(workload="64", system="ours", figure="ends_us", at_most=5.5, beside="limit")
    assert (bound.value(rows), bound.holds(6.0), bound.holds(5.0)) == (6.0, False, True)
    assert bound.value(rows[:1]) is None
