"""What a reviewer's hands have found: closed streams, passwords, other protocols, words that mislead."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from polybus.cli.app import run
from polybus.errors import ConnectFailed
from tests.support import free_port
from tests.unit.cli.support import COMMAND, one_line, serving


def test_nobody_behind_http_is_told_as_everywhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    status, text = one_line(capsys, "request", f"jrep+http://127.0.0.1:{port}/x", "a")
    assert status == 1
    assert "connection refused: nobody listens there; is the server running? --wait S" in text


def test_a_connection_that_takes_longer_than_the_timeout_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ubre+ws://127.0.0.1:{silent.getsockname()[1]}/bus"
        status, text = one_line(capsys, "request", url, "a", "--timeout", "0.05")
    assert status == 1
    assert "timed out after 0.05 s" in text
    assert text.endswith("is the server running? --timeout S gives it longer, --wait S goes on trying")


@pytest.mark.parametrize("command", ["publish", "subscribe", "request"])
def test_a_silent_peer_is_status_1_whatever_the_protocol(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its backlog
        for protocol in ("ubre", "csb", "jrep", "uprotocol"):
            url = f"{protocol}+tcp://127.0.0.1:{silent.getsockname()[1]}"
            status, text = one_line(capsys, command, url, "a", "--timeout", "0.2")
            assert status == 1
            assert "doctor" in text
            assert "connect(..." not in text  # that is for programs


def test_publish_to_a_peer_that_never_speaks_is_wanted_without_a_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert run(["publish", f"ubre+tcp://127.0.0.1:{silent.getsockname()[1]}", "a", "--timeout", "0"]) == 0
    assert capsys.readouterr().err == ""


def test_an_error_of_connecting_shows_no_password() -> None:
    assert "ann:***@host" in str(ConnectFailed("mqtt://ann:secret@host", "closed"))


def test_a_closed_stdout_is_no_crash_and_a_closed_stdin_is_told(tmp_path: Path) -> None:
    with serving(tmp_path) as (url, _):
        line = 'exec "$@"'
        for redirect, body, status, says in ((">&-", '"Ann"', 0, ""), ("<&-", "-", 2, "stdin is closed")):
            command = ["sh", "-c", f"{line} {redirect}", "sh", *COMMAND, "request", url, "greet", body]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == status, done.stderr
            assert says in done.stderr
            assert "Traceback" not in done.stderr


def test_an_interrupt_while_the_command_is_imported_is_quiet() -> None:
    code = (
        "import sys, polybus.cli\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'polybus.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "polybus.cli.main([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_lifespan_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing_app.py").write_text(
        "from contextlib import asynccontextmanager\nfrom polybus import Bus\n"
        "@asynccontextmanager\nasync def life(bus):\n    raise ValueError('db down')\n    yield\n"
        "bus = Bus(lifespan=life)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    status, text = one_line(capsys, "serve", "failing_app:bus", "ubre+tcp://127.0.0.1:0")
    assert status == 1
    assert "lifespan of failing_app:bus failed: ValueError: db down" in text


def test_an_engine_that_is_not_there_is_no_failure_of_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = f'"nats+tcp://127.0.0.1:{free_port()}/shop"'
    (tmp_path / "clustered_app.py").write_text(f"from polybus import Bus\nbus = Bus(cluster={cluster})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    status, text = one_line(capsys, "serve", "clustered_app:bus", "ubre+tcp://127.0.0.1:0")
    assert status == 1
    assert "nobody listens there" in text
    assert "lifespan" not in text and "line" not in text.split()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ubre+tcp://no-such-host.invalid:0", "cannot listen on no-such-host.invalid port 0: "),
        ("ubre+unix:no/such/folder", "make its folder first"),
        ("ubre+unix:a_file", "a file that is no socket is there"),
    ],
)
def test_what_cannot_be_listened_on_is_said_with_what_to_do(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain_app.py").write_text("from polybus import Bus\nbus = Bus()\n")
    (tmp_path / "a_file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    status, text = one_line(capsys, "serve", "plain_app:bus", url.replace("unix:", f"unix://{tmp_path}/"), "--insecure")
    assert status == 1
    assert says in text
    assert (tmp_path / "a_file").read_text() == "mine"


def test_publishing_to_another_protocol_is_status_1_without_a_repr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as (url, _):
        status, text = one_line(capsys, "publish", url.replace("ubre+", "csb+"), "a", "1")
    assert status == 1
    assert "<Peer" not in text
    assert "doctor" in text
