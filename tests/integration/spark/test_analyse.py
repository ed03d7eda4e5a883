"""`polybus analyse`: what it prints, and what it says where it cannot."""

import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from polybus.analysis.clocks import Holes
from polybus.analysis.ingest import IngestResult, RunCounts
from polybus.analysis.pipeline import _ended, _metrics_of
from polybus.analysis.results import Output
from polybus.analysis.storage import TableStorage
from polybus.cli.analyse import _reason, _say, _why, in_units, named_failures
from polybus.cli.app import run
from polybus.cli.problems import PeerError
from polybus.spark import Done, Pipeline
from polybus.spark.session import SparkUnavailable, check_java, start_session
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import write_segment


def _ask(seq: int, number: int, after_s: int) -> dict[str, Any]:
    return _said(seq, b'{"request":"tank.get","id":"%d"}' % number, after_s)


def _answer(seq: int, number: int, after_s: int) -> dict[str, Any]:
    return _said(seq, b'{"success":"%d"}' % number, after_s) | {"direction": 1}


def _said(seq: int, frame: bytes, after_s: int, **given: Any) -> dict[str, Any]:
    usual = frames.row(seq, frame=frame, **given)
    after = after_s * 1_000_000_000
    return usual | {"ts_ns": usual["ts_ns"] + after, "mono_ns": usual["mono_ns"] + after}


