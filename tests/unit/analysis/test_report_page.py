"""Rows behind the numbers, journeys and the size of the page."""

import base64
import hashlib
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polybus.analysis.pipeline import Done
from polybus.analysis.report import page
from polybus.analysis.report.verdict import verdict

from .days import BAD, GOOD, Day

INVISIBLE = "a\u202eb\u200bc\nd\x1be\u2066f\u200fg\ufeff"
HOSTILE = "a'; drop table x; \"$(touch gone)`\\\N{BELL} </code><script>"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    day = Day()
    for number in range(40):
        day.ask(number, "tank.get", BAD if number % 4 == 0 else GOOD)
    day.ask(100, "pump.stop", None)
    day.wait(60)
    for number in range(8):
        day.ask(200 + number, "long." + "x" * 300 + str(number % 2), GOOD)
    return day.analysed(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def html(done: Done) -> tuple[str, Path]:
    return Path(done.report).read_text(), Path(done.out)


def test_the_query_of_each_group_finds_all_rows_that_it_counts(html: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text, out = html
    monkeypatch.chdir(out)
    groups = re.findall(r"<b>([^<]*)</b>: (\d+) of them(?:, \d+ here)?<br><code>(.*?)</code>", text)
    groups = [(title, int(count), query) for title, count, query in groups]
    counted = [(title, count) for title, count, _ in groups]
    assert ("tank.get (ubre) error with NOT_FOUND", 10) in counted
    assert ("pump.stop (ubre) unanswered", 1) in counted
    assert sum(count for _, count in counted) == 49
    for title, count, query in groups:
        found = duckdb.execute(unescape(query)).fetchall()
        # Names that are cut are told by their beginning, which others may share.
        assert len(found) == count or ("starts_with" in query and len(found) == 8), title


def test_each_number_of_a_table_leads_to_rows_that_are_there(html: tuple[str, Path]) -> None:
    text, _ = html
    places = set(re.findall(r' id="([^"]*)"', text))
    targets = re.findall(r'href="#([^"]*)"', text)
    assert set(targets) <= places
    [failed] = re.findall(r'<a href="#(rows-\d+)" data-metric="error">10</a>', text)
    assert re.search(rf'<tbody id="{failed}">.*?NOT_FOUND', text)
    [lost] = re.findall(r'<a href="#(rows-\d+)" data-metric="unanswered">1</a>', text)
    assert re.search(rf'<tbody id="{lost}"><tr class="head"><th[^>]*><b>pump.stop', text)


def test_no_letter_of_a_peer_reaches_the_shell_or_the_page(tmp_path: Path) -> None:
    row: dict[str, Any] = {"protocol": None, "outcome": "ok", "code": 0, "alike": 1, "views": 1, "latency_ns": 1}
    row |= {"request_time_ns": 0, **dict.fromkeys(("subject", "address", "code_name", "peer"), HOSTILE)}
    [group] = page.row_groups([row])
    query = group.query()
    assert re.fullmatch(r"[\w (),.:/*='-]*", query)
    place = str(tmp_path / "rows.parquet")
    columns = {"protocol": [None], "subject": [HOSTILE], "outcome": ["ok"], "code": [0], "latency_ns": [5]}
    pq.write_table(pa.table(columns), place)
    assert len(duckdb.execute(query.replace("exchanges/**/*.parquet", place)).fetchall()) == 1


def test_what_peers_say_stands_in_the_page_as_text_wherever_it_is(done: Done) -> None:
    """As subjects, names, addresses, ids, texts of errors..., in every table, plot, journey and sentence."""
    text = page.render(_spoiled(done.metrics))
    assert text.count("<script") == 1
    assert "touch gone" in text
    assert HOSTILE not in text
    assert not re.findall(r"<(?!/?[a-z][a-z0-9]*[ >/]|!doctype)", text.partition("<script>")[0])


def test_letters_that_a_browser_hides_or_reorders_are_escaped_in_every_table_drawing_and_sentence(done: Done) -> None:
    metrics = _spoiled({**done.metrics, "compared": None}, text=INVISIBLE)
    said = [page.render(metrics), *(one.text for one in verdict(metrics))]
    assert all("a\\u202eb\\u200bc\\nd" in text for text in said[:2])
    assert not [
        letter for letter in INVISIBLE if not letter.isprintable() and letter != "\n" and any(letter in one for one in said)
    ]
    assert not any("c\nd" in text for text in said)


def _spoiled(given: Any, name: str = "", text: str = HOSTILE) -> Any:
    if isinstance(given, dict):
        return {key: _spoiled(value, key, text) for key, value in given.items()}
    if isinstance(given, list):
        return [_spoiled(one, name, text) for one in given]
    kept = ("why", "about", "section", "closed", "kind")
    return text if isinstance(given, str) and name not in kept else given


def test_only_the_script_of_the_page_may_run(html: tuple[str, Path]) -> None:
    [script] = re.findall(r"<script>(.*?)</script>", html[0], re.DOTALL)
    source = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{source}'\"" in html[0]


def test_all_rows_are_shown_where_no_script_runs(html: tuple[str, Path]) -> None:
    [form] = re.findall(r"<[^>]* hidden[^>]*>", html[0])
    assert form.startswith('<form id="filter" hidden')


@pytest.mark.parametrize(
    ("rows", "said"),
    [(25, None), (26, "<p>1 more in metrics.json.</p>"), (100, "<p>75 more in metrics.json, which lists 100 at most.</p>")],
)
def test_a_table_says_where_the_rest_of_it_is(rows: int, said: str | None) -> None:
    tables: Any = page.templates().get_template("tables.html").module
    html = str(tables.table([{"n": number} for number in range(rows)], "n", 100))
    assert html.count("<tr>") == 26
    assert html.endswith(said) if said is not None else "more" not in html


def test_the_page_stays_small_however_many_subjects_and_however_long_names_there_are(tmp_path: Path) -> None:
    day = Day()
    for number in range(1500):
        answer = None if number % 3 == 0 else BAD if number % 3 == 1 else GOOD
        day.ask(number, f"{number % 700}&&&" + "<" * 400, answer)
    day.wait(60)
    day.ask(9999, "last", GOOD)
    done = day.analysed(tmp_path / "day")
    again = Day()
    again.ask(1, "other", GOOD)
    for metrics in (done.metrics, again.analysed(tmp_path / "again", before=done.out).metrics):
        assert len(page.render(metrics).encode()) < 2_000_000


def test_the_map_tells_who_asks_whom_by_name_and_without_the_ports_of_clients(tmp_path: Path) -> None:
    day = Day()
    day.say(None, 0, conn_id="c-3", peer="10.0.0.7:50001", options='{"link":{"state":"open","who":"kitchen"}}')
    clients = {"c-1": "10.0.0.5:50001", "c-2": "10.0.0.5:50002", "c-3": "10.0.0.7:50001"}
    for number, (conn_id, peer) in enumerate(clients.items()):
        day.say(f'{{"request":"tank.get","id":"{number}"}}', 1, conn_id=conn_id, peer=peer)
        day.say((BAD if number else GOOD).replace("ID", str(number)), 0, conn_id=conn_id, peer=peer)
    day.say('{"request":"stock.get","id":"9"}', 0, conn_id="s-1", peer="10.0.0.9:9000")
    day.say('{"success":"9"}', 1, conn_id="s-1", peer="10.0.0.9:9000")
    done = day.analysed(tmp_path)
    assert [[row[name] for name in ("asker", "answerer", "subject", "n", "not_ok")] for row in done.metrics["asks"]] == [
        ["10.0.0.5", "here", "tank.get", 2, 1],
        ["here", "10.0.0.9:9000", "stock.get", 1, 0],
        ["kitchen", "here", "tank.get", 1, 1],
    ]
    [drawn] = re.findall(r'<svg class="plot" role="img" aria-label="Who asks whom".*?</svg>', Path(done.report).read_text())
    assert [name for name in re.findall(r">([^<>]+)<", drawn) if "p95" not in name] == [
        *("here", "10.0.0.5", "10.0.0.5", "2, 1 not ok", "kitchen", "kitchen", "1, 1 not ok"),
        *("10.0.0.9:9000", "10.0.0.9:9000", "1"),
    ]


def test_a_peer_with_the_name_of_the_combined_ones_has_a_place_of_its_own(tmp_path: Path) -> None:
    day = Day()
    for number, name in enumerate(["others"] * 3 + [f"client-{number}" for number in range(11)]):
        link: dict[str, Any] = {"conn_id": f"c-{name}", "peer": f"10.0.0.7:{50000 + number}"}
        day.say(None, 0, options=json.dumps({"link": {"state": "open", "who": name}}), **link)
        day.say(f'{{"request":"tank.get","id":"{number}"}}', 1, **link)
        day.say(GOOD.replace("ID", str(number)), 0, **link)
    [drawn] = re.findall(r'aria-label="Who asks whom".*?</svg>', Path(day.analysed(tmp_path).report).read_text())
    said = re.findall(r">([^<>]+)<", drawn)
    assert said[said.index("others") + 2] == "3"
    assert said[said.index("4 others") + 2] == "4"


def test_the_map_has_latencies_of_peers_without_an_address(tmp_path: Path) -> None:
    day = Day()
    day.say('{"request":"tank.get","id":"1"}', 0, peer=None)
    day.wait(0.01)
    day.say('{"success":"1"}', 1, peer=None)
    assert [(row["answerer"], row["p95_ns"]) for row in day.analysed(tmp_path).metrics["asks"]] == [
        ("unknown peer", 10_000_000)
    ]


def test_the_map_counts_more_subjects_than_its_table_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.analysis.report.metrics.MANY", 3)
    day = Day()
    for number in range(5):
        day.ask(0, f"tank.{number}", GOOD)
    done = day.analysed(tmp_path)
    assert len(done.metrics["asks"]) == 3
    assert [row["n"] for row in done.metrics["pairs"]] == [5]
    assert ">5</text>" in Path(done.report).read_text()


def test_the_last_messages_of_a_broken_connection_are_there_with_their_bodies_cut(tmp_path: Path) -> None:
    day = Day()
    day.ask(0, "tank.get", GOOD)
    for number in range(30):
        day.say(json.dumps({"publish": f"door.{number}", "body": number}), 1, conn_id="link-1")
    day.say(None, 0, conn_id="link-1", options='{"link":{"state":"close","code":1006,"reason":""}}')
    day.say(json.dumps({"publish": "door.late", "body": "x" * 1000}), 1, conn_id="link-1")
    done = day.analysed(tmp_path)
    followed, *_ = done.metrics["followed"]
    assert (followed["conn_id"], followed["closed"], len(followed["messages"])) == ("link-1", "1006", 20)
    kinds = [message["kind"] for message in followed["messages"]]
    assert kinds == [*["publish"] * 18, "close", "publish"]
    assert followed["messages"][0]["body"] == "12"
    assert followed["messages"][-1]["body"] == '"' + 299 * "x" + "…"
    assert "<code>12</code>" in Path(done.report).read_text()


@pytest.mark.parametrize("moment_ns", [2**63 - 1, -(2**63)])
def test_a_clock_that_is_as_wrong_as_can_be_spoils_no_report(tmp_path: Path, moment_ns: int) -> None:
    day = Day()
    for number in range(3):
        day.ask(number, "tank.get", BAD)
    for row in day.rows:
        row["ts_ns"] = moment_ns
    done = day.analysed(tmp_path / "day")
    assert [row["why"] for row in done.metrics["journeys"]] == ["failed"] * 3
    assert "3 of 3 requests (100 %) were refused" in Path(done.report).read_text()


def test_the_last_messages_of_a_connection_are_those_before_its_own_end(tmp_path: Path) -> None:
    day = Day()
    for conn in ("long", "short"):
        day.say('{"publish":"early"}', 1, conn_id=conn)
    day.wait(60)
    day.say('{"publish":"late"}', 1, conn_id="long")
    followed = {row["conn_id"]: row["messages"] for row in day.metrics(tmp_path)["followed"]}
    assert {conn: [one["subject"] for one in some] for conn, some in followed.items()} == {"long": ["late"], "short": ["early"]}
