"""`python -m bench.cluster`, small: real processes on a real nats-server, each part once."""

import os
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


@pytest.mark.parametrize(
    ("part", "lines"),
    [
        (
            "pool",
            ["pool, handlers that wait 20 ms, 4 at a time, 2 processes", "pool, handlers of 1 ms processor time, 2 processes"],
        ),
        ("fan-out", ["publication to 2 gateways x 20 clients", "the engine's time for it"]),
        ("users", ["request to a user of a node with 1:", "request to a user of a node with 100:", "  each one more"]),
        ("taken", ['"taken", a handler that answers in the turn', '"taken", a handler that waits']),
    ],
)
def test_each_part_of_the_benchmark_of_clusters_measures_and_leaves_no_process_behind(part: str, lines: list[str]) -> None:
    mark = secrets.token_hex(8)
    run = subprocess.run(
        [sys.executable, "-m", "bench.cluster", "--small", part],
        cwd=ROOT,
        env={**os.environ, "POLYBUS_MARK": mark},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    head, *found = run.stdout.splitlines()
    assert head.split() == ["figure", "ratio", "to", "target"]
    for what in lines:
        [line] = [line for line in found if line.startswith(what)]
        assert any(character.isdigit() for character in line.removeprefix(what)), line
    assert marked(mark) == []
