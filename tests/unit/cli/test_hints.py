"""What the commands advise when a step fails, which engine they take, and how a folder's process begins again."""

from __future__ import annotations

import errno
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polybus import ConnectFailed, Disconnected, Forbidden, Unauthorized
from polybus.cli import engines, hints, reload
from polybus.cli.engines import LARGE, EngineName, choose
from polybus.cli.problems import NATS_CREDENTIALS, UsageError, describe
from polybus.cli.reload import Reloader, changed, look


@pytest.mark.parametrize(
    ("error", "step", "scheme", "protocol", "advice"),
    [
        (OSError(errno.ECONNRESET, "reset"), "upgrade", "ws", "ubre", "cut the connection: look into its log"),
        (OSError("Multiple exceptions: ..."), "connect", "tcp", "ubre", "start the server, or correct host and port"),
        (OSError("odd"), "tls", "tls", "ubre", "try the URL without TLS"),
        (OSError("the server answered in HTTP"), "handshake", "tcp", "csb", "try csb+ws:// and the path of the bus"),
        (OSError("odd"), "handshake", "tcp", "nats", "by default 4222"),
        (OSError("odd"), "handshake", "tcp", "ubre", "does it want TLS (tls, wss)?"),
        (OSError("odd"), "handshake", "tls", "ubre", "format=, dialect="),
        (OSError("odd"), "listen", "memory", "ubre", "is the server running there, under this name?"),
        (OSError("it timed out"), "resolve", "tcp", "ubre", "the name server does not answer"),
        (OSError("it timed out"), "drain", "tcp", "ubre", "the server does not go on: look into its log"),
        (Unauthorized("no"), "handshake", "tcp", "nats", NATS_CREDENTIALS),
        (Forbidden("403: it does not say why"), "upgrade", "ws", "ubre", "compare the path"),
        (Forbidden("origin https://a.example is not let in"), "upgrade", "ws", "ubre", "origins= says whose pages"),
        (Forbidden("the server lets nobody in"), "upgrade", "ws", "ubre", "has no authenticate"),
        (Forbidden("takes clients of its own machine alone"), "upgrade", "ws", "ubre", "a proxy on the way says"),
        (Forbidden("something else"), "upgrade", "ws", "ubre", "may not: ask whoever runs the server"),
        (ssl.SSLCertVerificationError("certificate has expired"), "tls", "tls", "ubre", "renew the certificate"),
        (ssl.SSLCertVerificationError("certificate is not yet valid"), "tls", "tls", "ubre", "correct the clock"),
        (ssl.SSLCertVerificationError("Hostname mismatch"), "tls", "tls", "ubre", "use a name that stands in the certificate"),
        (ssl.SSLCertVerificationError("self-signed certificate"), "tls", "tls", "ubre", "with --ca FILE"),
        (ssl.SSLError("[SSL: WRONG_VERSION_NUMBER]"), "tls", "tls", "ubre", "try the URL without TLS"),
        (ssl.SSLError("tlsv13 alert certificate required"), "tls", "tls", "ubre", "wants a client certificate"),
        (ConnectFailed("u", "the server closed the connection during"), "upgrade", "wss", "ubre", "--cert FILE"),
        (ConnectFailed("u", "the peer closed the connection"), "handshake", "tls", "ubre", "--cert FILE"),
        (ConnectFailed("u", "the peer closed the connection"), "handshake", "tls", "nats", "--cert FILE"),
        (ssl.SSLError("no protocols available"), "tls", "tls", "ubre", "compare the TLS versions"),
    ],
)
def test_a_step_that_fails_is_followed_by_advice_that_fits(
    error: Exception, step: str, scheme: str, protocol: str, advice: str
) -> None:
    assert advice in hints.of(error, step, scheme, protocol)


@pytest.mark.parametrize(
    ("error", "text", "status"),
    [
        (ImportError("it needs rich: pip install 'polybus[cli]'"), "pip install 'polybus[cli]'", 2),
        (ValueError("no such form"), "no such form", 2),
        (PermissionError("not yours"), "not yours", 1),
        (Disconnected("gone", "tcp://127.0.0.1:1", True), "gone", 1),
        (Unauthorized("who is that?"), "who is that?", 1),
    ],
)
def test_errors_become_a_line_and_an_exit_status(error: Exception, text: str, status: int) -> None:
    said, given = describe(error)
    assert text in said
    assert given == status


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        describe(ZeroDivisionError("1/0"))
    with pytest.raises(ImportError):
        describe(ImportError("no module named polybus.typo"))


