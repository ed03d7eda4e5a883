"""Comparison with the capture before: planted changes are told with both numbers, and chance is not."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polybus.analysis import DuckEngine, Pipeline
from polybus.analysis.report.verdict import Earlier, Measured, compare, read_earlier
from polybus.capture.errors import CaptureError
from polybus.cli.app import run

from .days import BAD, GOOD, MS, SUBJECTS, Day


def _day(seed: int, *, broken: bool) -> Day:
    """400 requests to four subjects, and some news; on a broken one three subjects are not what they were."""
    day, chance = Day(), random.Random(seed)
    for number in range(400):
        subject, slow = SUBJECTS[number % 4], chance.uniform(1, 2)
        if broken and subject == "tank.get" and number % 3 == 0:
            day.ask(number, subject, BAD)
        elif broken and subject == "pump.stop":
            day.ask(number, subject, None if number % 10 == 2 else GOOD)
        elif broken and subject == "door.open":
            day.ask(number, "door.close", GOOD)
        else:
            day.ask(number, subject, GOOD, 20 * slow if broken and subject == "valve.set" else slow)
        if number % 20 == 0 and not broken:
            day.say('{"publish":"news.sport"}', 1)
    day.wait(60)
    day.ask(1000, "tank.get", GOOD)
    return day


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("earlier")
    for name in ("good", "broken"):
        _day(1, broken=name == "broken").analysed(folder / name)
    return {name: folder / name / "out" for name in ("good", "broken")}


def _told(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["about"], one["text"]) for one in metrics["verdict"] if one["section"] == "Compared"]


def test_planted_changes_are_told_with_both_numbers_and_compared_with_what_the_last_run_was_asked_for(
    earlier: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, out = _day(2, broken=True).write(tmp_path / "capture"), tmp_path / "out"

    def analysed(*more: str) -> dict[str, Any]:
        assert run(["analyse", str(capture), "--out", str(out), "--json", *more]) == 0
        metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
        assert json.loads(capsys.readouterr().out)["verdict"] == metrics["verdict"]
        return metrics

    assert _told(analysed()) == []
    metrics = analysed("--before", str(earlier["good"]))
    told = _told(metrics)
    missing = [("missing", name) for name in ("pump.stop", "door.open", "news.sport")]
    others = ("slow", "valve.set"), ("new", "door.close")
    assert [(about, text.split(" ")[0]) for about, text in told] == [("failed", "tank.get"), *missing, *others]
    texts = [text for _, text in told]
    assert texts[0] == "tank.get fails more often: 34 of 101 requests (34 %), before 0 of 101 requests (0 %)."
    for text, numbers in zip(texts[1:], ("20 of 100", "before 100", "before 20", "half of 100", "before none"), strict=True):
        assert numbers in text
    html = (out / "report.html").read_text()
    assert '<section id="compared">' in html
    assert texts[0] in html
    rows = {(row["kind"], row["subject"]): row for row in metrics["changes"]}
    assert (rows["request", "tank.get"]["failed"], rows["request", "tank.get"]["failed_before"]) == (34, 0)
    assert rows["publish", "news.sport"]["change"] == "gone"
    assert [about for about, _ in _told(analysed("--before", str(earlier["broken"])))] == ["same"]
    assert _told(analysed()) == []
    assert 'id="compared"' not in (out / "report.html").read_text()


def test_a_day_like_the_one_before_has_not_changed_and_one_that_was_mended_is_called_better(
    earlier: dict[str, Path], tmp_path: Path
) -> None:
    day = _day(2, broken=False)
    metrics = day.analysed(tmp_path, before=earlier["good"]).metrics
    [(about, text)] = _told(metrics)
    assert about == "same"
    assert text.startswith("No significant changes since the earlier capture: 401 requests from 2023-11-14 ")
    assert metrics["verdict"][0]["about"] == "fine"
    with DuckEngine(threads=1) as engine:
        metrics = Pipeline(engine).run(tmp_path / "capture", tmp_path / "out", before=earlier["broken"]).metrics
    better = [text for about, text in _told(metrics) if about == "better"]
    texts = ["tank.get fails less often", "pump.stop gets no answer less often", "valve.set has become faster"]
    assert [text.split(":")[0] for text in better] == texts
    assert metrics["verdict"][0]["about"] == "missing", "door.close is gone"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"has no metrics.json to compare with: `polybus analyse CAPTURE --out .*` writes it"),
        ("{", "is of another version of polybus, or corrupt .*: analyse that capture again, into a new folder"),
        ('{"capture":"c","begin_ns":0,"end_ns":"soon"}', "is of another version of polybus, or corrupt"),
        ("[" * 100_000, "is of another version of polybus, or corrupt"),
    ],
)
def test_what_cannot_be_compared_with_is_said_before_anything_is_done(tmp_path: Path, text: str | None, said: str) -> None:
    before = tmp_path / "before"
    before.mkdir()
    if text is not None:
        (before / "metrics.json").write_text(text)
    day = Day()
    day.ask(1, "tank.get", GOOD)
    with pytest.raises(CaptureError, match=said):
        day.analysed(tmp_path / "now", before=before)
    assert not (tmp_path / "now" / "out").exists()


def test_results_are_not_compared_with_themselves(tmp_path: Path) -> None:
    for before, out in ((tmp_path / "out", f"{tmp_path}/out/"), ("s3://bucket/out/", "s3://bucket/out")):
        with pytest.raises(CaptureError, match="is the folder of these results: choose"):
            read_earlier(before, out)


def _change(now: dict[str, Any], before: dict[str, Any], seconds: tuple[int, int] = (60, 60)) -> str | None:
    """The change of a subject with a hundred answers of 2 ms, but for what is given."""
    usual = {"protocol": "ubre", "subject": "a", "n": 100, "answered": 100, "p50_ns": 2 * MS, "p95_ns": 4 * MS}
    usual |= dict.fromkeys(("error", "late", "timeout", "unanswered", "asked"), 0)
    whole = []
    for length, own in zip(seconds, (now, before), strict=True):
        times = {"capture": "c", "begin_ns": 0, "end_ns": length * 1000 * MS}
        rows = [usual | own] * bool(own.get("n", 1))
        whole.append({**times, "totals": {"exchanges": 1}, "topics": [], "latency": rows})
    rows = compare(whole[0], Earlier(msgspec.convert(whole[1], Measured), ""))["changes"]
    return rows[0]["change"] if rows else None


@pytest.mark.parametrize(
    ("now", "before", "seconds", "change"),
    [
        *(({"error": errors}, {}, (60, 60), change) for errors, change in ((3, None), (9, "failed more"))),
        ({"error": 60}, {"error": 45}, (60, 60), None),
        ({"timeout": 5, "unanswered": 5}, {}, (60, 60), "lost more"),
        ({"late": 1}, {"late": 12}, (60, 60), "late less"),
        *(({"p50_ns": ns}, {}, (60, 60), change) for ns, change in ((3 * MS, "slower"), (2_900_000, None))),
        ({"p50_ns": 3 * MS, "asked": 100}, {"asked": 90}, (60, 60), "slower"),
        ({"p50_ns": 3 * MS, "asked": 100}, {}, (60, 60), None),
        ({"p50_ns": 900_000, "p95_ns": MS}, {"p50_ns": 1000, "p95_ns": 2000}, (60, 60), None),
        ({"p50_ns": 3 * MS, "answered": 19}, {}, (60, 60), None),
        *(({"p95_ns": 6 * MS, "answered": n}, {}, (60, 60), change) for n, change in ((100, "slower"), (99, None))),
        ({"p95_ns": 6 * MS}, {"p95_ns": 9 * MS}, (60, 60), "faster"),
        *(({"n": 0}, {"n": n}, (60, 60), change) for n, change in ((5, "gone"), (4, None))),
        *(({"n": 0}, {"n": 100}, (1, 60), None), ({"n": 5}, {"n": 0}, (60, 60), "new")),
        *(({"n": 50}, {}, (60, 60), "fewer"), ({"n": 50}, {}, (30, 60), None), ({"n": 80}, {}, (60, 60), None)),
    ],
)
def test_a_change_is_told_from_its_threshold_on(
    now: dict[str, Any], before: dict[str, Any], seconds: tuple[int, int], change: str | None
) -> None:
    assert _change(now, before, seconds) == change
