"""`polybus serve` while one develops, and how it logs; `polybus schema`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock, call

import pytest

from polybus.cli import serve
from polybus.cli.app import run
from polybus.cli.serve import changed, look
from tests.support import free_port
from tests.unit.cli.support import TCP, Cli, next_line, serve_process, started

URL = "ubre+memory://serve"


def test_the_package_is_a_program_and_says_without_arguments_what_it_can() -> None:
    shown = subprocess.run([sys.executable, "-m", "polybus"], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.startswith("Usage: polybus ") and "serve" in shown.stdout and shown.stderr == ""


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"one": "import two\n", "two": "\n\nx = 1 / 0\n"}, "ZeroDivisionError: division by zero (FOLDER/two.py, line 3)"),
        ({"two": "x = 1\ny = = 2\n"}, "SyntaxError: invalid syntax (FOLDER/two.py, line 2)"),
        ({"three": "\nimport there_is_no_such\n"}, "No module named 'there_is_no_such' (FOLDER/three.py, line 2); is"),
        ({"four": "import sys\nsys.exit(3)\n"}, "SystemExit: 3 (FOLDER/four.py, line 2)"),
    ],
    ids=["raises", "syntax", "missing", "exits"],
)
def test_an_app_that_fails_on_import_is_told_with_file_and_line(
    files: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert says.replace("FOLDER", str(tmp_path)) in cli.line(2, "serve", f"{next(iter(files))}:bus", URL)


@pytest.mark.parametrize(
    ("options", "told"),
    [(["--backend", "trio"], True), (["--log-level", "WARNING", "--uvloop"], False)],
    ids=["info", "warning"],
)
def test_the_log_on_stderr_has_times_and_levels_from_the_one_asked(options: list[str], told: bool, tmp_path: Path) -> None:
    with serve_process(tmp_path, *options) as (_, process):
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and out == ""
    assert ("INFO polybus: SIGTERM, draining" in err) is told
    assert not told or err[:2] == "20", err


def test_a_server_is_started_again_when_a_file_changes(tmp_path: Path, cli: Cli) -> None:
    url = f"ubre+tcp://127.0.0.1:{free_port()}"
    with serve_process(tmp_path, "--reload", url=url) as (real, process):
        assert run(["request", real, "greet", '"Ann"']) == 0
        app = tmp_path / "app.py"
        text = app.read_text()
        app.write_text("x = 1 / 0\n")
        assert process.stderr is not None
        told = iter(process.stderr.readline, "")
        assert any("app.py changed: restarting" in line for line in told)
        assert any("ZeroDivisionError: division by zero" in line for line in told)
        assert any("waiting for a file to change" in line for line in told)
        app.write_text(text.replace("Hello", "Good morning"))
        assert process.stdout is not None
        assert process.stdout.readline() == f"serving {real}\n"
        assert cli.out("request", real, "greet", '"Ann"') == '"Hello, Ann"\n"Good morning, Ann"\n'
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_of_the_files_below_a_folder_those_of_environments_and_caches_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("a.py", "deep/b.py", ".hidden/c.py", "env/lib/d.py", "__pycache__/e.py", "deep/f.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    before = look(tmp_path)
    assert sorted(os.path.relpath(path, tmp_path) for path in before) == ["a.py", os.path.join("deep", "b.py")]
    assert changed(before, look(tmp_path)) is None
    (tmp_path / "deep" / "b.py").write_text("x")
    assert changed(before, look(tmp_path)) == str(tmp_path / "deep" / "b.py")
    (tmp_path / "a.py").unlink()
    assert changed(look(tmp_path), before) is not None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
@pytest.mark.parametrize(
    ("command", "lines", "unbuffered"),
    [
        (("serve", "app:bus", TCP, TCP), ["serving ubre+tcp://127.0.0.1:"] * 2, ""),
        (
            ("broker", "--clients", "csb+tcp://127.0.0.1:0", "--servers", "csb+tcp://127.0.0.1:0"),
            ["clients csb+tcp://", "servers csb+tcp://"],
            "1",
        ),
        (("record", "csb+tcp://127.0.0.1:9", "capture", "--listen", "csb+tcp://127.0.0.1:0"), ["csb+tcp://127.0.0.1:"], ""),
    ],
    ids=["serve", "broker", "record"],
)
def test_where_stdout_takes_nothing_stderr_is_told_all_and_the_command_goes_on(
    command: tuple[str, ...], lines: list[str], unbuffered: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text("from polybus import Bus\nbus = Bus()\n")
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full, started(*command, stdout=full, cwd=tmp_path, env=environment) as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if line.startswith("polybus: "))
        assert "cannot write to stdout (No space left" in told
        for line in lines:
            assert process.stderr.readline().startswith(line)
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="only on POSIX")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("bridge", TCP, "csb+tcp://127.0.0.1:0", "--serve", "left", "--serve", "right", "--routes", "routes.toml"), ""),
        (("broker", "--clients", "csb+tcp://127.0.0.1:0", "--servers", "csb+tcp://127.0.0.1:0"), ""),
        (("record", "csb+tcp://127.0.0.1:9", "capture", "--listen", "csb+tcp://127.0.0.1:0"), "0 dropped"),
        (("serve", "app:bus", TCP, "--reload"), ""),
    ],
    ids=["bridge", "broker", "record", "reload"],
)
def test_a_terminal_that_closes_lets_a_command_finish(command: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from polybus import Bus\nbus = Bus()\n")
    (tmp_path / "routes.toml").write_text('[[route]]\nsource = "a"\ntarget = "b"\n')
    with started(*command, cwd=tmp_path) as process:
        assert "127.0.0.1:" in next_line(process)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and says in out


def test_what_runs_again_is_this_command_without_reload_and_it_is_killed_if_it_does_not_end_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Mock(poll=lambda: None, wait=Mock(side_effect=[subprocess.TimeoutExpired("serve", 11), -9]))
    popen = Mock(return_value=process)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(signal, "signal", lambda number, handler: handler(number, None))
    assert serve.reloading(["serve", "app:bus", "--reload", "tcp://127.0.0.1:0"], 1.0) == -9
    assert popen.call_args.args == ([sys.executable, "-m", "polybus", "serve", "app:bus", "tcp://127.0.0.1:0"],)
    assert process.mock_calls == [call.send_signal(signal.SIGTERM), call.wait(11.0), call.kill(), call.wait()]


# -- polybus schema --------------------------------------------------------------------------------------------------------

DESCRIBED = '''"""The shop.

