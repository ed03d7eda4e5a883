"""The matrix of `polybus demo`: a row of each kind is played well, some badly; and what a machine lacks is told."""

import io
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import anyio
import psutil
import pytest
from rich.console import Console

from polybus.cli.app import run
from polybus.cli.matrix import Progress, groups_of, legend, steps_of, summary
from polybus.demo import backend, console, plants
from polybus.demo.certificates import with_openssl, with_trustme
from polybus.demo.children import Child, DemoError
from polybus.demo.console import STEPS
from polybus.demo.plants import BrokeredPlant, ProcessPlant
from polybus.demo.play import DemoRow, NotHere, RowRun, Workshop, check, play
from polybus.demo.rows import all_rows, chosen_rows
from tests.unit.cli.support import COMMAND, one_line

# -- rows ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "name", "steps"),
    [
        ("ubre,memory,json", "ubre json memory", len(STEPS)),
        ("ubre,tcp,json", "ubre json tcp", len(STEPS)),
        ("ubre-uprotocol", "bridge ubre-uprotocol ws", 1),
        ("uprotocol,http,json", "uprotocol json http", 5),
        ("zenoh", "up umessage zenoh", len(STEPS) - 3),
        ("cluster", "cluster", 2),
    ],
)
def test_a_row_of_each_kind_holds(words: str, name: str, steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--json", "--only", words]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    if row["not_here"]:
        assert not os.environ.get("POLYBUS_CI")
        pytest.skip(row["not_here"])
    assert name in row["name"]
    assert {step["outcome"] for step in row["steps"]} == {"ok"}
    assert len(row["steps"]) >= steps


@pytest.mark.parametrize(
    ("sabotage", "step"),
    [("lies", "requests"), ("leaks", "failing handler"), ("open", "forbidden"), ("gaps", "stream")],
)
def test_a_back_end_that_misbehaves_is_seen_where_it_does(
    sabotage: str, step: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (backend, console):  # here nothing is far away
        monkeypatch.setattr(module, "TIMEOUT", 4.0)
    assert run(["demo", "--only", "ubre,memory,json", "--sabotage", sabotage]) == 1
    assert f"ubre json memory: {step}: " in " ".join(capsys.readouterr().out.split())


def test_for_people_it_ends_with_a_table_and_a_verdict_and_without_duckdb_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "polybus.analysis.duck", raising=False)
    assert run(["demo", "--only", "ubre,memory,json", "--report", str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert f"ubre json memory: {len(STEPS)} of {len(STEPS)} steps held in " in out
    assert f"{len(STEPS)} of {len(STEPS)} steps held over 1 wires" in out
    assert "no report of it: the pipeline needs duckdb: pip install 'polybus[analyse]'" in out


def test_the_demo_records_itself_and_ends_with_its_report_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    command = ["demo", "--only", "memory,json", "--json", "--report"]
    assert run([*command, str(tmp_path / "demo")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["no_report"] is None
    metrics = json.loads((Path(told["report"]).parent / "metrics.json").read_text())
    assert metrics["totals"]["outcomes"]["ok"] >= 64
    assert "plant" in Path(told["report"]).read_text()
    assert run([*command, str(tmp_path / "demo")]) == 2
    assert "there is something in it" in capsys.readouterr().err


def test_the_pictures_of_all_rows_fit_a_small_terminal() -> None:
    runs = [RowRun.of(row) for row in all_rows()]
    paper = Console(width=80, height=24, file=io.StringIO(), record=True)
    for group in groups_of(runs):
        paper.print(summary(group), legend(steps_of(group)))
    shown = " ".join(paper.export_text().split())
    assert "…" not in shown
    assert all(f"{number} {name}" in shown for number, name in enumerate(STEPS, start=1))
    for row in runs[:20]:
        first, second, *_ = row.steps.values()
        first.outcome, first.detail, second.outcome = "failed", "far from it " * 20, "running"
    paper.print(Progress(runs).picture())
    lines = paper.export_text().splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_progress_says_how_much_is_done_and_how_long_the_rest_will_take() -> None:
    runs = [RowRun.of(DemoRow("ubre", "", f"wire{number}", ("one", "two"), _raises)) for number in range(4)]
    now = 100.0
    progress = Progress(runs, clock=lambda: now)
    assert progress.line() == "0 of 4 wires, 0 s"
    runs[0].ended_at = 110.0
    runs[1].steps["one"].seconds = 0.5
    now = 130.0
    assert progress.share == 3 / 8
    assert progress.line() == "1 of 4 wires, 30 s, about 50 s left"


def test_no_process_is_left_when_the_demo_is_killed(tmp_path: Path) -> None:
    command = [*COMMAND, "demo", "--json", "--only", "unix,json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(tmp_path)}) as demo:
        parent = psutil.Process(demo.pid)
        children: list[Any] = []
        while len(children) < 2 and demo.poll() is None:
            children = parent.children(recursive=True)
        demo.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_only_takes_words_of_one_kind_as_alternatives_and_narrows_by_kind() -> None:
    chosen = chosen_rows(all_rows(), ["ubre", "unix", "ws", "json"])
    assert [row.name for row in chosen] == ["ubre json unix", "ubre json ws"]
    with pytest.raises(ValueError, match="nothing fits broker, ubre at once"):
        chosen_rows(all_rows(), ["ubre", "broker"])


def test_what_is_about_the_story_is_not_for_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--show --all", "--browser --only tcp"):
        status, text = one_line(capsys, "demo", *words.split())
        assert status == 2 and "use it without --all and --only" in text


# -- what holds for every part ---------------------------------------------------------------------------------------------


async def _two_steps(run: RowRun, workshop: Workshop) -> None:
    async def good() -> str:
        return "seen"

    async def bad() -> str:
        check(False, "one is not two")
        return "never"

    await run.step("good", good)
    await run.step("bad", bad)


async def _raises(run: RowRun, workshop: Workshop) -> None:
    raise OSError("no disk")


async def _not_here(run: RowRun, workshop: Workshop) -> None:
    raise NotHere("no such thing on this machine")


async def _skips(run: RowRun, workshop: Workshop) -> None:
    """Forgets to play its steps."""


@pytest.mark.parametrize(
    ("function", "ok", "trouble", "not_here"),
    [
        (_two_steps, False, "", ""),
        (_raises, False, "OSError: no disk", ""),
        (_not_here, True, "", "no such thing on this machine"),
        (_skips, False, "did not come to its end", ""),
    ],
)
def test_a_row_is_judged_by_its_steps_and_by_what_broke_outside_of_them(
    function: Any, ok: bool, trouble: str, not_here: str
) -> None:
    run = RowRun.of(DemoRow("some", "", "wire", ("good", "bad"), function))
    anyio.run(play, [run])
    assert (run.ok, run.not_here) == (ok, not_here)
    assert trouble in run.trouble
    if function is _two_steps:
        assert [(step.outcome, step.detail) for step in run.steps.values()] == [("ok", "seen"), ("failed", "one is not two")]


# -- plants ----------------------------------------------------------------------------------------------------------------


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


@pytest.mark.anyio
async def test_a_plant_starts_its_processes_tells_them_what_they_need_and_leaves_none(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plant(tmp_path, "tls", sabotage="lies") as running:
        back_end, sensors = ScriptedChild.made
        assert (back_end.role, sensors.role) == ("backend", "sensors")
        assert [word for word in back_end.arguments if word.startswith("--")] == ["--sabotage", "--tls"]
        assert sensors.arguments[1] == "--ca"
        running.stall_sensors()
        running.wake_sensors()
        assert sensors.signals == [signal.SIGSTOP, signal.SIGCONT]
        running.drain()
        assert await running.left() == "exit status 0"
        monkeypatch.setattr(ScriptedChild, "status", -9)
        with pytest.raises(DemoError, match="the back end left with status -9"):
            await running.left()
        assert await running.kill() == "process 4711 killed"
        assert back_end.signals == [signal.SIGTERM, signal.SIGKILL]
    assert all(child.left for child in ScriptedChild.made)


@pytest.mark.anyio
async def test_a_broker_stands_between_and_a_restarted_back_end_comes_back_to_it(said: dict[str, str], tmp_path: Path) -> None:
    async with plant(tmp_path, "tcp", BrokeredPlant) as running:
        await running.restart()
        assert running.url == "tcp://127.0.0.1:1"
        assert [child.role for child in ScriptedChild.made] == ["broker", "backend", "sensors", "backend"]
        assert ScriptedChild.made[3].arguments == ("tcp://127.0.0.1:2&pool=2&server=plant", "--behind")
        with pytest.raises(NotHere, match="the broker closes who does not read"):
            running.stall_sensors()


@pytest.mark.parametrize("role", ["backend", "broker"])
@pytest.mark.anyio
async def test_a_process_that_says_something_else_than_where_it_serves_fails_and_is_not_left(
    role: str, said: dict[str, str], tmp_path: Path
) -> None:
    said[role] = "Traceback (most recent call last):"
    with pytest.raises(DemoError, match="said 'Traceback"):
        async with plant(tmp_path, "tcp", BrokeredPlant):
            pass
    assert all(child.left for child in ScriptedChild.made)


def _without_packages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plants, "find_spec", lambda name: None)


def _without_websockets(patch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("no module named websockets")

    patch.setattr(plants, "find_transport", broken)


def _without_certificates(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "trustme", None)
    patch.setattr(shutil, "which", lambda name: None)


def _without_unix_sockets(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(socket, "AF_UNIX")


@pytest.mark.parametrize(
    ("transport", "take_away", "says"),
    [
        ("fastapi", _without_packages, r"^fastapi and uvicorn not installed: pip install 'polybus\[fastapi\]'$"),
        ("zenoh", _without_packages, r"^zenoh not installed: pip install 'polybus\[zenoh\]'$"),
        ("ws", _without_websockets, "the transport ws does not load: no module named websockets"),
        ("wss", _without_certificates, "neither the Python package trustme nor the command openssl"),
        ("unix", _without_unix_sockets, "no Unix sockets"),
    ],
)
@pytest.mark.anyio
async def test_what_this_machine_lacks_is_told_with_how_to_get_it(
    transport: str,
    take_away: Callable[[pytest.MonkeyPatch], None],
    says: str,
    said: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_away(monkeypatch)
    with pytest.raises(NotHere, match=says):
        async with plant(tmp_path, transport):
            pass
    assert not ScriptedChild.made


@pytest.mark.parametrize("make", [with_trustme, with_openssl])
def test_both_ways_to_a_certificate_give_one_that_a_server_can_load(make: Any, tmp_path: Path) -> None:
    made = make(tmp_path)
    if made is None:
        pytest.skip("not installed here")
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(made.certificate, made.key)
    assert ssl.create_default_context(cafile=str(made.ca)).cert_store_stats()["x509"] == 1


@pytest.mark.anyio
async def test_a_process_that_says_nothing_and_ends_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with Child("no_such_role", log=tmp_path / "log") as child:
            with pytest.raises(DemoError, match=r"the no_such_role process did not start: .*No module named"):
                await child.start()
