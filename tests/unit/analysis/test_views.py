"""Each exchange is counted once, whoever has recorded it, and the sentences of the verdict add up."""

import random
import re
from pathlib import Path
from typing import Any

import attrs
import duckdb
import pytest

from polybus import Route
from polybus.analysis import DuckEngine, Names, journeys
from polybus.analysis.report.metrics import measure
from polybus.analysis.report.page import row_groups
from polybus.analysis.report.verdict import verdict
from polybus.analysis.results import Output
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import write_segment

from .days import MS, analyse

HOUR = 3600 * 1000


class Folder:
    """Recordings of the same exchanges, each with a clock that is so many ms ahead."""

    def __init__(self, **ahead_ms: float) -> None:
        self._ahead = ahead_ms
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ahead_ms}

    def say(self, where: str, at_ms: float, direction: int, text: str, conn: str = "") -> None:
        rows = self._rows[where]
        row = frames.row(0, frame=text.encode(), direction=direction, capture_id=where, conn_id=f"{where}-{conn}")
        at = round(at_ms * MS)
        rows.append(row | {"ts_ns": row["ts_ns"] + at + round(self._ahead[where] * MS), "mono_ns": row["mono_ns"] + at})

    def asked(self, id: str, subject: str, at: float, took: float | None, where: dict[str, str], *, fail: bool = False) -> None:
        """An exchange as some places see it on connections of theirs, from the outside to the inside, each 1 ms further."""
        for depth, (place, conn) in enumerate(where.items()):
            asks = depth == 0 and place.startswith("client")
            request = f'{{"request":"{subject}","id":"{id}","body":{{"n":"{conn}"}}}}'
            self.say(place, at + depth, 0 if asks else 1, request, conn)
            answer = f'{{"fail":"{id}","body":"no","code":5}}' if fail else f'{{"success":"{id}"}}'
            if took is not None:
                self.say(place, at + took - depth, 1 if asks else 0, answer, conn)

    def recordings(self) -> dict[str, list[dict[str, Any]]]:
        for rows in self._rows.values():
            rows.sort(key=lambda row: row["mono_ns"])
        return {name: [row | {"seq": seq} for seq, row in enumerate(rows)] for name, rows in self._rows.items()}

    def metrics(self, folder: Path, names: Names | None = None) -> dict[str, Any]:
        capture = folder / "capture"
        for number, (name, rows) in enumerate(self.recordings().items()):
            write_segment(capture, frames.batch(*rows), number=number, recording=name, ends=True)
        analyse(capture, folder / "out")
        with DuckEngine(threads=1) as engine:
            metrics = measure(engine, Output.of(folder / "out"), names)
        return metrics | {"verdict": [attrs.asdict(one) for one in verdict(metrics)]}


ALL = {"client": "a", "broker": "a", "server": "a"}


@pytest.mark.parametrize(
    ("places", "ahead", "latency", "whose"),
    [
        (("client", "broker", "server"), {}, 20, 0),
        (("client", "broker", "server"), {"broker": -HOUR, "server": 300}, 20, 0),
        (("broker", "server"), {"server": 2 * HOUR}, 20, 1),
        (("server",), {}, 20, 1),
    ],
)
def test_what_several_places_recorded_is_one_exchange_of_whoever_was_nearest_to_asking(
    tmp_path: Path, places: tuple[str, ...], ahead: dict[str, float], latency: float, whose: int
) -> None:
    day = Folder(**{place: ahead.get(place, 0) for place in places})
    for number in range(30):
        day.asked(f"x-{number}", "tank.get", number * 50, latency, dict.fromkeys(places, "a"), fail=number % 3 == 0)
    metrics = day.metrics(tmp_path)
    [row] = metrics["latency"]
    assert (metrics["totals"]["exchanges"], metrics["totals"]["views"]) == (30, 30 * len(places))
    assert (row["n"], row["error"], row["p50_ns"]) == (30, 10, latency * MS)
    assert (row["asked"], row["seen"]) == (30 * (whose == 0), 30 * (len(places) > 1))
    assert row["way_ns"] == (2 * (len(places) - 1) * MS if len(places) > 1 else None)
    assert metrics["verdict"][0]["text"] == "10 of 30 requests (33 %) were refused: tank.get with NOT_FOUND (10)."
    clocks = {row["capture_id"]: row["ahead_ns"] for row in metrics["clocks"] if row["ahead_ns"]}
    assert clocks == {name: ms * MS for name, ms in ahead.items() if abs(ms) > 500}
    said = [one["text"] for one in metrics["verdict"] if one["about"] == "clocks"]
    assert len(said) == len(clocks)


