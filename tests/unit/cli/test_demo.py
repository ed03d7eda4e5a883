"""The demo plays with real processes; here it is played well, and badly."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from polybus.cli.app import run
from polybus.cli.matrix import groups_of, legend, steps_of, summary
from polybus.demo import backend, console, workers
from polybus.demo.backend import SABOTAGE
from polybus.demo.certificates import Certificate, with_openssl, with_trustme
from polybus.demo.console import STEPS
from polybus.demo.play import CheckFailed, DemoRow, NotHere, RowRun, Workshop, check, play
from polybus.demo.rows import all_rows, chosen_rows
from tests.loops import FULL
from tests.unit.cli.support import COMMAND

BROKEN_STEPS = {
    "lies": {"requests"},
    "leaks": {"failing handler"},
    "stubborn": {"deadline"},
    "open": {"forbidden"},
    "gaps": {"stream"},
    "sinks": {"publications", "reconnect"},
}


@pytest.mark.parametrize("only", ["memory,tcp"] if FULL else ["memory", "tcp,json"])
def test_the_demo_over_memory_and_tcp_holds_and_says_so(only: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--json", "--only", only]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    chosen = chosen_rows(all_rows(), only.split(","))
    assert {(row["variant"], row["transport"]) for row in result["rows"]} == {(row.variant, row.transport) for row in chosen}
    assert "json" in only or {row.variant for row in chosen} >= {"json", "spec", "binary", "errai", "plain"}
    for row in result["rows"]:
        left_out = {"stream", "channel"} if row["protocol"] == "up" else set[str]()  # its wire has no form for them
        assert [step["name"] for step in row["steps"]] == [name for name in STEPS if name not in left_out]
        assert {step["outcome"] for step in row["steps"]} == {"ok"}
        assert row["sent"] > 0
        assert row["received"] > 0


def test_a_door_is_opened_over_a_bridge_and_a_tunnel_leads_through_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--json", "--only", "ubre-uprotocol"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["name"] == "bridge ubre-uprotocol ws"
    assert {step["outcome"] for step in row["steps"]} == {"ok"}
    assert row["steps"][0]["name"] == "door over a bridge"


def test_four_workers_are_one_bus_and_one_of_them_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--json", "--only", "cluster"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    if row["not_here"]:
        assert "there is no nats-server" in row["not_here"]
        assert not os.environ.get("POLYBUS_CI")
        pytest.skip(row["not_here"])
    assert {step["name"]: step["outcome"] for step in row["steps"]} == dict.fromkeys(workers.STEPS, "ok")
    killed = next(step for step in row["steps"] if step["name"] == "worker killed")
    assert "who had asked was told in" in killed["detail"]


def test_without_a_nats_server_the_workers_are_not_here_and_it_is_said_how_to_have_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polybus.cluster.engine._places", lambda: iter([None]))
    assert run(["demo", "--json", "--only", "cluster"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert "apt install nats-server" in row["not_here"]


def test_over_http_the_demo_plays_what_a_server_can_that_only_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--json", "--only", "uprotocol,http"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["variant"] for row in rows] == ["json", "protobuf"]
    for row in rows:
        assert [step["name"] for step in row["steps"]] == ["requests", "failing handler", "no handler", "deadline", "drain"]
        assert {step["outcome"] for step in row["steps"]} == {"ok"}


@pytest.mark.parametrize("channels", [["websocket", "events", "poll"]] if FULL else [["poll"]])
def test_over_http_a_server_that_can_begin_something_plays_every_step(
    channels: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--json", "--only", ",".join(["jrep", "http", *channels])]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["variant"] for row in rows] == channels
    for row in rows:
        assert [step["name"] for step in row["steps"]] == list(STEPS)
        assert {step["outcome"] for step in row["steps"]} == {"ok"}


def test_a_plant_on_a_fabric_is_asked_heard_killed_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--json", "--only", "zenoh"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["name"] == "up umessage zenoh"
    if row["not_here"]:
        assert not os.environ.get("POLYBUS_CI")
        pytest.skip(row["not_here"])
    left_out = {"stream", "channel", "slow consumer"}
    assert {step["name"]: step["outcome"] for step in row["steps"]} == {name: "ok" for name in STEPS if name not in left_out}


def test_the_table_of_all_rows_fits_a_terminal_and_names_every_step() -> None:
    runs = [RowRun.of(row) for row in all_rows()]
    paper = Console(width=80, file=io.StringIO(), record=True)
    for group in groups_of(runs):
        paper.print(summary(group), legend(steps_of(group)))
    shown = " ".join(paper.export_text().split())
    assert "…" not in shown
    for number, name in enumerate(STEPS, start=1):
        assert f"{number} {name}" in shown
    assert "1 door over a bridge" in shown


def test_the_demo_for_people_ends_with_a_table_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--only", "ubre,memory,json"]) == 0
    out = capsys.readouterr().out
    assert "ubre json memory" in out
    assert f"{len(STEPS)} of {len(STEPS)} steps held over 1 wires" in out


def test_without_duckdb_the_demo_says_what_to_install_with_the_extra_in_its_brackets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "polybus.analysis.duck", raising=False)
    assert run(["demo", "--only", "memory,json", "--report", str(tmp_path / "new")]) == 0
    assert "no report of it: the pipeline needs duckdb: pip install 'polybus[analyse]'" in capsys.readouterr().out


def test_every_sabotage_is_known_here() -> None:
    assert set(BROKEN_STEPS) == set(SABOTAGE)


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_a_back_end_that_misbehaves_is_seen_where_it_does(
    sabotage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (backend, console):  # here nothing is far away
        monkeypatch.setattr(module, "TIMEOUT", 4.0)
    assert run(["demo", "--json", "--only", "memory,json", "--sabotage", sabotage]) == 1
    assert _failed(json.loads(capsys.readouterr().out)) == BROKEN_STEPS[sabotage]


def test_a_process_that_misbehaves_is_status_1_and_is_told_in_thesummary() -> None:
    command = [*COMMAND, "demo", "--only", "tcp,json", "--sabotage", "lies"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "ubre json tcp: requests: expected Level(tank=1, litres=10.5)" in ended.stdout
    assert ended.stderr == ""


def _failed(result: dict[str, Any]) -> set[str]:
    assert result["ok"] is False
    return {step["name"] for row in result["rows"] for step in row["steps"] if step["outcome"] == "failed"}


@pytest.mark.parametrize(("words", "processes"), [("unix,json", 2), ("cluster", 6)])
def test_no_process_is_left_when_the_demo_is_killed(words: str, processes: int, tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    command = [*COMMAND, "demo", "--json", "--only", words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"TMPDIR": str(tmp_path)}) as demo:
        parent = psutil.Process(demo.pid)
        children: list[Any] = []
        while len(children) < processes and demo.poll() is None:
            children = parent.children(recursive=True)
        demo.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["tcp", "binary"], ["ubre binary tcp"]),
        (["memory", "ubre"], ["ubre json memory", "ubre spec memory", "ubre binary memory"]),
        (["ubre", "unix", "ws", "json"], ["ubre json unix", "ubre json ws"]),
        (["fastapi"], ["ubre json fastapi"]),
    ],
)
def test_only_takes_words_of_one_kind_as_alternatives_and_narrows_by_kind(words: list[str], names: list[str]) -> None:
    assert [row.name for row in chosen_rows(all_rows(), words)] == names


@pytest.mark.parametrize("make", [with_trustme, with_openssl])
def test_both_ways_to_a_certificate_give_one_that_a_server_can_load(make: Any, tmp_path: Path) -> None:
    import ssl

    made: Certificate | None = make(tmp_path)
    if made is None:
        pytest.skip("not installed here")
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(made.certificate, made.key)
    assert ssl.create_default_context(cafile=str(made.ca)).cert_store_stats()["x509"] == 1


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


def _played(function: Any) -> RowRun:
    run = RowRun.of(DemoRow("some", "", "wire", ("good", "bad"), function))
    anyio.run(play, [run])
    return run


def test_a_step_that_fails_is_noted_with_its_reason_and_spoils_the_row() -> None:
    run = _played(_two_steps)
    assert not run.ok
    assert [(step.outcome, step.detail) for step in run.steps.values()] == [("ok", "seen"), ("failed", "one is not two")]


def test_a_row_that_breaks_outside_of_its_steps_is_not_ok() -> None:
    run = _played(_raises)
    assert not run.ok
    assert run.trouble == "OSError: no disk"


def test_a_row_that_cannot_be_played_here_is_no_failure_and_says_why() -> None:
    run = _played(_not_here)
    assert run.ok
    assert run.not_here == "no such thing on this machine"


def test_steps_that_were_not_played_do_not_count_as_held() -> None:
    run = _played(_skips)
    assert not run.ok
    assert "did not come to its end" in run.trouble


def test_check_raises_what_steps_are_judged_by() -> None:
    check(True, "")
    with pytest.raises(CheckFailed, match="why"):
        check(False, "why")
