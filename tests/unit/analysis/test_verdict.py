"""The verdict of the report: planted faults are named, with their numbers, and a good day is called one."""

import errno
import json
import os
import random
from html import escape
from pathlib import Path
from typing import Any

import pytest

from polybus.analysis.report.page import render
from polybus.analysis.report.tables import MANY
from polybus.analysis.report.verdict import _broke, verdict
from polybus.cli.analyse import results_of
from polybus.cli.app import run

from .days import BAD, GOOD, SUBJECTS, Day


def _said(metrics: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in verdict(metrics):
        found.setdefault(one.about, []).append(one.text)
    return found


def test_a_good_day_is_called_one_and_what_could_not_be_seen_is_said_beside_it(tmp_path: Path) -> None:
    day = Day()
    for number in range(100):
        day.ask(number, SUBJECTS[number % 4], GOOD)
    day.ask(100, "tank.get", "no message at all")
    for number, code in enumerate((1000, 1006, 1006, 1009)):
        end = f'{{"link":{{"state":"close","code":{code},"reason":""}}}}'
        day.say(None, 0, conn_id=f"link-{number}", options=end)
    metrics = day.metrics(tmp_path)
    assert _said(metrics) == {
        "fine": ["Nothing failed and nothing went missing: 101 requests."],
        "unseen": [
            "1 of 206 frames (0.49 %) could not be read: ubre: bad_json (1).",
            "1 request had no answer when the recording ended.",
        ],
        "broke": [
            "3 of 5 connections (60 %) broke off: 127.0.0.1, ubre: no close message, 1006 (2), "
            "127.0.0.1, ubre: message too large, 1009 (1)."
        ],
    }
    assert '<li class="fine">' in render(metrics)


def test_four_planted_faults_are_found_in_the_verdict(tmp_path: Path) -> None:
    day, chance = Day(), random.Random(8)
    for number in range(400):
        subject = SUBJECTS[number % 4]
        if subject == "tank.get" and number % 3 == 0:
            day.ask(number, subject, BAD)
        elif subject == "pump.stop" and number % 10 == 2:
            day.ask(number, subject, None)
        elif subject == "door.open" and number % 50 == 3:
            day.ask(number, subject, None)
            day.say(f'{{"cancel":"{number}"}}', 0)
        else:
            day.ask(number, subject, GOOD, chance.uniform(190, 210) if subject == "valve.set" else chance.uniform(1, 2))
    day.wait(60)
    day.ask(1000, "tank.get", GOOD)
    metrics = day.metrics(tmp_path)
    said, html = _said(metrics), render(metrics)
    assert set(said) == {"refused", "missing", "cancelled", "slow"}
    assert said["cancelled"] == ["4 of 401 requests (1 %) were cancelled by the asker: door.open (4)."]
    assert said["refused"][0].startswith("34 of 401 requests (8.5 %) were refused: tank.get with NOT_FOUND (34).")
    assert said["missing"] == ["20 of 401 requests (5 %) were never answered: pump.stop (20)."]
    [slow] = said["slow"]
    assert slow.startswith("valve.set is slow: 5 % of its 100 answers took 2")
    for section in ("errors", "dead-letters", "latency"):
        assert f'<a href="#{section}">' in html and f'<section id="{section}">' in html
    assert html.index('id="verdict"') < html.index('id="totals"')


def _nothing(**given: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {"totals": {"exchanges": 0, "streams": 0, "orphans": 0, "outcomes": {}}, "window_ns": 1}
    metrics["counts"] = dict.fromkeys(("frames", "quarantined", "gaps", "lost", "orphans"), 0)
    lists = ("latency", "latency_over_time", "streams", "errors", "places", "clocks", "unheard")
    return metrics | dict.fromkeys(lists, []) | given


@pytest.mark.parametrize("rows", [[], [{"window_ns": 0, "p50_ns": None, "p95_ns": None, "n": 1}]])
def test_nothing_recorded_is_said(rows: list[dict[str, Any]]) -> None:
    assert _said(_nothing(latency_over_time=rows)) == {"fine": ["No request was recorded."]}


def test_a_subject_named_others_is_not_the_rest() -> None:
    rows = [{"subject": name, "n": n} for name, n in (("others", 9), ("a", 8), ("b", 7), ("c", 2), ("d", 1))]
    (text,) = _said(_nothing(unheard=rows))["unheard"]
    assert text.startswith("27 publications arrived without a subscribed client: others (9), a (8), b (7) and 3 others. ")


def test_the_command_says_the_same_sentences_as_the_report_where_names_of_peers_are_no_html(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day = Day()
    for number in range(10):
        day.ask(number, "<script>alert(1)</script>", BAD if number == 4 else GOOD)
    capture, out = day.write(tmp_path / "capture"), tmp_path / "out"
    assert run(["analyse", str(capture), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["verdict"]
    assert told == json.loads((out / "metrics.json").read_text())["verdict"]
    text = "1 of 10 requests (10 %) were refused: <script>alert(1)</script> with NOT_FOUND (1)."
    assert told == [{"about": "refused", "section": "Errors", "text": text}]
    html = (out / "report.html").read_text()
    assert escape(text) in html
    assert html.count("<script") == 1


def test_defects_and_broken_connections_come_before_what_a_service_refuses(tmp_path: Path) -> None:
    day = Day()
    for number in range(30):
        day.ask(number, "tank.get", BAD if number < 8 else BAD.replace("5}", "13}") if number < 10 else GOOD)
    day.say(None, 0, conn_id="link-1", options='{"link":{"state":"close","code":1006,"reason":""}}')
    metrics = day.metrics(tmp_path)
    assert [(one.about, one.text) for one in verdict(metrics)] == [
        ("failed", "2 of 30 requests (6.7 %) failed because of a defect in the service: tank.get with INTERNAL (2)."),
        ("broke", "1 of 2 connections (50 %) broke off: 127.0.0.1, ubre: no close message, 1006 (1)."),
        ("refused", "8 of 30 requests (27 %) were refused: tank.get with NOT_FOUND (8)."),
    ]
    assert metrics["sessions"][0]["conn_id"] == "link-1"
    assert [row["code_name"] for row in metrics["journeys"] if row["why"] == "failed"][:2] == ["INTERNAL", "NOT_FOUND"]


def test_a_connection_is_whose_name_it_says_else_that_of_its_host() -> None:
    row = {"protocol": "ubre", "closed": "1006", "who": None}
    ends = [row | {"peer": f"10.0.0.5:{port}"} for port in (1, 2, 3)] + [row | {"peer": "10.0.0.5:4", "who": "kitchen"}]
    metrics = {"sessions": [*ends, row | {"peer": "[::1]:5", "closed": "1000"}], "totals": {"outcomes": {}}}
    [finding] = _broke(metrics)
    assert finding.text == (
        "4 of 5 connections (80 %) broke off: 10.0.0.5, ubre: no close message, 1006 (3), "
        "kitchen, ubre: no close message, 1006 (1)."
    )


def test_an_analysis_needs_no_folder_says_its_verdict_through_a_pipe_and_fails_on_what_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day = Day()
    for number in range(30):
        day.ask(number, "tank.get", BAD if number < 3 else GOOD, 200)
    capture = str(day.write(tmp_path / "capture"))
    statuses = {
        option: run(["analyse", capture, *(["--fail-on", option] if option else [])])
        for option in (
            *("", "failed,refused=3,lost,broke,slow=0.3", "refused = 3,", "refused", "slow=0.1"),
            *("tired", "slow", "failed=nan", "lost=-1", "slow=inf", ","),
        )
    }
    said = capsys.readouterr()
    assert list(statuses.values()) == [0, 0, 0, 1, 1, *[2] * 6]
    assert "refused: 3 of 30 requests (10 %) were refused: tank.get with NOT_FOUND (3).\n" in said.out
    for text in ("--fail-on: 3 refused", "1 subject slower than 0.1 s, such as tank.get", "--fail-on tired", "--fail-on slow"):
        assert text in said.err
    results = tmp_path / "capture-results"
    assert "<h1 title=" in (results / "report.html").read_text()
    assert {path.stat().st_mode & 0o077 for path in (results, *results.rglob("*"))} == {0}


def test_results_lie_beside_a_capture_however_it_is_named_and_where_that_may_not_be_it_is_said_what_may(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day()
    day.ask(1, "tank.get", GOOD)
    capture = day.write(tmp_path / "capture")
    monkeypatch.chdir(capture)
    beside = str(tmp_path / "capture-results")
    assert {results_of(name) for name in (".", "./", "../capture/.", str(capture), f"{capture}/")} == {beside}
    assert results_of("..") == f"{tmp_path}-results"

    def refused(place: str, *given: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", place)

    monkeypatch.setattr(os, "makedirs", refused)
    assert run(["analyse", "."]) == 1
    assert f"Permission denied: '{beside}': choose another folder with --out DIR" in capsys.readouterr().err


def test_a_connection_that_broke_off_is_counted_where_the_list_has_no_room_for_it(tmp_path: Path) -> None:
    day, end = Day(), '{"link":{"state":"close","code":%d,"reason":""}}'
    for number in range(MANY):
        for _ in range(2):
            day.say(None, 0, conn_id=f"good-{number}", options=end % 1000)
    day.say(None, 0, conn_id="bad", options=end % 1006)
    assert run(["analyse", str(day.write(tmp_path / "capture")), "--fail-on", "broke"]) == 1
