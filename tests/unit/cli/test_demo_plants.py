"""Plants of the demo whose processes say what they should not, or which this machine cannot start."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Self

import anyio
import pytest

from polybus.demo import certificates, plants
from polybus.demo.certificates import Certificate, with_openssl, with_trustme
from polybus.demo.children import Child, DemoError
from polybus.demo.plants import AnsweringPlant, BrokeredPlant, MemoryPlant, ProcessPlant, make_plant
from polybus.demo.play import NotHere, Workshop
from polybus.demo.rows import all_rows, chosen_rows

pytestmark = pytest.mark.anyio


class ScriptedChild:
    """A process that does not run: it says the line of its role."""

    said: ClassVar[dict[str, str]]
    """By role."""
    status: ClassVar[int]
    made: ClassVar[list[Any]]

    def __init__(self, role: str, *arguments: str, log: Path) -> None:
        self.role, self.arguments, self.signals = role, arguments, list[int]()
        self.pid, self.left = 4711, False
        self.made.append(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.left = True

    async def start(self) -> str:
        return self.said[self.role]

    def send(self, number: int) -> None:
        self.signals.append(number)

    async def ended(self) -> int:
        return self.status

    async def kill(self) -> None:
        self.signals.append(signal.SIGKILL)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What processes say, by role; to be changed by a test."""
    said = {"backend": "serving tcp://127.0.0.1:7", "sensors": "ready", "broker": "between tcp://127.0.0.1:1 tcp://127.0.0.1:2"}
    monkeypatch.setattr(ScriptedChild, "made", [], raising=False)
    monkeypatch.setattr(ScriptedChild, "said", said, raising=False)
    monkeypatch.setattr(ScriptedChild, "status", 0, raising=False)
    monkeypatch.setattr(plants, "Child", ScriptedChild)
    return said


def plant(tmp_path: Path, transport: str, kind: type[ProcessPlant] = ProcessPlant, sabotage: str = "") -> ProcessPlant:
    return kind(transport, "ubre+{address}", "p", Workshop(tmp_path, sabotage))


async def test_a_back_end_is_told_the_fault_that_it_is_to_have(said: dict[str, str], tmp_path: Path) -> None:
    async with plant(tmp_path, "tcp", sabotage="lies") as running:
        assert ScriptedChild.made[0].arguments == ("ubre+tcp://127.0.0.1:0", "--sabotage", "lies")
        assert [child.role for child in ScriptedChild.made] == ["backend", "sensors"]
        running.stall_sensors()
        running.wake_sensors()
        running.drain()
        assert ScriptedChild.made[1].signals == [signal.SIGSTOP, signal.SIGCONT]
        assert await running.kill() == "process 4711 killed"
        assert ScriptedChild.made[0].signals == [signal.SIGTERM, signal.SIGKILL]
    assert all(child.left for child in ScriptedChild.made)


async def test_a_back_end_that_says_something_else_than_where_it_serves_fails_and_leaves_no_process(
    said: dict[str, str], tmp_path: Path
) -> None:
    said["backend"] = "Traceback (most recent call last):"
    with pytest.raises(DemoError, match="the back end said 'Traceback"):
        async with plant(tmp_path, "tcp"):
            pass
    assert [(child.role, child.left) for child in ScriptedChild.made] == [("backend", True)]


