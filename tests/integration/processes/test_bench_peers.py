"""`python -m bench --peers`: what its tables say, and that every peer that is installed does the work it is measured by."""

import asyncio
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import evolve

from bench import report
from bench.machine import describe
from bench.meter import Meter
from bench.peers import peer_lines
from bench.results import Row, Sample
from bench.runner import Plan, compared, run_workload
from bench.systems import CEILING, MAIN, PEERS, REFERENCE, SYSTEMS
from bench.systems._base import Publisher
from bench.systems._needs import package
from bench.workloads import WORKLOADS
from scripts.python_build import build
from tests.support import BOUND

from .processes import marked

ROOT = Path(__file__).resolve().parents[3]
WEBSOCKET = "ubre-ws@asyncio"
MACHINE = {"python": "CPython", "system": "Linux", "cores": 2, "load": [0.5, 0.25, 0.125], "packages": {"picows": "2"}}

pytestmark = pytest.mark.native

# The one that Node serves puts Node in the place of its process; `test_the_command_...` has it.
HERE = [
    key for key in PEERS if SYSTEMS[key].beside and not SYSTEMS[key].missing and SYSTEMS[key].options.get("server") != "node"
]


def row(
    system: str, *ends: float, workload: str = "W2_64", between: float = 0.0, rate: float = 1.0, others: float = 0.0
) -> Row:
    samples = [Sample(rate=1.0, ratio=rate, ends_of_r=value, between_of_r=between, others=others) for value in ends]
    return Row(workload=workload, system=system, samples=samples)


def tables(*rows: Row) -> tuple[dict[str, str], dict[str, str]]:
    """Both tables, the rest of each line by its system, in the order of the lines."""
    lines = peer_lines(rows, MACHINE, (1.5, 1.0, 0.5), "2026-01-01")
    found: list[dict[str, str]] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| system"):
            found.append({})
        elif line.startswith("|") and not cells[0].startswith("-"):
            found[-1][cells[0]] = " | ".join(cells[1:])
    times, rates = found
    return times, rates


def test_peers_that_are_ahead_come_first_then_ours_the_other_peers_the_limits_and_what_is_not_there() -> None:
    times, _ = tables(
        row(REFERENCE, 1, 1),
        row(CEILING, 0.4),
        row(MAIN, 2.0),
        row(WEBSOCKET, 2.5),
        Row(workload="W2_64", system="grpc@asyncio", missing="grpcio"),
        row("zmq-json@asyncio", 9.0),
        row("socketio@asyncio", 20.0),
        row("picows@asyncio", 1.25),
    )
    assert list(times) == ["picows", "ubre-tcp", "ubre-ws", "zmq-json", "socketio", "F", "R", "grpc"]
    assert times["picows"] == "bytes | **1.25**"
    assert times["zmq-json"] == "JSON | 9.00"
    assert times["grpc"] == "bytes | not installed: grpcio"


def test_a_peer_is_compared_with_ours_over_the_same_kind_of_way() -> None:
    times, rates = tables(row(MAIN, 2.0, rate=0.5), row(WEBSOCKET, 3.0, rate=0.4), row("picows@asyncio", 2.5, rate=0.45))
    assert times["picows"] == "bytes | **2.50**"
    assert rates["picows"] == "bytes | **0.45**"


def test_the_median_of_all_rounds_counts_also_of_those_that_were_disturbed() -> None:
    quiet, disturbed = row(MAIN, 5.0), row(MAIN, 1.0, 2.0, others=1.0)
    times, _ = tables(evolve(quiet, samples=quiet.samples + disturbed.samples))
    assert times["ubre-tcp"] == "JSON | 2.00 (1.00 to 5.00)"


def test_what_a_server_in_between_takes_stands_apart_and_is_not_compared() -> None:
    times, _ = tables(row("nats-native@asyncio", 3.0, between=0.5), row("nats-json@asyncio", 2.75, between=1.5))
    assert times["nats-json"] == "JSON | **2.75** + 1.50"
    assert times["nats-native"] == "JSON | 3.00 + 0.50"


