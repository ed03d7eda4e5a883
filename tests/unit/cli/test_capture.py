"""record, capture and replay, as people use them."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from polybus.capture import Capture, decode, make_recorder
from polybus.cli.app import run
from tests.unit.capture.folders import damage
from tests.unit.capture.generator import traffic
from tests.unit.cli.support import next_line, one_line, started


def _made(folder: Path) -> Path:
    return traffic(2_000).write(folder, rows=100, segment_batches=8)


@pytest.mark.native
def test_record_then_look_then_replay(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "captures"
    with started("record", url, str(folder)) as proxy:
        through = next_line(proxy)
        assert through.startswith("ubre+tcp://127.0.0.1:") and through != url
        assert run(["request", through, "greet", '"Ann"']) == 0
        assert run(["request", through, "echo", '{"token":"hunter2"}']) == 0
        proxy.send_signal(signal.SIGINT)
        out, _ = proxy.communicate(timeout=60)
    assert proxy.returncode == 0
    assert "0 lost" in out
    capsys.readouterr()

    assert run(["capture", "info", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["frames"] >= 4
    assert found["protocols"] == {"ubre": found["frames"]}
    assert found["marks"] == 4  # two connections, each with a begin and an end
    decoded = [decode(batch.rows) for batch in Capture(folder).batches()]
    assert found["frames"] + found["marks"] == sum(made.frames for made in decoded)
    assert run(["capture", "info", str(folder)]) == 0
    assert "4 marks of the start or end of a connection" in capsys.readouterr().out

    assert run(["replay", str(folder), url, "--dry-run"]) == 0
    assert "would send 2 requests over 2 connections" in capsys.readouterr().out
    assert not (tmp_path / "captures-replay").exists()

    assert run(["replay", str(folder), url, "--speed", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["answered"], report["failed"]) == (2, 0)
    assert Capture(tmp_path / "captures-replay").segments()

    status, text = one_line(capsys, "replay", str(folder), url, "--speed", "0", "--subject", "nobody.asked")
    assert status == 1
    assert "no client sent anything with --subject 'nobody.asked'; polybus capture info" in text


@pytest.fixture(scope="module")
def of_nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of no connection."""
    folder = tmp_path_factory.mktemp("nothing") / "c"
    recorder = make_recorder(folder)
    recorder.claim()
    recorder.open()
    recorder.close()
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "capture info c",
        "capture verify c",
        "capture recover c x",
        "capture compact c x",
        "capture export c x",
        "replay c ubre+tcp://127.0.0.1:1",
        "analyse c --out x",
    ],
)
def test_a_recording_of_no_connection_is_no_riddle(
    command: str, of_nothing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(of_nothing, "c")
    status, text = one_line(capsys, *command.split())
    assert (status, "c is empty: the recorder has written nothing" in text) == (1, True), text
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_damage_is_status_1_and_recover_says_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _made(tmp_path / "c")
    assert run(["capture", "verify", str(folder)]) == 0
    damage(sorted(folder.iterdir())[0])
    capsys.readouterr()
    assert run(["capture", "verify", str(folder)]) == 1
    both = capsys.readouterr()
    assert "segment 0:" in both.out
    assert "100 rows" in both.out
    assert "polybus capture recover" in both.err
    assert run(["capture", "export", str(folder), str(tmp_path / "lines"), "--format", "jsonl"]) == 1
    both = capsys.readouterr()
    assert Path(both.out.strip()).stat().st_size, "the rest is there"
    assert "1 stretch with at least 100 frames cannot be read" in both.err
    assert run(["capture", "compact", str(folder), str(tmp_path / "parquet")]) == 1
    assert "polybus capture verify" in capsys.readouterr().err
    assert run(["capture", "recover", str(folder), str(tmp_path / "whole")]) == 0
    assert "lost: 100 rows" in capsys.readouterr().out
    assert run(["capture", "verify", str(tmp_path / "whole")]) == 0


def test_files_are_not_exported_to_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(_made(tmp_path / "c"))
    monkeypatch.chdir(tmp_path)
    status, text = one_line(capsys, "capture", "export", folder, "s3://bucket/lines")
    assert (status, "s3://bucket/lines: this is written into a folder on this machine only" in text) == (1, True), text
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_info_is_for_people_and_compact_and_export_print_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(_made(tmp_path / "c"))
    assert run(["capture", "info", folder]) == 0
    out = capsys.readouterr().out
    assert "20 connections" in out and "gap: 6 frames missing (dropped)" in out
    assert run(["capture", "compact", folder, str(tmp_path / "p")]) == 0
    assert run(["capture", "export", folder, str(tmp_path / "j"), "--format", "jsonl", "--table", "quarantine"]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.suffix for path in paths] == [".parquet", ".jsonl"]
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize(
    ("arguments", "says", "expected"),
    [
        (["capture", "info", "nowhere"], "is not a capture: the folder does not exist", 1),
        (["replay", "nowhere", "ubre+tcp://127.0.0.1:1"], "is not a capture: the folder does not exist", 1),
        (["replay", "s3://bucket/captures", "ubre+tcp://127.0.0.1:1"], "--record DIR, a folder on this machine", 2),
        (["analyse", "nowhere", "--out", "x"], "is not a capture: the folder does not exist", 1),
        (["analyse", "nowhere", "--out", "x", "--names", "none.toml"], "--names none.toml: No such file or directory", 2),
        (["analyse", "nowhere", "--out", "x", "--routes", "none.toml"], "--routes none.toml: No such file or directory", 2),
        (["journey", "nowhere"], "which request? Give --id ID", 2),
        (["journey", "nowhere", "--id", "7"], "nowhere", 1),
        (["journey", "nowhere", "--start", "soon"], "--start='soon': pass a time such as", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "x", "--max-bytes", "lots"], "500M or 10G", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "x", "--listen", "ubre+tcp://0.0.0.0:0"], "--insecure", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "x", "--listen", "csb+tcp://127.0.0.1:0"], "does not translate", 2),
        (["record", "ubre+memory://here", "x"], "--listen", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "s3://bucket/c"], "'s3://bucket/c': into a folder on this machine only", 2),
        (
            ["broker", "--clients", "csb+tcp://127.0.0.1:0", "--servers", "csb+tcp://127.0.0.1:0", "--record", "s3://b/c"],
            "s3://b/c",
            2,
        ),
        (["record", "jrep+http://127.0.0.1:1/x", "x"], "a proxy cannot record HTTP", 2),
        (["record", "up+zenoh://127.0.0.1:1", "x"], "a proxy cannot record a fabric, which does not have two ends", 2),
        (["record", "jrep+http://127.0.0.1:1/x", "x", "--listen", "jrep+tcp://127.0.0.1:0"], "a proxy cannot record HTTP", 2),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    arguments: list[str],
    says: str,
    expected: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, text = one_line(capsys, *arguments)
    assert (status, says in text) == (expected, True), text
    assert list(tmp_path.iterdir()) == []


