"""The benchmarks measure what they say, small, and leave no process behind; and what the tables of `bench --peers` say."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

from bench import report
from bench.machine import describe
from bench.peers import peer_lines
from bench.results import Row, Sample
from bench.runner import Plan, compared, run_workload
from bench.systems import CEILING, MAIN, REFERENCE, SYSTEMS
from bench.systems._helpers import has_nats
from bench.systems._needs import package
from bench.workloads import WORKLOADS
from scripts.python_build import build
from tests.integration.web.browser import missing
from tests.support import BOUND

from .processes import marked

ROOT = Path(__file__).resolve().parents[3]
WEBSOCKET = "ubre-ws@asyncio"
MACHINE = {"python": "CPython", "system": "Linux", "cores": 2, "load": [0.5, 0.25, 0.125], "packages": {"picows": "2"}}
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


def row(
    system: str, *ends: float, workload: str = "W2_64", between: float = 0.0, rate: float = 1.0, others: float = 0.0
) -> Row:
    samples = [Sample(rate=1.0, ratio=rate, ends_of_r=value, between_of_r=between, others=others) for value in ends]
    return Row(workload=workload, system=system, samples=samples)


def times_of(*rows: Row) -> dict[str, str]:
    """The first table, the rest of each line by its system, in the order of the lines."""
    found: list[dict[str, str]] = []
    for line in peer_lines(rows, MACHINE, (1.5, 1.0, 0.5), "2026-01-01"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| system"):
            found.append({})
        elif line.startswith("|") and not cells[0].startswith("-"):
            found[-1][cells[0]] = " | ".join(cells[1:])
    return found[0]


def test_peers_that_are_ahead_come_first_then_ours_the_other_peers_the_limits_and_what_is_not_there() -> None:
    quiet, disturbed = row(MAIN, 5.0), row(MAIN, 1.0, 2.0, others=1.0)  # the median is of all
    times = times_of(
        row(REFERENCE, 1, 1),
        row(CEILING, 0.4),
        evolve(quiet, samples=quiet.samples + disturbed.samples),
        row(WEBSOCKET, 2.5),
        Row(workload="W2_64", system="grpc@asyncio", missing="grpcio"),
        row("zmq-json@asyncio", 9.0),
        row("nats-native@asyncio", 3.0, between=0.5),
        row("nats-json@asyncio", 2.75, between=1.5),  # what a server in between takes is not compared
        row("picows@asyncio", 1.25),
    )
    assert list(times) == ["picows", "nats-json", "ubre-tcp", "ubre-ws", "nats-native", "zmq-json", "F", "R", "grpc"]
    assert times["picows"] == "bytes | **1.25**"
    assert times["zmq-json"] == "JSON | 9.00"
    assert times["ubre-tcp"] == "JSON | 2.00 (1.00 to 5.00)"
    assert (times["nats-json"], times["nats-native"]) == ("JSON | **2.75** + 1.50", "JSON | 3.00 + 0.50")
    assert times["grpc"] == "bytes | not installed: grpcio"


def test_the_heading_names_the_interpreter_the_load_and_whether_the_machine_was_quiet_and_the_rounds_are_enough() -> None:
    quiet = "\n".join(peer_lines([row(MAIN, *[2.0] * 5)], MACHINE, (1.5, 1.0, 0.5), "2026-01-01"))
    assert "Medians of 5 interleaved rounds, and" in quiet
    assert "Load average 0.50 0.25 0.12 before, 1.50 1.00 0.50 after; other programs kept 0.00 cores busy" in quiet
    busy = "\n".join(peer_lines([row(MAIN, 2.0, others=0.75)], MACHINE, (1.5, 1.0, 0.5), "2026-01-01"))
    assert "fewer than 5: not to be quoted" in busy
    assert "kept 0.75 cores busy, in 1 of 1 runs more than is quiet: the machine was not quiet" in busy
    assert describe()["python"].endswith(build())


def test_ratios_are_to_the_raw_peer_of_the_same_moment() -> None:
    near = [Sample(rate=10.0, client_us=1.0, server_us=2.0), Sample(rate=10.0, client_us=2.0, server_us=3.0)]
    sample = compared(Sample(rate=5.0, client_us=5.0, server_us=7.0, between_us=8.0), near)
    assert (sample.ends_of_r, sample.between_of_r, sample.cpu_ratio, sample.ratio) == (3.0, 2.0, 0.2, 0.5)


def test_a_system_that_is_not_installed_is_a_row_that_says_so_and_no_error() -> None:
    absent = evolve(SYSTEMS[MAIN], needs=(package("attrs"), package("polybus-has-no-such-peer")))
    [found] = run_workload(WORKLOADS["W5"], [absent], Plan(), lambda _: None)
    assert (found.missing, found.error, found.measured) == ("polybus-has-no-such-peer", "", False)
    lines = report.workload_lines(WORKLOADS["W5"], [found])
    assert lines[-1] == f"  {MAIN}: not installed: polybus-has-no-such-peer"
