"""Every example is run as a user would run it, and has to print what it promises."""

import configparser
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import free_port

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"

PRINTS = {
    "hello.py": {"Hello, Ann"},
    "hello_publish.py": {"server: temperature is at 95.5", "console: [20.5, 21.0, 95.5]"},
    "hello_stream.py": {"client: left at 1000", "server: the stream has ended", "client: 1.5", "client: 4.0"},
}
PRINTS["errai_service.py"] = {
    "the server offers Greeter, com.acme.client.Warehouse:RPC",
    "Greeter: Hello, Ann",
    'find(7): {"^EncodedType": "com.acme.client.Article", "^ObjectID": "1", "number": 7, "name": "paint", "price": 12.5}',
    "find(8): there is no article 8",
    "in Python: Article(number=7, name='paint', price=12.5)",
}
PRINTS["gateway.py"] = {"in the tunnel: plant 7 starts with full power", "over the bridge: alarm.pressure.high {'bar': 12}"}
PRINTS["umessage.py"] = {
    "done",
    "the lights of the vehicle: {'on': True}",
    "door.opened {'door': 2} from //vehicle7/10AB/3/80CD",
    "no: NOT_FOUND ('UpdateDoor'): there is no door 7",
}
PRINTS["generations.py"] = {
    "the vehicle is asked as CS5 by //gateway/bridge/1/rpc.response",
    "the lights of the vehicle: {'on': True}",
    "the phone is asked as CS6 by //gateway/10AB/3/0",
    "the phone says True",
    "done",
    "door.opened {'door': 2} CS3 //gateway/10AB/3/80CD",
    "no: NOT_FOUND no_door there is no door 7",
}
PRINTS["dialects.py"] = {
    "the phone asks the vehicle: door 2 is open",
    "the sensor hears the vehicle: door.opened {'door': 2}",
    "the phone hears the sensor: 21.5 from //sensor/1/1/8001",
    "passed on: 4",
}
PRINTS["recording.py"] = {
    "not sold: 1 apple",
    "not sold: 9 pear",
    'recorded: {"article":"apple","pieces":1,"card_token":"*********"} FAILED_PRECONDITION only 0 left',
    'recorded: {"article":"pear","pieces":9,"card_token":"*********"} FAILED_PRECONDITION only 5 left',
}
PRINTS["logs.py"] = {
    "Line(level='WARNING', text='the oven is at 95 degrees')",
    "Line(level='ERROR', text='the oven is on fire')",
}
PRINTS["lobby.py"] = {
    *(f"{name} at table 1 of east: Bob wins with AC" for name in ("Ann", "Bob")),
    *(f"{name} at table 1 of west: Dee wins with AC" for name in ("Cid", "Dee")),
    "4 players, 2 servers",
    *(f"{name} at table 2 of west: Bob wins with AC" for name in ("Ann", "Bob")),
    "east has closed: 1 server",
}
TOGETHER = ("hello_server.py", "hello_client.py")
TOOL = "tool.py"
CLIENT_PRINTS = [
    "Tank(number=4, litres=42.0)",
    "472.5 litres in all",
    "NotFound: there is no tank 99",
    "BadRequest: invalid body",
    "BadReply: ",
    "NoHandler: no handler for 'tank.paint' here",
]


ELSEWHERE = {"analyse_job.py"}
"""Needs a master with workers: tests/integration/spark runs it through spark-submit."""


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PRINTS, *TOGETHER, TOOL, *ELSEWHERE}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_promises(name: str) -> None:
    ended = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.splitlines()) == PRINTS[name]


def test_hello_world_takes_ten_lines() -> None:
    lines = (EXAMPLES / "hello.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 10


def test_every_example_is_in_the_index() -> None:
    index = (EXAMPLES / "README.md").read_text()
    named = set(re.findall(r"\]\(([\w.]+)/?\)", index))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.name not in ("README.md", "__pycache__")}


