"""`python -m bench.durable`, small: it measures on a real nats-server that keeps, and leaves no process behind."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from bench.systems._helpers import has_nats
from tests.support import BOUND

from .processes import marked

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.native, pytest.mark.skipif(not has_nats(), reason="nats-server is not installed")]


def test_it_measures_each_row_and_leaves_no_process_behind() -> None:
    mark = secrets.token_hex(8)
    run = subprocess.run(
        [sys.executable, "-m", "bench.durable", "--small"],
        cwd=ROOT,
        env={**os.environ, "POLYBUS_MARK": mark},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rows = [re.split(r"\s{2,}", line)[0] for line in run.stdout.splitlines()]
    assert rows == [
        "request between two nodes",
        "stored publication",
        "durable handler",
        "nats-py, stored publication",
        "nats-py, pulling consumer",
    ]
    assert all(re.search(r" [1-9][0-9,]* a second", line) for line in run.stdout.splitlines())
    assert marked(mark) == []
