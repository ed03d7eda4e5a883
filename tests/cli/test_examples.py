"""Every example is run as a user would run it, and has to print what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

PRINTS = {
    "hello.py": {"Hello, Ann"},
    "hello_publish.py": {"server: temperature is at 95.5", "console: [20.5, 21.0, 95.5]"},
    "hello_stream.py": {"client: left at 1000", "server: the stream has ended", "client: 1.5", "client: 4.0"},
}
TOGETHER = ("hello_server.py", "hello_client.py")
CLIENT_PRINTS = [
    "Tank(number=4, litres=42.0)",
    "472.5 litres in all",
    "NotFound: there is no tank 99",
    "BadRequest: the body does not fit",
    "BadReply: ",
    "NoHandler: nobody handles 'tank.paint' here",
]


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PRINTS, *TOGETHER}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_promises(name: str) -> None:
    ended = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.splitlines()) == PRINTS[name]


def test_hello_world_takes_ten_lines() -> None:
    lines = (EXAMPLES / "hello.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 10


def test_the_client_and_the_server_in_two_processes() -> None:
    server_name, client_name = TOGETHER
    command = [sys.executable, str(EXAMPLES / server_name), "ubre+ws://127.0.0.1:0/bus"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[1]
            client = subprocess.run(
                [sys.executable, EXAMPLES / client_name, url], capture_output=True, text=True, timeout=60, check=False
            )
            server.terminate()
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()
    assert (client.returncode, client.stderr) == (0, "")
    lines = client.stdout.splitlines()
    assert len(lines) == len(CLIENT_PRINTS)
    assert all(line.startswith(start) for line, start in zip(lines, CLIENT_PRINTS, strict=True)), lines
