"""Journeys out of a capture: what belongs together over a bridge is told by bodies, where these say anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from .days import BAD, GOOD, Day


def _bridged(body: str, others: int) -> Day:
    """A request comes in; while it waits one goes out for it, and others for nobody knows what; then it fails."""
    day = Day()
    day.say(f'{{"request":"door.open","id":"1","body":{body}}}', 1, conn_id="near")
    for number in range(1 + others):
        day.wait(0.001)
        sent = body if number == 0 else '{"other":"body"}' if len(body) > 2 else body
        day.say(f'{{"request":"motor.run.{number}","id":"7","body":{sent}}}', 0, conn_id=f"far-{number}")
        day.wait(0.001)
        day.say(GOOD.replace("ID", "7"), 1, conn_id=f"far-{number}")
    day.wait(0.001)
    day.say(BAD.replace("ID", "1"), 0, conn_id="near")
    return day


@pytest.mark.parametrize(
    ("body", "others", "known_by"),
    [
        ('{"door":3}', 3, ["", "same body"]),
        ('{"door":3}', 0, ["", "same body"]),
        ("{}", 3, [""]),
        ("{}", 0, ["", "nothing else at that time"]),
    ],
)
def test_a_failed_request_is_followed_as_far_as_its_body_says_something(
    tmp_path: Path, body: str, others: int, known_by: list[str]
) -> None:
    metrics = _bridged(body, others).metrics(tmp_path)
    [failed] = [row for row in metrics["journeys"] if row["why"] == "failed"]
    assert [hop["known_by"] for hop in failed["hops"]] == known_by
    assert [hop["conn_id"] for hop in failed["hops"]] == ["near", "far-0"][: len(known_by)]
    frames = [(frame["conn_id"], frame["kind"]) for frame in failed["frames"]]
    if len(known_by) == 2:
        assert frames == [("near", "request"), ("far-0", "request"), ("far-0", "response"), ("near", "response")]
        assert [frame["at_ns"] for frame in failed["frames"]][:3] == [0, 1_000_000, 2_000_000]


def test_a_request_on_the_way_of_another_one_is_not_shown_twice(tmp_path: Path) -> None:
    journeys = _bridged('{"door":3}', 3).metrics(tmp_path)["journeys"]
    asked = [(row["why"], row["subject"]) for row in journeys]
    assert ("failed", "door.open") in asked
    assert ("slowest", "motor.run.0") not in asked
    assert sorted(subject for why, subject in asked if why == "slowest") == ["motor.run.1", "motor.run.2", "motor.run.3"]


def test_four_journeys_of_a_kind_are_shown_and_of_as_many_subjects_as_there_are(tmp_path: Path) -> None:
    day = Day()
    for number in range(20):
        day.ask(number, f"tank.{number // 10}", BAD)
    for number in range(20, 26):
        day.ask(number, f"pump.{number}", BAD)
    journeys = day.metrics(tmp_path)["journeys"]
    assert [row["subject"] for row in journeys] == ["tank.0", "tank.1", "pump.20", "pump.21"]
