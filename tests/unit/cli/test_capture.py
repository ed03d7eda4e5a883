"""record, capture and replay, as people use them."""

import shutil
import signal
from pathlib import Path

import pytest

from polybus.capture import Capture, decode, make_recorder
from polybus.cli.app import run
from tests.unit.capture.folders import damage
from tests.unit.capture.generator import traffic
from tests.unit.cli.support import Cli, next_line, started


def _made(folder: Path) -> Path:
    return traffic(2_000).write(folder, rows=100, segment_batches=8)


@pytest.mark.native
def test_record_then_look_then_replay(url: str, tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "captures"
    with started("record", url, str(folder)) as proxy:
        through = next_line(proxy)
        assert through.startswith("ubre+tcp://127.0.0.1:") and through != url
        assert run(["request", through, "greet", '"Ann"']) == 0
        assert run(["request", through, "echo", '{"token":"hunter2"}']) == 0
        proxy.send_signal(signal.SIGINT)
        out, _ = proxy.communicate(timeout=60)
    assert proxy.returncode == 0
    assert "0 dropped" in out
    capsys.readouterr()
    found = cli.json("capture", "info", str(folder), "--json")
    assert found["frames"] >= 4
    assert found["protocols"] == {"ubre": found["frames"]}
    assert found["marks"] == 4  # two connections, each with a begin and an end
    decoded = [decode(batch.rows) for batch in Capture(folder).batches()]
    assert found["frames"] + found["marks"] == sum(made.frames for made in decoded)
    assert "4 starts and ends of connections" in cli.out("capture", "info", str(folder))
    assert "would send 2 requests over 2 connections" in cli.out("replay", str(folder), url, "--dry-run")
    assert not (tmp_path / "captures-replay").exists()
    report = cli.json("replay", str(folder), url, "--speed", "0", "--json")
    assert (report["answered"], report["failed"]) == (2, 0)
    assert Capture(tmp_path / "captures-replay").segments()
    text = cli.line(1, "replay", str(folder), url, "--speed", "0", "--subject", "nobody.asked")
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
    command: str, of_nothing: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(of_nothing, "c")
    assert "c is empty: the recorder has written nothing" in cli.line(1, *command.split())
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_damage_is_status_1_and_recover_says_what_is_lost(tmp_path: Path, cli: Cli) -> None:
    folder = _made(tmp_path / "c")
    cli.out("capture", "verify", str(folder))
    damage(sorted(folder.iterdir())[0])
    out, err = cli.both(1, "capture", "verify", str(folder))
    assert "segment 0:" in out and "100 rows" in out
    assert "polybus capture recover" in err
    out, err = cli.both(1, "capture", "export", str(folder), str(tmp_path / "lines"), "--format", "jsonl")
    assert Path(out.strip()).stat().st_size, "the rest is there"
    assert "1 stretch with at least 100 frames cannot be read" in err
    assert "polybus capture verify" in cli.err(1, "capture", "compact", str(folder), str(tmp_path / "parquet"))
    assert "lost: at least 100 rows" in cli.out("capture", "recover", str(folder), str(tmp_path / "whole"))
    assert run(["capture", "verify", str(tmp_path / "whole")]) == 0


def test_files_are_not_exported_to_elsewhere(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(_made(tmp_path / "c"))
    monkeypatch.chdir(tmp_path)
    text = cli.line(1, "capture", "export", folder, "s3://bucket/lines")
    assert "s3://bucket/lines: this can only be written to a folder on this machine" in text
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_info_is_for_people_and_compact_and_export_print_their_files(tmp_path: Path, cli: Cli) -> None:
    folder = str(_made(tmp_path / "c"))
    out = cli.out("capture", "info", folder)
    assert "20 connections" in out and "gap: 6 frames missing (dropped)" in out
    printed = cli.out("capture", "compact", folder, str(tmp_path / "p"))
    printed += cli.out("capture", "export", folder, str(tmp_path / "j"), "--format", "jsonl", "--table", "quarantine")
    paths = [Path(line) for line in printed.splitlines()]
    assert [path.suffix for path in paths] == [".parquet", ".jsonl"]
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize(
    ("arguments", "says", "expected"),
    [
        (["capture", "info", "nowhere"], "is not a capture: the folder does not exist", 1),
        (["replay", "s3://bucket/captures", "ubre+tcp://127.0.0.1:1"], "--record DIR, a folder on this machine", 2),
        (["analyse", "nowhere", "--out", "x", "--names", "none.toml"], "--names none.toml: No such file or directory", 2),
        (["journey", "nowhere"], "give --id ID", 2),
        (["journey", "nowhere", "--id", "7"], "nowhere", 1),
        (["journey", "nowhere", "--start", "soon"], "--start='soon': pass a time such as", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "x", "--max-bytes", "lots"], "500M or 10G", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "x", "--listen", "ubre+tcp://0.0.0.0:0"], "--insecure", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "x", "--listen", "csb+tcp://127.0.0.1:0"], "does not translate", 2),
        (["record", "ubre+memory://here", "x"], "--listen", 2),
        (["record", "ubre+tcp://127.0.0.1:1", "s3://bucket/c"], "'s3://bucket/c' must be a folder on this machine", 2),
        (["record", "ubre+tcp://127.0.0.1:1", ""], "record='' must be the path of a folder; '.' is the current one", 2),
        (
            ["broker", "--clients", "csb+tcp://127.0.0.1:0", "--servers", "csb+tcp://127.0.0.1:0", "--record", "s3://b/c"],
            "s3://b/c",
            2,
        ),
        (["record", "jrep+http://127.0.0.1:1/x", "x"], "a proxy cannot record HTTP", 2),
        (["record", "up+zenoh://127.0.0.1:1", "x"], "a proxy cannot record a fabric, which does not have two ends", 2),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    arguments: list[str], says: str, expected: int, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in cli.line(expected, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_capture_is_decoded_once(tmp_path: Path, cli: Cli) -> None:
    folder = _made(tmp_path / "captures")
    first = cli.json("capture", "decode", str(folder), "--json")
    assert (first["fresh"], first["open"], first["damaged"]) == (0, 0, [])
    assert first["segments"] == len(Capture(folder).segments()) == len(list(folder.glob("events/*.parquet")))
    assert cli.out("capture", "decode", str(folder)).splitlines() == [
        "0 segments decoded: 0 frames, 0 events, 0 bytes",
        f"{first['segments']} segments already decoded; 0 still open",
    ]
    damage(next(folder.glob("*.arrows")))
    for path in folder.glob("*/*.parquet"):
        path.unlink()
    out, err = cli.both(1, "capture", "decode", str(folder))
    assert out.startswith(f"{first['segments'] - 1} segments decoded: ")
    assert "is corrupt in segment" in err and "polybus capture verify" in err


def test_a_journey_is_shown_by_id_subject_or_time_and_where_there_is_none_it_is_said(tmp_path: Path, cli: Cli) -> None:
    out = str(tmp_path / "out")
    cli.out("analyse", str(_made(tmp_path / "captures")), "--out", out)
    first = cli.json("journey", out, "--start", "2000-01-01T00:00:00Z", "--most", "1")
    for option, value in (("--id", first["correlation_id"]), ("--subject", first["subject"])):
        rows = cli.rows("journey", out, option, value, "--most", "100")
        assert first["hops"] in [row["hops"] for row in rows]
    text = cli.line(1, "journey", out, "--id", "of nobody")
    assert text == f"{out}: no request matches; see the exchanges table for all ids, subjects and times"
    times = ("--start", "2030-01-01T00:00:00Z", "--end", "2020-01-01T00:00:00Z")
    assert "choose a later end" in cli.line(2, "journey", out, *times)


def test_an_analysis_of_a_time_without_frames_is_status_1_and_says_so(tmp_path: Path, cli: Cli) -> None:
    capture = str(_made(tmp_path / "captures"))
    said = cli.err(1, "analyse", capture, "--out", str(tmp_path / "out"), "--start", "2100-01-01T00:00:00Z")
    assert "no frames match --start" in said