def test_a_capture_is_decoded_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _made(tmp_path / "captures")
    assert run(["capture", "decode", str(folder), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["fresh"], first["open"], first["damaged"]) == (0, 0, [])
    assert first["segments"] == len(Capture(folder).segments()) == len(list(folder.glob("events/*.parquet")))
    assert run(["capture", "decode", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0 segments decoded: 0 frames, 0 events, 0 bytes",
        f"{first['segments']} segments were decoded before; 0 open",
    ]
    damage(next(folder.glob("*.arrows")))
    for path in folder.glob("*/*.parquet"):
        path.unlink()
    assert run(["capture", "decode", str(folder)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(f"{first['segments'] - 1} segments decoded: ")
    assert "is damaged in segment" in said.err and "polybus capture verify" in said.err


def test_a_journey_is_shown_by_id_subject_or_time_and_where_there_is_none_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run(["analyse", str(_made(tmp_path / "captures")), "--out", out]) == 0
    capsys.readouterr()
    assert run(["journey", out, "--start", "2000-01-01T00:00:00Z", "--most", "1"]) == 0
    first = json.loads(capsys.readouterr().out)
    for option, value in (("--id", first["correlation_id"]), ("--subject", first["subject"])):
        assert run(["journey", out, option, value, "--most", "100"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert first["hops"] in [row["hops"] for row in rows]
    status, text = one_line(capsys, "journey", out, "--id", "of nobody")
    assert (status, text) == (1, f"{out}: no request matches; its table exchanges has all ids, subjects and times")
    status, text = one_line(capsys, "journey", out, "--start", "2030-01-01T00:00:00Z", "--end", "2020-01-01T00:00:00Z")
    assert "choose a later end" in text


def test_an_analysis_of_a_time_without_frames_is_status_1_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = str(_made(tmp_path / "captures"))
    assert run(["analyse", capture, "--out", str(tmp_path / "out"), "--start", "2100-01-01T00:00:00Z"]) == 1
    assert "nothing was recorded within --start" in capsys.readouterr().err