@pytest.mark.parametrize(
    ("asked", "size", "master", "installed", "engine", "reason"),
    [
        ("duckdb", 1, "", {"duckdb"}, "duckdb", "as --engine says"),
        ("auto", 1, "local[2]", {"duckdb"}, "spark", "since --master says where it runs"),
        ("auto", LARGE - 1, "", {"duckdb", "pyspark"}, "duckdb", "from 512 MiB on it is spark"),
        ("auto", LARGE - 1, "", {"pyspark"}, "spark", "since duckdb is not installed"),
        ("auto", LARGE, "", {"duckdb", "pyspark"}, "spark", "below 512 MiB it is duckdb"),
        ("auto", LARGE, "", {"duckdb"}, "duckdb", "since pyspark is not installed"),
    ],
)
def test_the_engine_is_chosen_by_size_and_by_what_is_installed(
    asked: str, size: int, master: str, installed: set[str], engine: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: name if name in installed else None)
    chosen = choose(EngineName(asked), size, master)
    assert (chosen.name, reason in str(chosen)) == (engine, True), str(chosen)


def test_a_place_of_spark_and_another_engine_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="leave one of them out"):
        choose(EngineName.DUCKDB, 1, "local")


class Process:
    """A process that ends by itself, or only when it is killed."""

    def __init__(self, status: int | None, *, stubborn: bool = False) -> None:
        self.returncode, self._stubborn = status, stubborn
        self.got: list[Any] = []

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.got.append(number)

    def wait(self, timeout: float | None = None) -> int:
        self.got.append(timeout)
        if self._stubborn and timeout is not None:
            raise subprocess.TimeoutExpired("serve", timeout)
        return self.returncode or 0

    def kill(self) -> None:
        self.got.append("kill")


def test_a_server_is_started_again_after_each_change_until_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reloader = Reloader(["serve"], tmp_path, drain=3.0)
    first, second = Process(None), Process(7)
    handlers: dict[int, Any] = {}
    started = iter((first, second))
    looks = iter(({}, {str(tmp_path / "a.py"): (1, 1)}, {}, {}))
    monkeypatch.setattr(reload, "_PACE", 0.0)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: next(started))

    def looked(folder: Path) -> Any:
        try:
            return next(looks)
        except StopIteration:
            handlers[signal.SIGINT](signal.SIGINT, None)
            return {}

    monkeypatch.setattr(reload, "look", looked)
    assert reloader.run() == 7
    said = capsys.readouterr().err
    assert "a.py has changed: starting again" in said
    assert said.count("the server has ended with status 7: it is started again when a file changes") == 1
    assert first.got == [signal.SIGTERM, 13.0]
    assert second.got == [13.0]


def test_a_process_that_does_not_end_in_its_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reloader, process = Reloader(["serve"], tmp_path, drain=1.0), Process(None, stubborn=True)
    monkeypatch.setattr(signal, "signal", lambda number, handler: handler(number, None))
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: process)
    assert reloader.run() == 0
    assert process.got == [signal.SIGTERM, 11.0, "kill", None]


def test_what_runs_again_is_this_command_without_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    def run(self: Reloader) -> int:
        ran.append(self._command)
        return 5

    monkeypatch.setattr(Reloader, "run", run)
    assert reload.reloading(["serve", "app:bus", "--reload", "tcp://127.0.0.1:0"], 1.0) == 5
    assert ran == [[sys.executable, "-m", "polybus", "serve", "app:bus", "tcp://127.0.0.1:0"]]


def test_a_file_that_vanishes_while_it_is_looked_at_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    seen = look(tmp_path)
    assert list(seen) == [str(tmp_path / "a.py")]
    assert changed(seen, {}) == str(tmp_path / "a.py")
    assert changed(seen, seen) is None
