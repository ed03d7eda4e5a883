"""The verdict of the report: planted faults are named, with their numbers, and a good day is called one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from polybus.analysis import DuckEngine, Pipeline
from polybus.analysis.report.page import render
from polybus.analysis.report.verdict import verdict
from polybus.capture.store.segments import SegmentWriter
from tests.unit.capture import rows as frames

MS = 1_000_000
SUBJECTS = ("tank.get", "valve.set", "pump.stop", "door.open")


class _Day:
    """Requests of UBRE and their answers, one after the other."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._at = 0

    def ask(self, number: int, subject: str, answer: str | None, after_ms: float = 1.0) -> None:
        self._say(f'{{"request":"{subject}","id":"{number}"}}', 0)
        if answer is not None:
            self._at += round(after_ms * MS)
            self._say(answer.replace("ID", str(number)), 1)
        self._at += 10 * MS

    def _say(self, text: str, direction: int) -> None:
        row = frames.row(len(self.rows), frame=text.encode(), direction=direction)
        self.rows.append(row | {"ts_ns": row["ts_ns"] + self._at, "mono_ns": row["mono_ns"] + self._at})

    def wait(self, seconds: float) -> None:
        self._at += round(seconds * 1000 * MS)

    def metrics(self, folder: Path) -> dict[str, Any]:
        (folder / "capture").mkdir()
        writer = SegmentWriter(folder / "capture", 0, {"capture_id": "c"})
        writer.write(frames.batch(*self.rows), 0)
        writer.end(len(self.rows))
        writer.seal()
        with DuckEngine(threads=1) as engine:
            return Pipeline(engine).run(folder / "capture", folder / "out").metrics


def _said(metrics: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in verdict(metrics):
        found.setdefault(one.about, []).append(one.text)
    return found


GOOD = '{"success":"ID"}'
BAD = '{"fail":"ID","body":"no such tank","code":5}'


def test_a_good_day_is_called_one(tmp_path: Path) -> None:
    day = _Day()
    for number in range(100):
        day.ask(number, SUBJECTS[number % 4], GOOD)
    metrics = day.metrics(tmp_path)
    assert _said(metrics) == {"fine": ["Nothing failed and nothing went missing: 100 requests."]}
    assert '<li class="fine">' in render(metrics)


def test_three_planted_faults_are_found_in_the_verdict(tmp_path: Path) -> None:
    day, chance = _Day(), random.Random(8)
    for number in range(400):
        subject = SUBJECTS[number % 4]
        if subject == "tank.get" and number % 3 == 0:
            day.ask(number, subject, BAD)
        elif subject == "pump.stop" and number % 10 == 2:
            day.ask(number, subject, None)
        else:
            day.ask(number, subject, GOOD, chance.uniform(190, 210) if subject == "valve.set" else chance.uniform(1, 2))
    day.wait(60)
    day.ask(1000, "tank.get", GOOD)
    metrics = day.metrics(tmp_path)
    said, html = _said(metrics), render(metrics)
    assert set(said) == {"failed", "missing", "slow"}
    assert said["failed"][0].startswith("34 of 401 requests (8.5 %) failed: tank.get with NOT_FOUND (34).")
    assert said["missing"] == ["20 of 401 requests (5 %) were never answered: pump.stop (20)."]
    [slow] = said["slow"]
    assert slow.startswith("valve.set is slow: 5 % of its 100 answers took 2")
    for section in ("errors", "dead-letters", "latency"):
        assert f'<a href="#{section}">' in html and f'<section id="{section}">' in html
    assert html.index('id="verdict"') < html.index('id="totals"')


def test_what_could_not_be_seen_is_said_beside_a_good_day(tmp_path: Path) -> None:
    day = _Day()
    day.ask(1, "tank.get", GOOD)
    day.ask(2, "tank.get", "no message at all")
    said = _said(day.metrics(tmp_path))
    assert said["fine"] == ["Nothing failed and nothing went missing: 2 requests."]
    assert said["unseen"][0].startswith("1 of 4 frames (25 %) could not be read: ubre: bad_json (1).")
    assert said["unseen"][1] == "1 requests were still waiting when the recording ended."


def test_names_of_peers_are_no_html(tmp_path: Path) -> None:
    day = _Day()
    day.ask(1, "<script>alert(1)</script>" + "x" * 100, BAD)
    html = render(day.metrics(tmp_path))
    assert "<script" not in html


@pytest.mark.parametrize("rows", [[], [{"window_ns": 0, "p50_ns": None, "p95_ns": None, "n": 1}]])
def test_nothing_recorded_is_said(rows: list[dict[str, Any]]) -> None:
    totals = {"exchanges": 0, "outcomes": {}}
    counts = dict.fromkeys(("frames", "quarantined", "gaps", "lost", "orphans"), 0)
    metrics = {"totals": totals, "counts": counts, "latency": [], "latency_over_time": rows, "window_ns": 1, "errors": []}
    assert _said(metrics) == {"fine": ["No request was recorded."]}
