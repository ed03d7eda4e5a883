"""The benchmark measures what it says, small, and leaves no process behind."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

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