What it can be asked.
"""

from typing import Protocol

from attrs import frozen

from polybus import Bus

bus = Bus()


@frozen
class User:
    id: int


class Users(Protocol):
    """The users."""

    async def get(self, id: int) -> User: ...


@bus.handle("user.get")
async def get_user(id: int) -> User:
    """Find one."""
    return User(id)
'''


@pytest.fixture
def app(module: Callable[..., str]) -> str:
    return module(DESCRIBED)


def test_a_bus_is_described(app: str, cli: Cli) -> None:
    made = cli.json("schema", f"{app}:bus", "--version", "3.1", "--server", "ubre+wss://example.org/bus")
    assert made["info"] == {"title": app, "version": "3.1", "description": "The shop.\n\nWhat it can be asked."}
    assert list(made["operations"]) == ["user.get"]
    assert made["servers"]["ubre-wss"]["host"] == "example.org"


def test_a_contract_is_described(app: str, cli: Cli) -> None:
    made = cli.json("schema", f"{app}:Users", "--prefix", "user", "--title", "People")
    assert made["info"] == {"title": "People", "version": "1.0.0", "description": "The users."}
    assert list(made["operations"]) == ["user.get"]


def test_a_page_is_written(app: str, tmp_path: Path, cli: Cli) -> None:
    assert cli.out("schema", f"{app}:bus", "--html", "page.html") == ""
    text = (tmp_path / "page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "user.get" in text


def test_a_wrong_name_is_one_line_that_names_what_there_is(app: str, cli: Cli) -> None:
    text = cli.line(2, "schema", f"{app}:User")
    assert text == f"{app}:User is neither a Bus nor a Protocol class; did you mean {app}:bus, {app}:Users?"
    cli.line(2, "schema", f"{app}:bus", "--prefix", "user")
    cli.line(2, "schema", f"{app}:bus", "--server", "example.org")
    cli.line(1, "schema", f"{app}:bus", "--html", "missing/page.html")