def test_ids_that_all_clients_use_are_as_many_exchanges_as_were_asked(tmp_path: Path) -> None:
    day = Folder(client_a=0, client_b=0, server=0)
    for number in range(20):  # a third client is not recorded
        for place, (client, later) in enumerate((("client_a", 0.0), ("client_b", 0.4), ("", 0.7))):
            where = ({client: "1"} if client else {}) | {"server": f"of-{place}"}
            day.asked(str(number), "tank.get", number * 3000 + later, 10, where)
    metrics = day.metrics(tmp_path)
    assert metrics["totals"]["exchanges"] == 60
    assert [(row["direction"], row["views"], row["n"]) for row in metrics["places"]] == [(0, 2, 40), (1, 1, 20)]


def test_a_request_that_a_recording_has_heard_is_none_that_it_has_asked(tmp_path: Path) -> None:
    day = Folder(client=0, gateway=0, server=0)
    for number in range(4):
        day.asked(str(number), "tank.get", number, 20, {"client": "a", "gateway": "in"})
        day.say("gateway", number + 3, 0, f'{{"request":"tank.get","id":"{number}"}}', "out")
        day.asked(str(number), "tank.get", number + 4, 5, {"server": "a"})
    metrics = day.metrics(tmp_path)
    assert (metrics["totals"]["exchanges"], metrics["totals"]["views"]) == (8, 16)


def test_what_one_place_did_not_see_is_told_by_those_who_did(tmp_path: Path) -> None:
    day = Folder(client=0, server=0)
    day.asked("1", "tank.get", 0, None, {"client": "a"})
    day.asked("1", "tank.get", 1, 10, {"server": "a"})
    day.asked("2", "tank.get", 20, 10, {"server": "a"})
    day.say("client", 31, 1, '{"success":"2"}', "a")
    for place, direction in (("server", 0), ("client", 1)):
        day.say(place, 40, direction, '{"success":"3"}', "a")
    metrics = day.metrics(tmp_path)
    assert metrics["totals"]["exchanges"] == metrics["totals"]["outcomes"]["ok"] == 2
    assert (metrics["totals"]["orphans"], metrics["counts"]["orphans"]) == (1, 3)
    assert "1 answer had no recorded request" in metrics["verdict"][0]["text"]


def test_the_same_counted_ids_at_another_time_say_nothing_about_clocks(tmp_path: Path) -> None:
    day = Folder(client=0, server=0)
    for number in range(4):
        day.asked(str(number), "tank.get", number * 10, 5, {"client": "a"})
        day.asked(str(number), "tank.get", 8_000 + number * 10, 5, {"server": "of another client"})
    metrics = day.metrics(tmp_path)
    assert (metrics["totals"]["exchanges"], {row["ahead_ns"] for row in metrics["clocks"]}) == (8, {0})


def test_recordings_that_are_compared_with_each_other_late_have_one_clock(tmp_path: Path) -> None:
    day = Folder(client_a=0, client_b=7000, broker=0, server=0)
    for places, many in ((("client_b", "server"), 30), (("client_a", "broker"), 20), (("broker", "server"), 10)):
        for number in range(many):
            day.asked(f"{places[0]}-{number}", "tank.get", number * 50, 20, dict.fromkeys(places, "a"))
    metrics = day.metrics(tmp_path)
    assert {row["capture_id"]: row["ahead_ns"] for row in metrics["clocks"] if row["ahead_ns"]} == {"client_b": 7000 * MS}
    assert metrics["totals"]["exchanges"] == 60


def test_a_clock_that_is_set_in_the_middle_of_a_recording_is_said(tmp_path: Path) -> None:
    day = Folder(client=0)
    day.asked("1", "tank.get", 0, 10, {"client": "a"})
    day._ahead["client"] = -2 * HOUR
    day.asked("2", "tank.get", 100, 10, {"client": "a"})
    metrics = day.metrics(tmp_path)
    [said] = [one["text"] for one in metrics["verdict"] if one["about"] == "clocks"]
    assert "jumped by 2 h" in said
    assert metrics["totals"]["outcomes"]["ok"] == 2


def _random_folder(chance: random.Random) -> Folder:
    day = Folder(client_a=0, client_b=0, broker=0, server=0)
    for number in range(80):
        client = chance.choice(["client_a", "client_b"])
        where = {place: client for place in (client, "broker", "server") if chance.random() < 0.8}
        subject = f"s.{min(chance.randint(0, 9), chance.randint(0, 9))}"
        took = chance.choice([None, 5, 5, 5, 40_000])
        day.asked(f"{client}{number}", subject, chance.uniform(0, 60_000), took, where, fail=chance.random() < 0.4)
        if chance.random() < 0.1:
            day.say("server", number, 1, chance.choice(["no frame", f'{{"success":"{number}o"}}']), "a")
    return day


