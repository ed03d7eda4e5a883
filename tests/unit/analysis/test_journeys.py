"""Journeys out of a capture: what belongs together over a bridge is told by bodies, where these say anything."""

from pathlib import Path
from typing import Any

import pytest

from polybus.analysis import journeys

from .days import BAD, GOOD, MS, Day


def _bridged(body: str, others: int, name: str) -> Day:
    """A request comes in; while it waits one goes out for it, and others for nobody knows what; then it fails."""
    day = Day()
    day.say(f'{{"request":"door.open","id":"1","body":{body}}}', 1, conn_id="near")
    for number in range(1 + others):
        day.wait(0.001)
        sent = body if number == 0 else '{"other":"body"}' if len(body) > 2 else body
        day.say(f'{{"request":"motor.{number}.{name}","id":"7","body":{sent}}}', 0, conn_id=f"far-{number}")
        day.wait(0.001)
        day.say(GOOD.replace("ID", "7"), 1, conn_id=f"far-{number}")
    day.wait(0.001)
    day.say(BAD.replace("ID", "1"), 0, conn_id="near")
    return day


@pytest.mark.parametrize(
    ("body", "others", "name", "hops", "may_be"),
    [
        ('{"door":3}', 3, "open", ["", "same name and body"], []),
        ('{"door":3}', 3, "run", [""], ["same body"]),
        ("{}", 3, "run", [""], []),
        ("{}", 0, "run", [""], ["nothing else at that time"]),
    ],
)
def test_a_failed_request_is_followed_as_far_as_its_name_and_body_say_something(
    tmp_path: Path, body: str, others: int, name: str, hops: list[str], may_be: list[str]
) -> None:
    done = _bridged(body, others, name).analysed(tmp_path)
    [failed] = [row for row in done.metrics["journeys"] if row["why"] == "failed"]
    assert [hop["known_by"] for hop in failed["hops"]] == hops
    assert [hop["known_by"] for hop in failed["may_be"]] == may_be
    assert [hop["conn_id"] for hop in (*failed["hops"], *failed["may_be"])] == ["near", "far-0"][: len(hops) + len(may_be)]
    frames = [(frame["conn_id"], frame["kind"]) for frame in failed["frames"]]
    far = [("far-0", "request"), ("far-0", "response")] * (len(hops) - 1)
    assert frames == [("near", "request"), *far, ("near", "response")], "what only may belong to it is not drawn"
    assert [frame["at_ns"] for frame in failed["frames"]][: 1 + len(far)] == [0, 1_000_000, 2_000_000][: 1 + len(far)]
    slowest = {row["subject"] for row in done.metrics["journeys"] if row["why"] == "slowest"}
    on_the_way = len(hops) > 1
    assert slowest == {f"motor.{at}.{name}" for at in range(1 + others) if at or not on_the_way}, "none is shown twice"
    assert not may_be or "These exchanges may belong to it:" in Path(done.report).read_text()


@pytest.mark.parametrize("quick", [False, True], ids=["alone", "beside a quick answer"])
def test_a_frame_in_a_tunnel_is_shown_beside_the_frames_that_carry_it(tmp_path: Path, *, quick: bool) -> None:
    day = Day()
    if quick:
        day.ask(9, "tank.get", GOOD, 0.00001)
        day.wait(60)
    for text, direction in (('{"request":"door.open","id":"1"}', 0), (BAD.replace("ID", "1"), 1)):
        day.say(f'{{"item":"7","body":"{"of the other way" * 9}"}}', 1 - direction, conn_id="other")
        for depth in (2, 1, 0):  # each frame is written down before that which carries it
            said = text if depth == 2 else f'{{"item":"7","body":"{"x" * (90 - depth)}"}}'
            day.say(said, direction, conn_id=f"at-{depth}", tunnel=["plant", "hall"][:depth])
            day.wait(0.0001)
        day.wait(0.1)
        day.say(f'{{"item":"7","body":"{"of something else" * 9}"}}', direction, conn_id="at-0")
        day.wait(0.1)
    done = day.analysed(tmp_path)
    failed = done.metrics["journeys"][0]
    assert [hop["tunnel"] for hop in failed["hops"]] == [["plant", "hall"]]
    frames = [(frame["conn_id"], frame["carries"], frame["kind"]) for frame in failed["frames"]]
    assert frames == [
        (conn, conn != "at-2", "item" if conn != "at-2" else kind)
        for kind in ("request", "response")
        for conn in ("at-2", "at-1", "at-0")
    ]
    html = Path(done.report).read_text()
    assert html.count("carries the frame in the tunnel") == 4 and "in hall in plant" in html


def test_four_journeys_of_a_kind_are_shown_and_of_as_many_subjects_as_there_are(tmp_path: Path) -> None:
    day = Day()
    for number in range(20):
        day.ask(number, f"tank.{number // 10}", BAD)
    for number in range(20, 26):
        day.ask(number, f"pump.{number}", BAD)
    assert [row["subject"] for row in day.metrics(tmp_path)["journeys"]] == ["tank.0", "tank.1", "pump.20", "pump.21"]


def test_any_journey_can_be_asked_for_by_id_subject_or_time(tmp_path: Path) -> None:
    day = Day()
    for number in range(20):
        day.ask(number, "tank.get" if number % 2 else "it's {odd}.get", GOOD)
    done = day.analysed(tmp_path, report=False)
    begin = 1_700_000_000_000_000_000

    def ids(**given: Any) -> list[str]:
        return [row["correlation_id"] for row in journeys(done.out, **given)]

    assert ids(id="7") == ["7"]
    assert ids(id="nobody's {id}") == ids(id="7", subject="it's.*") == []
    assert ids(subject="tank.*", most=3) == ["1", "3", "5"]
    assert ids(subject="it's {odd}.get", most=2) == ["0", "2"]
    assert ids(start_ns=begin + 11 * MS, end_ns=begin + 33 * MS) == ["1", "2"]
    with pytest.raises(ValueError, match="choose a later end"):
        journeys(done.out, start_ns=2, end_ns=1)
    [found] = journeys(done.out, id="7")
    assert (found["why"], [hop["known_by"] for hop in found["hops"]], len(found["frames"])) == ("asked", [""], 2)


def test_a_request_without_a_time_is_on_no_journey(tmp_path: Path) -> None:
    day = Day()
    for number in range(2):
        day.ask(number, "door.open", GOOD)
    day.rows[0]["ts_ns"] = None
    day.analysed(tmp_path)
    assert [found["correlation_id"] for found in journeys(tmp_path / "out")] == ["1"]