def test_a_peer_that_is_ahead_in_one_workload_alone_is_among_the_first_and_only_that_figure_is_bold() -> None:
    times, _ = tables(
        row(MAIN, 2.0),
        row(MAIN, 2.0, workload="W3_64"),
        row("zmq@asyncio", 3.0),
        row("zmq@asyncio", 1.0, workload="W3_64"),
    )
    assert list(times) == ["zmq", "ubre-tcp"]
    assert times["zmq"] == "bytes | 3.00 | **1.00**"


def test_the_heading_names_the_load_and_whether_the_machine_was_quiet_and_the_rounds_are_enough() -> None:
    quiet = "\n".join(peer_lines([row(MAIN, *[2.0] * 5)], MACHINE, (1.5, 1.0, 0.5), "2026-01-01"))
    assert "Medians of 5 interleaved rounds, and" in quiet
    assert "Load average 0.50 0.25 0.12 before, 1.50 1.00 0.50 after; other programs kept 0.00 cores busy" in quiet
    assert quiet.count("quiet") == 2 and ": quiet" in quiet
    busy = "\n".join(peer_lines([row(MAIN, 2.0, others=0.75)], MACHINE, (1.5, 1.0, 0.5), "2026-01-01"))
    assert "fewer than 5: not to be quoted" in busy
    assert "kept 0.75 cores busy, in 1 of 1 runs more than is quiet: the machine was not quiet" in busy


def test_the_heading_says_of_the_interpreter_how_it_was_built() -> None:
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


def test_what_the_process_of_a_client_has_started_counts_as_the_client() -> None:
    burn = (
        "import sys, time\nsys.stdin.readline()\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None and client.stdout is not None
        before = psutil.Process(client.pid).cpu_times()
        meter = Meter(os.getpid())
        client.stdin.write(b"\n")
        client.stdin.flush()
        client.stdout.readline()
        took = meter.read(1)["client_cpu"]
        client.stdin.close()
    assert took > 0.3 - before.user - before.system - 0.05


@pytest.mark.parametrize("key", HERE)
def test_a_peer_gives_back_what_it_was_asked_and_counts_what_it_was_sent(key: str) -> None:
    system = SYSTEMS[key]
    driver = system.load()

    async def play() -> None:
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(driver.serve(system.options, url.set_result))
        try:
            async with asyncio.timeout(BOUND), driver.connect(system.options, await url, 64) as client:
                assert isinstance(client, Publisher)
                await came_back(client, as_json=system.options.get("body") == "json")
                await some(lambda: client.requests(64, 0.01))
                await some(lambda: client.publications(0.01))
                await some(lambda: client.publications(0.01))
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    asyncio.run(play())


async def some(measure: Callable[[], Awaitable[Any]]) -> None:
    """Measure until there is something: on a busy machine nothing may come back in the time of one measurement."""
    while (await measure()).count == 0:
        pass


async def came_back(client: Any, *, as_json: bool) -> None:
    """Where the program that asks is Python, the body itself is compared."""
    answer = await client.request()
    if hasattr(client, "process"):
        assert answer.count == 1
        return
    body = getattr(answer, "data", getattr(answer, "body", answer))
    sent = getattr(client, "value", client.body) if as_json else client.body
    assert body == sent


def test_the_command_prints_both_tables_and_leaves_no_process_behind() -> None:
    mark = secrets.token_hex(8)
    systems = ["websockets-json@asyncio", "npm-ubre-both@asyncio", "picows-json@asyncio"]
    options = ["--rounds", "1", "--seconds", "0.5", "--only", "W2_64", "--systems", ",".join(systems)]
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--peers", *options],
        cwd=ROOT,
        env={**os.environ, "POLYBUS_MARK": mark},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for key in systems:
        lines = [line for line in run.stdout.splitlines() if line.startswith(f"| {key.removesuffix('@asyncio')} ")]
        assert len(lines) == 2, run.stdout
        missing = SYSTEMS[key].missing
        for line in lines:
            assert f"not installed: {missing}" in line if missing else re.search(r"JSON +\| \d+(\.\d+)? ", line), line
    assert marked(mark) == []