async def test_a_back_end_that_leaves_with_an_error_is_told_with_its_status(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plant(tmp_path, "tcp") as running:
        assert await running.left() == "exit status 0"
        monkeypatch.setattr(ScriptedChild, "status", -9)
        with pytest.raises(DemoError, match="the back end left with status -9"):
            await running.left()


async def test_an_application_says_where_it_is_and_the_bus_is_at_a_path_of_it(said: dict[str, str], tmp_path: Path) -> None:
    said["backend"] = "serving http://127.0.0.1:8"
    async with plant(tmp_path, "fastapi") as running:
        assert running.url == "ubre+ws://127.0.0.1:8/bus"
        assert ScriptedChild.made[0].arguments == ("ubre+ws://127.0.0.1:0/bus", "--fastapi")


async def test_a_plant_over_tls_gives_its_processes_the_certificate_and_what_to_trust(
    said: dict[str, str], tmp_path: Path
) -> None:
    async with plant(tmp_path, "tls") as running:
        assert running.tls is not None
        assert [argument for argument in ScriptedChild.made[0].arguments if argument.startswith("--")] == ["--tls"]
        assert ScriptedChild.made[1].arguments[1] == "--ca"


async def test_a_plant_over_tls_without_a_certificate_is_not_here_and_says_what_is_missing(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "with_trustme", lambda folder: None)
    monkeypatch.setattr(certificates, "with_openssl", lambda folder: None)
    with pytest.raises(NotHere, match="neither the Python package trustme nor the command openssl"):
        async with plant(tmp_path, "wss"):
            pass
    assert not ScriptedChild.made


async def test_a_system_without_unix_sockets_cannot_play_their_row(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plant(tmp_path, "unix"):
        assert ScriptedChild.made[0].arguments[0] == f"ubre+unix://{tmp_path / 'p.sock'}"
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(NotHere, match="no Unix sockets"):
        async with plant(tmp_path, "unix"):
            pass


@pytest.mark.parametrize(
    ("transport", "missing", "extra"),
    [("fastapi", "fastapi and uvicorn", "fastapi"), ("http", "uvicorn", "fastapi"), ("zenoh", "zenoh", "zenoh")],
)
async def test_packages_that_are_missing_are_told_with_how_to_get_them(
    transport: str, missing: str, extra: str, said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plants, "find_spec", lambda name: None)
    with pytest.raises(NotHere, match=rf"^{missing} not installed: pip install 'polybus\[{extra}\]'$"):
        async with plant(tmp_path, transport):
            pass


async def test_a_transport_that_does_not_load_is_told_with_its_reason(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> Any:
        raise ImportError("no module named websockets")

    monkeypatch.setattr(plants, "find_transport", broken)
    with pytest.raises(NotHere, match="the transport ws does not load: no module named websockets"):
        async with plant(tmp_path, "ws"):
            pass


async def test_a_system_that_cannot_stop_a_process_says_so(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plant(tmp_path, "tcp") as running:
        monkeypatch.delattr(signal, "SIGSTOP")
        with pytest.raises(NotHere, match="cannot stop a process"):
            running.stall_sensors()


async def test_a_broker_stands_between_and_a_restarted_back_end_comes_back_to_it(said: dict[str, str], tmp_path: Path) -> None:
    async with plant(tmp_path, "tcp", BrokeredPlant) as running:
        assert running.url == "tcp://127.0.0.1:1"
        await running.restart()
        assert running.url == "tcp://127.0.0.1:1"
        assert [child.role for child in ScriptedChild.made] == ["broker", "backend", "sensors", "backend"]
        assert ScriptedChild.made[3].arguments == ("tcp://127.0.0.1:2&pool=2&server=plant", "--behind")
        with pytest.raises(NotHere, match="the broker closes who does not read"):
            running.stall_sensors()


async def test_a_broker_that_says_something_else_fails(said: dict[str, str], tmp_path: Path) -> None:
    said["broker"] = "usage: broker"
    with pytest.raises(DemoError, match="the broker said 'usage:'"):
        async with plant(tmp_path, "tcp", BrokeredPlant):
            pass
    assert [(child.role, child.left) for child in ScriptedChild.made] == [("broker", True)]


async def test_where_a_server_only_answers_there_are_no_sensors(said: dict[str, str], tmp_path: Path) -> None:
    async with plant(tmp_path, "tcp", AnsweringPlant):
        assert [child.role for child in ScriptedChild.made] == ["backend"]


def test_memory_alone_is_played_in_this_process(tmp_path: Path) -> None:
    made = [make_plant(transport, "csb+{address}", "p", Workshop(tmp_path)) for transport in ("memory", "tcp")]
    assert [type(one) for one in made] == [MemoryPlant, ProcessPlant]
    assert made[0].url == "csb+memory://p"


def test_words_that_fit_no_row_together_are_told() -> None:
    with pytest.raises(ValueError, match="nothing fits broker, ubre at once"):
        chosen_rows(all_rows(), ["ubre", "broker"])


def test_without_openssl_or_where_it_fails_there_is_no_certificate_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(command: list[str], **options: Any) -> Any:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", failing)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/openssl")
    assert with_openssl(tmp_path) is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert with_openssl(tmp_path) is None


def test_without_trustme_there_is_no_certificate_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_trustme(tmp_path)
    assert isinstance(made, Certificate)
    monkeypatch.setitem(sys.modules, "trustme", None)
    assert with_trustme(tmp_path) is None


async def test_a_process_that_says_nothing_and_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with Child("no_such_role", log=tmp_path / "log") as child:
            with pytest.raises(DemoError, match=r"the no_such_role process did not start: .*No module named"):
                await child.start()