def test_exchanges_are_provisional_until_nothing_that_is_recorded_can_change_them(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, out = tmp_path / "capture", tmp_path / "out"
    pipeline = Pipeline(spark)
    # The recording goes on: the answer to 3 may still come, and 1 and 2 may be used again.
    asked, answered = (_ask(0, 1, 0), _ask(1, 2, 0), _ask(2, 3, 0)), (_answer(3, 1, 1), _answer(4, 2, 1))
    write_segment(capture, frames.batch(*asked, *answered))
    runs = [pipeline.run(capture, out, report=False)]
    # Beyond the horizon of the first three.
    write_segment(capture, frames.batch(_ask(5, 4, 1000), _ask(6, 5, 1000), _answer(7, 4, 1001)), number=1)
    runs.append(pipeline.run(capture, out, report=False))
    # Another recording, long after that one's end.
    write_segment(capture, frames.batch(_said(0, b'{"publish":"news"}', 200_000, capture_id="d")), number=2, recording="d")
    runs.append(pipeline.run(capture, out, report=False))
    found = [(done.added.exchanges, done.provisional, done.total.exchanges) for done in runs]
    assert found == [(0, 3, 3), (3, 2, 5), (2, 0, 5)]
    last = Output(TableStorage(out)).last
    assert last.ends.keys() == last.seen.keys() == set(), "nothing is carried of what has been outlived"
    # Metrics and a report that are not of the last run are made anew.
    (out / "metrics.json").write_text('{"runs": 0}')
    (out / "report.html").write_text("of another day")
    assert run(["analyse", str(capture), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["added"] == attrs.asdict(RunCounts())
    assert (told["provisional"], told["total"]["exchanges"]) == (0, 5)
    assert {name: n for name, n in told["outcomes"].items() if n} == {"ok": 3, "unanswered": 1, "open-at-end": 1}
    assert Path(told["report"]).read_text().startswith("<!doctype html>")
    made = _metrics_of(Output(TableStorage(out)))
    assert made is not None
    assert made["counts"]["frames"] == told["total"]["frames"] == 9
    assert made["totals"]["outcomes"] == told["outcomes"]
    (out / "metrics.json").write_text("{")
    assert _metrics_of(Output(TableStorage(out))) is None


def test_a_recording_that_goes_on_after_it_was_taken_for_over_is_not_over() -> None:
    over, on = IngestResult(holes=Holes(ends={"a": 1, "b": 1}), ended=["a"]), IngestResult(holes=Holes(ends={"a": 2}))
    assert _ended([]) == _ended([over, on]) == set()
    assert _ended([on, over]) == _ended([over, IngestResult(holes=Holes(ends={"b": 2}))]) == {"a"}


@pytest.mark.parametrize(
    ("provisional", "said"), [(0, []), (2, ["2 of them are provisional, because later recordings may change them"])]
)
def test_people_are_told_how_many_exchanges_may_still_change(
    provisional: int, said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    outcomes = {"ok": 4, "error": 0, "unanswered": 1}
    total = RunCounts(frames=10, rowed=10, events=10, exchanges=5)
    verdict = [{"about": "missing", "text": "1 of 5 requests (20 %) were never answered.", "section": "Dead letters"}]
    metrics = {"totals": {"exchanges": 5, "orphans": 0, "outcomes": outcomes}, "verdict": verdict}
    _say(Done("out", total, total, metrics, "out/report.html", provisional), "duckdb", "set by --engine", as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "10 frames: 10 messages, 0 quarantined, 0 empty",
        "5 exchanges: 4 ok, 1 unanswered",
        *said,
        "missing: 1 of 5 requests (20 %) were never answered.",
        "engine: duckdb, set by --engine",
        "report: out/report.html",
    ]


def test_a_number_of_bytes_is_said_in_units() -> None:
    sizes = 0, 1023, 1536, 5 << 40, 1 << 60
    assert [in_units(size) for size in sizes] == ["0 bytes", "1023 bytes", "1.5 KiB", "5 TiB", "1.05e+06 TiB"]


def _java(folder: Path, says: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


def test_no_java_and_wrong_java_are_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="the PATH has no `java`: on a Debian"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(SparkUnavailable, match=r"from JAVA_HOME\) does not run"):
        check_java()
    for name, says, seen in [
        ("eight", 'openjdk version "1.8.0_402"', "Java 8"),
        ("eleven", 'openjdk version "11.0.22" 2024-01-16', "Java 11"),
        ("none", "what?", "what?"),
    ]:
        _java(tmp_path / name, says)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / name))
        with pytest.raises(SparkUnavailable, match=rf"needs Java 17 or newer, and .* is {seen}".replace("?", r"\?")):
            check_java()
    _java(tmp_path / "new", 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert check_java() == str(tmp_path / "new" / "bin" / "java")


def test_the_session_listens_on_loopback_only_and_there_is_one(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None
    assert start_session() is spark
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_what_a_task_says_is_found_in_what_spark_says() -> None:
    text = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "somewhere.py", line 1, in read
polybus.capture.errors.CaptureError: segment 3 is gone: read more often

    at org.apache.spark.Something(Something.scala:1)"""
    assert _reason(text) == "segment 3 is gone: read more often"
    assert _reason("No space\nleft") == "No space"
    assert (
        _reason(text.replace("polybus.capture.errors.CaptureError", "MemoryError"))
        == "MemoryError: segment 3 is gone: read more often"
    )
    java = """An error occurred while calling o1.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.Something(Something.scala:1)
Caused by: java.io.IOException: No space left on device"""
    assert _reason(java) == "java.io.IOException: No space left on device"
    assert _reason("")


def test_a_user_who_interrupts_is_not_told_how_py4j_has_taken_it() -> None:
    error = Py4JError("Gateway must be connected to send cancel cmd.")
    error.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), named_failures():
        raise error
    with pytest.raises(PeerError, match="^Gateway must be connected to send cancel cmd.$"), named_failures():
        raise Py4JError("Gateway must be connected to send cancel cmd.")


def test_why_spark_does_not_start_is_found_in_what_its_jvm_writes() -> None:
    unreachable = """WARN Client: Failed to connect to master 127.0.0.1:1
org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.Something(Something.scala:1)
Caused by: java.io.IOException: Failed to connect to /127.0.0.1:1"""
    assert _why(unreachable.splitlines()) == "java.io.IOException: Failed to connect to /127.0.0.1:1"
    wrong = 'a line\nException in thread "main" org.apache.spark.SparkException: Master must either be yarn'
    assert "Master must" in _why(wrong.splitlines())
    late = "WARNING: Using incubator modules\nAn error occurred while calling it.\n: java.net.BindException: no such address"
    assert _why(late.splitlines()) == "java.net.BindException: no such address"
    assert _why(["WARNING: Using incubator modules", "Java gateway process exited"]) == "Java gateway process exited"
