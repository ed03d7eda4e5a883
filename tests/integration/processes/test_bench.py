"""The benchmarks measure what they say, small, and leave no process behind."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from bench.results import Sample
from bench.runner import compared
from bench.systems._helpers import has_nats
from tests.integration.web.browser import missing
from tests.support import BOUND

from .processes import marked

ROOT = Path(__file__).resolve().parents[3]
PEERS = ["--peers", "--rounds", "1", "--seconds", "0.5", "--only", "W2_64", "--systems", "websockets-json@asyncio"]

pytestmark = pytest.mark.native


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["bench", *PEERS], [r"\| websockets-json .*JSON +\| \d+(\.\d+)? "]),
        (["bench.cluster", "--small", "users"], ["request to a user of a node with 1: .*[1-9]", "  each one more: .*[1-9]"]),
        (
            ["bench.durable", "--small"],
            [
                f"{what}  .* [1-9][0-9,]* a second"
                for what in ("request between two nodes", "stored publication", "durable handler", "nats-py, pulling consumer")
            ],
        ),
    ],
    ids=lambda value: value[0] if value[0].startswith("bench") else "",
)
def test_a_benchmark_measures_and_leaves_no_process_behind(arguments: list[str], lines: list[str]) -> None:
    if not has_nats() and arguments[0] != "bench":
        missing("nats-server is not installed: scripts/debian-packages.sh nats")
    mark = secrets.token_hex(8)
    command = [sys.executable, "-m", *arguments]
    environment = {**os.environ, "POLYBUS_MARK": mark}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=BOUND, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    for line in lines:
        assert re.search(f"^{line}", run.stdout, re.M), run.stdout
    assert marked(mark) == []


def test_ratios_are_to_the_raw_peer_of_the_same_moment() -> None:
    near = [Sample(rate=10.0, client_us=1.0, server_us=2.0), Sample(rate=10.0, client_us=2.0, server_us=3.0)]
    sample = compared(Sample(rate=5.0, client_us=5.0, server_us=7.0, between_us=8.0), near)
    assert (sample.ends_of_r, sample.between_of_r, sample.cpu_ratio, sample.ratio) == (3.0, 2.0, 0.2, 0.5)