def test_in_every_sentence_the_parts_are_the_whole(tmp_path: Path) -> None:
    metrics = _random_folder(random.Random(1)).metrics(tmp_path)
    totals, counts = metrics["totals"], metrics["counts"]
    assert sum(totals["outcomes"].values()) == totals["exchanges"] == sum(row["n"] for row in metrics["latency"])
    assert totals["exchanges"] == sum(row["n"] for row in metrics["places"])
    assert totals["views"] + totals["internal"] == counts["exchanges"]
    for row in metrics["latency"]:
        assert row["n"] == sum(row[name.replace("-", "_")] for name in totals["outcomes"])
    whole = {"requests": totals["exchanges"], "frames": counts["frames"], "connections": len(metrics["sessions"])}
    for one in metrics["verdict"]:
        text = one["text"]
        for part, of, what in re.findall(r"(\d+) of (\d+) (\w+) \(", text):
            assert int(part) <= int(of) == whole[what], text
        parts = [int(n) for n in re.findall(r"(?<=\()\d+(?=\))|\d+(?= others?\b)", text)]
        if parts:
            assert sum(parts) == int(re.match(r"\d+", text)[0]), text  # type: ignore[index]  # it begins with its number
    assert any(one["about"] in ("failed", "missing") for one in metrics["verdict"])


def _named() -> Names:
    routes = ("tank.*", "far.tank.{1}"), ("news.>", "hub.{rest}"), ("{a}.of.{b}", "of.{b}.{a}"), ("x.*", "gone")
    table = {"job.run": "//srv/1/1/5", "tank.get": 0x00010001, "door.opened": [0x7, 0x80CD]}
    return Names(table, tuple(Route(*route) for route in routes))


NAMES = {
    **{"//srv/1/1/5": "job.run", "0x00010001": "tank.get", "//any/A/1/80CD": "door.opened"},
    **{"/polybus/1/rpc.job.never": "job.never", "/polybus/1/a.b%2Ec#Message": "a.b.c"},
    **{"far.tank.level": "tank.level", "/polybus/1/rpc.far.tank%2Elevel": "tank.level"},
    **{"hub.a.b": "news.a.b", "of.two.one": "one.of.two"},
    **{name: name for name in ("//other/polybus/1/rpc.job", "gone", "tank.get")},
}


@pytest.mark.parametrize(("subject", "name"), NAMES.items())
def test_a_subject_has_one_name_on_all_wires(subject: str, name: str) -> None:
    assert _named().of(subject) == name


def test_numbers_of_one_subject_are_those_of_its_name_and_lead_to_its_rows(tmp_path: Path) -> None:
    day = Folder(client=0, server=0)
    for number, subject in enumerate(("tank.level", "far.tank.level", "/polybus/1/rpc.tank.level")):
        day.asked(f"{number}", subject, number * 100, 10, {"client": "a", "server": "a"}, fail=True)
    metrics = day.metrics(tmp_path, _named())
    assert [(row["subject"], row["n"]) for row in metrics["latency"]] == [("tank.level", 3)]
    assert metrics["verdict"][0]["text"] == "3 of 3 requests (100 %) were refused: tank.level with NOT_FOUND (3)."
    [group] = row_groups(metrics["rows"])
    query = group.query().replace("'exchanges", f"'{tmp_path}/out/exchanges")
    assert len(duckdb.execute(query).fetchall()) == 3
    assert [row["correlation_id"] for row in journeys(tmp_path / "out", subject="tank.*")] == ["0", "2"]


def test_publications_that_no_client_has_subscribed_to_are_counted_and_said(tmp_path: Path) -> None:
    day = Folder(server=0, broker=0, client=0)
    for number in range(4):
        for place in ("broker", "server"):
            day.say(place, number, 1, '{"publish":"telemetry.heat"}', "publisher")
        day.say("client", number, 0, '{"publish":"only.sent"}')
        day.say("server", number, 1, '{"publish":"news.sport"}', "publisher")
        day.say("server", number, 1, '{"publish":"passed.on"}', "publisher")
        day.say("server", number, 0, '{"publish":"passed.on"}', "other")
    day.say("server", 9, 1, '{"subscribe":"news.*"}', "subscriber")
    metrics = day.metrics(tmp_path)
    assert [(row["subject"], row["n"]) for row in metrics["unheard"]] == [("telemetry.heat", 4)]
    [said] = [one["text"] for one in metrics["verdict"] if one["about"] == "unheard"]
    assert said.startswith("4 publications arrived without a subscribed client: telemetry.heat (4).")