@contextmanager
def server(name: str, *urls: str, logs: bool = False, **environment: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A serving example in a process of its own; the URL that it prints, or logs, and the process."""
    path = EXAMPLES / name
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-u", str(path), *urls]
    process = subprocess.Popen(command, cwd=path.parent, env=os.environ | environment, **piped)
    try:
        said = process.stderr if logs else process.stdout
        assert said is not None
        url = next(line.rpartition("serving ")[2].strip() for line in said if "serving " in line)
        yield url, process
    finally:
        process.kill()
        process.communicate(timeout=60)


def run_example(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = EXAMPLES / name
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=60, check=False)


def test_the_client_and_the_server_in_two_processes() -> None:
    server_name, client_name = TOGETHER
    with server(server_name, "ubre+ws://127.0.0.1:0/bus") as (url, process):
        client = run_example(client_name, url)
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert (client.returncode, client.stderr) == (0, "")
    lines = client.stdout.splitlines()
    assert len(lines) == len(CLIENT_PRINTS)
    assert all(line.startswith(start) for line, start in zip(lines, CLIENT_PRINTS, strict=True)), lines


def test_a_parent_asks_its_helpers_over_standard_streams_and_over_a_pipe() -> None:
    ended = run_example("processes/parent.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "streams: 42, 400000",
        "the child has left with status 0",
        "line by line: 42",
        "killed: the other end has closed its side",
        "doubling 21",
        "pipe: 42, 400000",
        "the helper has left with status 0",
    ]
    assert ended.stderr == "the link to ubre+port://process is lost for good: the other end has closed its side\n"


def test_the_tool_prints_answers_and_tells_errors_in_one_line() -> None:
    with server("hello_server.py", "ubre+tcp://127.0.0.1:0") as (url, _):
        got = run_example(TOOL, url, "get", "4")
        assert (got.returncode, got.stdout, got.stderr) == (0, "tank 4: 42.0 l\n", "")
        assert run_example(TOOL, url, "sum").stdout == "472.5 l in 10 tanks\n"
        refused = run_example(TOOL, url, "get", "99")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1 and "there is no tank 99" in refused.stderr
    misspelt = run_example(TOOL, "nonsense", "sum")
    assert misspelt.returncode == 2 and "tool.py: error: 'nonsense' is not a bus URL" in misspelt.stderr


def test_a_program_for_notifications_says_in_one_line_that_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAIT_SECONDS", "0")
    site = f"http://127.0.0.1:{free_port()}"
    for url in (site, "nonsense"):
        ended = run_example("notifications/client.py", url, "ann")
        assert ended.returncode == 1
        assert ended.stderr.startswith("client: ") and ended.stderr.count("\n") == 1


def test_two_services_with_one_contract() -> None:
    with server("services/stock.py", "ubre+tcp://127.0.0.1:0") as (url, _):
        shop = run_example("services/shop.py", url)
    assert (shop.returncode, shop.stderr) == (0, "")
    assert sorted(shop.stdout.splitlines()) == sorted(
        [
            "Receipt(number=1, customer='Ann', left=90)",
            "shop: order more nuts, 1 left",
            "Receipt(number=2, customer='Bob', left=1)",
            "Conflict: 1 of 2 nuts are left",
            "NotFound: there are no screws",
        ]
    )


def test_the_service_answers_what_runs_when_it_is_told_to_end() -> None:
    with server("service/service.py", "ubre+tcp://127.0.0.1:0", logs=True, SECONDS_OF_WORK="0.5") as (url, process):
        command = [sys.executable, "-m", "polybus", "request", url, "report", '"Monday"']
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert process.stdout is not None
            assert process.stdout.readline() == "opening the archive\n"
            assert process.stdout.readline() == "a report is asked for\n"
            process.send_signal(signal.SIGTERM)
            answer = client.communicate(timeout=60)[0]
        out, err = process.communicate(timeout=60)
    assert (client.returncode, answer) == (0, '"Monday: all is well"\n')
    assert (process.returncode, out) == (0, "closing the archive: the last report has been given\n")
    assert "draining" in err


def test_the_unit_and_the_manifest_leave_time_for_the_drain() -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(EXAMPLES / "service" / "report.service")
    service = unit["Service"]
    drain = float(re.findall(r"DRAIN=(\d+)", service["Environment"])[0])
    assert float(service["TimeoutStopSec"]) > drain
    manifest = (EXAMPLES / "service" / "kubernetes.yaml").read_text()
    times = {name: float(value) for name, value in re.findall(r'name: (DELAY|DRAIN), value: "(\d+)"', manifest)}
    grace = re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest)
    assert float(grace[0]) > times["DELAY"] + times["DRAIN"]
