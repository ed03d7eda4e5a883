"""Pairs, outcomes, attempts, duplicates and doubt, over stories told by hand; all are paired in one go, by each engine."""

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from polybus.analysis import DuckEngine, Engine, MatchTimeouts
from polybus.analysis.correlation import (
    CARRIED,
    FINAL,
    FOLDED,
    ORPHANS,
    TURNS,
    closes_of,
    exchanges_of,
    fold,
    orphans_of,
    turns_of,
)
from polybus.analysis.watermarks import Watermarks
from polybus.capture.schema import EXCHANGES, MATCH_QUALITIES, OUTCOMES
from polybus.capture.schema import ORPHANS as ORPHAN_ROWS
from polybus.spark import correlate
from polybus.spark.engine import SparkEngine

from .stories import MS, START, Story, table


def _stories() -> Iterator[Story]:
    story = Story("plain")
    story.asks(0)
    story.answers(12.5)
    yield story

    story = Story("failed")
    story.asks(0)
    story.answers(5, code=5, code_name="NOT_FOUND")
    yield story

    story = Story("twice")
    story.asks(0)
    story.answers(5, data=b"first")
    story.answers(6, code=13)
    story.answers(7)
    yield story

    story = Story("lost")
    story.asks(0)
    story.ends(30_001)
    yield story

    story = Story("deadline")
    story.asks(0, deadline_ns=1_000_000_000)
    story.asks(10, "2", ttl_ms=2000)
    story.ends(1100)
    yield story

    story = Story("open")
    story.asks(0)
    story.asks(0, "2", deadline_ns=60_000_000_000)
    story.ends(29_999)
    yield story

    story = Story("late")
    story.asks(0)
    story.asks(0, "2", ttl_ms=100)
    story.asks(0, "3", ttl_ms=60_000)
    story.answers(101, "2")
    story.answers(40_000)
    story.answers(40_000, "3")
    yield story

    story = Story("patient")  # the longest ttl that a peer can say
    story.asks(0, ttl_ms=2**53)
    story.answers(400_000)
    story.asks(1, "2", ttl_ms=2**53)
    story.ends(10**11)
    yield story

    story = Story("again")  # the same bytes once more, before anybody answered
    story.asks(0)
    story.asks(1000)
    story.asks(2000)
    story.answers(2500)
    yield story

    story = Story("wrapped")  # answered, then the id comes round
    story.asks(0, data=b"a")
    story.answers(10)
    story.asks(3000, data=b"b")
    story.answers(3020)
    yield story

    story = Story("doubtful")  # the id comes round while the first has no answer
    story.asks(0, data=b"a")
    story.asks(3000, data=b"b")
    story.answers(3020)
    yield story

    story = Story("forgotten")  # the same, but so much later that no answer is to be feared any more
    story.asks(0, data=b"a")
    story.asks(400_000, data=b"b")
    story.answers(400_010)
    yield story

    story = Story("orphans")
    story.answers(0, "9")
    story.answers(1, "9")
    story.asks(2, "1")
    story.answers(400_000, "1")  # nobody remembers the request
    story.answers(400_001, "1")
    yield story

    story = Story("after an orphan")  # its id is not new, though nobody saw what it was for
    story.answers(0)
    story.answers(5)
    story.asks(10, data=b"a")
    story.answers(20)
    story.asks(400_000, data=b"b")
    yield story

    story = Story("long after an orphan")
    story.answers(0)
    story.asks(300_001)
    story.answers(300_002)
    yield story

    story = Story("both ways")  # either side may use the same ids
    story.asks(0, subject="out")
    story.asks(1, subject="in", direction=1)
    story.answers(2, direction=0)
    story.answers(5)
    yield story

    story = Story("csb")  # its correlation ids hold the action; each client of a connection has ids of its own
    story.asks(0, "0001:READ", protocol="csb", client="a")
    story.asks(1, "0001:WRITE", protocol="csb", client="a")
    story.asks(2, "0001:READ", protocol="csb", client="b")
    story.answers(10, "0001:WRITE", protocol="csb", client="a")
    story.answers(20, "0001:READ", protocol="csb", client="b")
    story.answers(30, "0001:READ", protocol="csb", client="a")
    yield story

    story = Story("connections")
    story.asks(0, subject="one")
    story.asks(1, subject="two", conn_id="connections-2")
    story.answers(2, conn_id="connections-2")
    story.answers(9)
    yield story

    story = Story("too late to say no")  # what only says that nobody waits any more is no answer
    for id, code in (("1", 4), ("2", 1), ("3", 4), ("4", 1), ("5", 0), ("6", 4)):
        story.asks(0, id, ttl_ms=None if id == "6" else 1000)
        story.answers({"3": 500, "4": 500}.get(id, 1001), id, code=code)
    yield story

    story = Story("given up")
    for id, at in (("before", 10), ("at its deadline", 999.9), ("after", 1009)):
        story.asks(0, id, ttl_ms=1000)
        story.cancels(at, id)
    for id, code in (("echoed", 1), ("crossed", 0)):
        story.asks(10, id, ttl_ms=1000)
        story.cancels(20, id)
        story.answers(21, id, code=code)
    story.asks(30, "answered first", ttl_ms=1000)
    story.answers(40, "answered first")
    story.cancels(41, "answered first")
    story.cancels(50, "of nobody")
    yield story

    story = Story("cut off")
    story.asks(0, "1", ttl_ms=1000)
    story.asks(0, "2", ttl_ms=60_000)
    story.asks(0, "3")
    story.asks(0, "4")
    story.asks(0, "5", conn_id="another")
    story.answers(1, "4")
    story.closes(20_000)
    yield story

    story = Story("a client has gone")  # and another one of the same name comes
    story.asks(0, "1", client="a")
    story.asks(0, "2", client="b")
    story.closes(10, client="a")
    story.asks(20, "3", client="a")
    story.closes(30, client="a")
    story.asks(40, "4", client="a")
    story.ends(50)
    yield story

    story = Story("streams")
    story.opens(0, "well")
    story.item(5, "well")
    story.item(6, "well")
    story.item(6.5, "well", direction=0)  # of a channel: what the asker says does not count
    story.stops(7, "well", direction=0)
    story.stops(8, "well", code=0)
    story.opens(10, "failed")
    story.stops(12, "failed", code=13)
    story.opens(20, "refused")
    story.answers(21, "refused", code=3)
    story.opens(30, "left")
    story.item(31, "left")
    story.cancels(32, "left")
    story.opens(40, "patient")
    story.item(4_000_000, "patient")
    story.item(8_000_000, "patient")
    story.opens(8_000_001, "cut off")
    story.item(8_000_002, "cut off")
    story.closes(8_000_003)
    yield story


Rows = dict[str, list[dict[str, Any]]]


KEY = ("capture_id", "conn_id", "client", "direction", "protocol", "correlation_id")


@pytest.fixture(scope="module", params=["duckdb", "spark"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "spark":
        yield SparkEngine(request.getfixturevalue("spark"))
        return
    with DuckEngine() as duckdb:
        yield duckdb


def _clocks(events: pa.Table, *, silent_ns: int = 0, ended: bool = True, end_ns: int | None = None) -> pa.Table:
    ends = events.group_by("capture_id").aggregate([("mono_ns", "max")])
    return pa.table(
        {
            "capture_id": ends["capture_id"],
            "end_ns": ends["mono_ns_max"] if end_ns is None else pa.array([end_ns] * len(ends), pa.int64()),
            "silent_ns": pa.array([silent_ns] * len(ends), pa.int64()),
            "ended": pa.array([ended] * len(ends)),
            "from_seq": pa.array([-1] * len(ends), pa.int64()),
            "until_seq": pa.array([1000] * len(ends), pa.int64()),
            "hole_ns": pa.nulls(len(ends), pa.int64()),
        }
    )


def _folded(engine: Engine, events: pa.Table, clocks: pa.Table, before: pa.Table | None = None) -> pa.Table:
    given = engine.hand(events)
    turns = [turns_of(engine, given, MatchTimeouts())]
    turns += [] if before is None else [engine.hand(before)]
    return engine.rows(fold(engine, turns, MatchTimeouts(), engine.hand(clocks), closes_of(engine, given))).cast(FOLDED)


def _of(folded: pa.Table, parts: Collection[str]) -> pa.Table:
    return pa.Table.from_pylist([row for row in folded.to_pylist() if row["part"] in parts], schema=FOLDED)


@pytest.fixture(scope="module")
def pairs(engine: Engine) -> tuple[Rows, Rows]:
    """The exchanges and the orphans of each story, in their order."""
    events = table(*_stories())
    folded = _folded(engine, events, _clocks(events))
    exchanges = engine.rows(exchanges_of(engine, engine.hand(folded)))
    orphans = engine.rows(orphans_of(engine, engine.hand(events), engine.hand(_of(folded, ORPHANS))))
    assert exchanges.column_names == EXCHANGES.names
    assert orphans.column_names == ORPHAN_ROWS.names
    exchanges = exchanges.cast(EXCHANGES)

    def by_story(rows: list[dict[str, Any]], order: str) -> Rows:
        sorted_rows = sorted(rows, key=lambda row: (row["capture_id"], row[order]))
        return {story.name: [row for row in sorted_rows if row["capture_id"] == story.name] for story in _stories()}

    return by_story(exchanges.to_pylist(), "request_seq"), by_story(orphans.to_pylist(), "seq")


def column(pairs: tuple[Rows, Rows], story: str, name: str) -> list[Any]:
    return [row[name] for row in pairs[0][story]]


def test_every_request_is_one_row_and_every_word_is_of_its_list(pairs: tuple[Rows, Rows]) -> None:
    rows = [row for story in pairs[0].values() for row in story]
    assert {row["outcome"] for row in rows} == set(OUTCOMES) - {"unseen"}
    assert {row["match_quality"] for row in rows} == set(MATCH_QUALITIES)
    assert sum(row["attempts"] for row in rows) == sum(
        event["kind"] in ("request", "stream") for story in _stories() for event in story.events
    )
    answers = sum(
        event["kind"] == "response" or (event["kind"] == "end" and event["direction"] == 1)
        for story in _stories()
        for event in story.events
    )
    orphans = sum(len(story) for story in pairs[1].values())
    assert sum(row["duplicates"] + (row["response_seq"] is not None) for row in rows) + orphans == answers


def test_an_answer_is_paired_with_its_latency_on_the_monotonic_clock(pairs: tuple[Rows, Rows]) -> None:
    [row] = pairs[0]["plain"]
    assert (row["request_seq"], row["response_seq"], row["outcome"], row["code"]) == (0, 1, "ok", 0)
    assert (row["latency_ns"], row["latency_ms"], row["match_quality"]) == (12_500_000, 12.5, "unique")
    assert (row["request_time_ns"], row["request_time"].microsecond, row["identity_key"]) == (START, 0, "somebody")
    assert (row["attempts"], row["duplicates"], row["direction"], row["peer"]) == (1, 0, 0, "tcp:127.0.0.1:1")


def test_an_answer_with_a_code_is_an_error(pairs: tuple[Rows, Rows]) -> None:
    [row] = pairs[0]["failed"]
    assert (row["outcome"], row["code"], row["code_name"]) == ("error", 5, "NOT_FOUND")


def test_the_first_answer_counts_and_further_ones_are_duplicates(pairs: tuple[Rows, Rows]) -> None:
    [row] = pairs[0]["twice"]
    assert (row["response_seq"], row["code"], row["outcome"], row["duplicates"]) == (1, 0, "ok", 2)


def test_without_an_answer_it_depends_on_what_was_waited_for(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "lost", "outcome") == ["unanswered"]
    assert column(pairs, "deadline", "outcome") == ["timeout", "open-at-end"]
    assert column(pairs, "open", "outcome") == ["open-at-end", "open-at-end"]
    assert column(pairs, "lost", "latency_ns") == [None]
    assert column(pairs, "lost", "latency_ms") == [None]
    assert column(pairs, "lost", "response_seq") == [None]


def test_late_is_after_the_ttl_or_the_timeout(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "late", "outcome") == ["late", "late", "ok"]


def test_a_ttl_may_be_longer_than_any_recording(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "patient", "outcome") == ["ok", "open-at-end"]


def test_the_same_request_once_more_is_a_further_attempt(pairs: tuple[Rows, Rows]) -> None:
    [row] = pairs[0]["again"]
    assert (row["attempts"], row["request_seq"], row["response_seq"]) == (3, 0, 3)
    assert (row["latency_ns"], row["match_quality"]) == (2_500_000_000, "unique")


def test_an_id_that_comes_round_is_flagged_and_paired_in_order(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "wrapped", "match_quality") == ["unique", "reused_id"]
    assert column(pairs, "wrapped", "latency_ms") == [10.0, 20.0]


def test_what_the_wire_cannot_decide_is_called_ambiguous(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "doubtful", "match_quality") == ["ambiguous", "ambiguous"]
    assert column(pairs, "doubtful", "response_seq") == [None, 2]


def test_beyond_the_horizon_an_id_is_new(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "forgotten", "match_quality") == ["unique", "unique"]
    assert column(pairs, "forgotten", "outcome") == ["unanswered", "ok"]


def test_answers_without_a_request_are_orphans(pairs: tuple[Rows, Rows]) -> None:
    assert [row["seq"] for row in pairs[1]["orphans"]] == [0, 1, 3, 4]
    assert column(pairs, "orphans", "outcome") == ["unanswered"]


def test_an_id_that_an_orphan_had_is_used_before(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "after an orphan", "match_quality") == ["reused_id", "unique"]
    assert column(pairs, "after an orphan", "response_seq") == [3, None]
    assert column(pairs, "long after an orphan", "match_quality") == ["unique"]


def test_both_sides_may_use_the_same_ids(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "both ways", "subject") == ["out", "in"]
    assert column(pairs, "both ways", "direction") == [0, 1]
    assert column(pairs, "both ways", "latency_ms") == [5.0, 1.0]


def test_ids_belong_to_the_client_behind_a_broker(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "csb", "response_seq") == [5, 3, 4]
    assert column(pairs, "csb", "match_quality") == ["unique"] * 3
    assert column(pairs, "csb", "identity_key") == ["a", "a", "b"]


def test_ids_belong_to_their_connection(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "connections", "latency_ms") == [9.0, 1.0]


def test_what_a_deadline_has_ended_is_a_timeout_whichever_message_came_first(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "too late to say no", "outcome") == ["timeout", "timeout", "error", "error", "late", "timeout"]
    assert column(pairs, "too late to say no", "code") == [None, None, 4, 1, 0, None]
    assert [latency is None for latency in column(pairs, "too late to say no", "latency_ns")] == [
        *(True, True, False, False, False, True)
    ]


def test_what_is_given_up_before_its_deadline_is_cancelled(pairs: tuple[Rows, Rows]) -> None:
    rows = {row["correlation_id"]: (row["outcome"], row["latency_ms"], row["code"]) for row in pairs[0]["given up"]}
    assert rows == {
        "before": ("cancelled", None, None),
        "at its deadline": ("timeout", None, None),
        "after": ("timeout", None, None),
        "echoed": ("cancelled", None, None),
        "crossed": ("cancelled", None, None),
        "answered first": ("ok", 10.0, 0),
    }


def test_a_connection_that_ends_settles_what_waits_on_it(pairs: tuple[Rows, Rows]) -> None:
    assert column(pairs, "cut off", "outcome") == ["timeout", "lost", "lost", "ok", "open-at-end"]
    assert column(pairs, "a client has gone", "outcome") == ["lost", "open-at-end", "lost", "open-at-end"]


def test_a_stream_has_an_exchange_with_its_items_and_its_end(pairs: tuple[Rows, Rows]) -> None:
    names = ("kind", "outcome", "code", "items", "latency_ms", "length_ns")
    rows = {row["correlation_id"]: tuple(row[name] for name in names) for row in pairs[0]["streams"]}
    assert rows == {
        "well": ("stream", "ok", 0, 2, 5.0, 8 * MS),
        "failed": ("stream", "error", 13, 0, 2.0, 2 * MS),
        "refused": ("stream", "error", 3, 0, 1.0, 1 * MS),
        "left": ("stream", "cancelled", None, 1, 1.0, None),
        "patient": ("stream", "lost", None, 2, 3_999_960.0, None),
        "cut off": ("stream", "lost", None, 1, 1.0, None),
    }
    assert column(pairs, "plain", "kind") == ["request"]
    assert pairs[1]["streams"] == []


def test_what_a_hole_may_have_swallowed_is_unseen(engine: Engine) -> None:
    story = Story("holed")
    story.asks(0, "answered in it")
    story.asks(1, "over before it", ttl_ms=5)
    story.asks(2, "answered later")
    story.opens(3, "went on")
    story.opens(4, "silent since")
    story.closes(90, conn_id="another")
    story.asks(95, "gone before it", conn_id="gone")
    story.closes(96, conn_id="gone")
    story.asks(300, "asked later")
    story.answers(400, "answered later")
    story.item(500, "went on")
    story.closes(600)
    story.ends(40_000)
    events = table(story)
    clocks = Watermarks({"holed": 40_000 * MS}).table(all_read=True, ended=["holed"], holes={"holed": [(8, 100 * MS)]})
    rows = engine.rows(exchanges_of(engine, engine.hand(_folded(engine, events, clocks)))).to_pylist()
    assert {row["correlation_id"]: row["outcome"] for row in rows} == {
        "answered in it": "unseen",
        "over before it": "timeout",
        "answered later": "ok",
        "gone before it": "lost",
        "asked later": "lost",
        "went on": "lost",
        "silent since": "unseen",
    }


def _same(found: list[dict[str, Any]], pairs: tuple[Rows, Rows]) -> None:
    def by_request(row: dict[str, Any]) -> tuple[str, int]:
        return row["capture_id"], row["request_seq"]

    wanted = [row for story in pairs[0].values() for row in story]
    assert sorted(found, key=by_request) == sorted(wanted, key=by_request)


def test_a_table_of_events_is_paired_at_once(spark: SparkSession) -> None:
    done = correlate(spark.createDataFrame(table(*_stories())))
    exchanges, orphans = done.exchanges.toArrow(), done.orphans.toArrow()
    assert [(field.name, str(field.type)) for field in exchanges.schema] == [(one.name, str(one.type)) for one in EXCHANGES]
    assert orphans.column_names == ORPHAN_ROWS.names
    requests = sum(event["kind"] in ("request", "stream") for story in _stories() for event in story.events)
    assert sum(row["attempts"] for row in exchanges.to_pylist()) == requests
    assert orphans.num_rows == 7


def test_runs_over_what_is_new_give_the_same_pairs_and_carry_a_turn_a_key(engine: Engine, pairs: tuple[Rows, Rows]) -> None:
    stories = list(_stories())
    rows: list[dict[str, Any]] = []
    lost: list[tuple[str, int]] = []
    ends: dict[str, int] = {}
    state: pa.Table | None = None
    for first, last in ((0, 1), (1, 2), (2, 99)):
        events = table(*(Story(story.name, story.events[first:last]) for story in stories))
        ends |= {story.name: story.events[:last][-1]["mono_ns"] for story in stories}
        folded = _folded(engine, events, Watermarks(ends).table(all_read=True), state)
        made = engine.rows(exchanges_of(engine, engine.hand(folded), "part"))
        rows += [row for row in made.to_pylist() if row.pop("part") == FINAL or last == 99]
        orphans = orphans_of(engine, engine.hand(events), engine.hand(_of(folded, ORPHANS)))
        lost += [(row["capture_id"], row["seq"]) for row in engine.rows(orphans).to_pylist()]
        state = _of(folded, CARRIED).select(TURNS.names)
        assert state.num_rows == len({tuple(row[name] for name in KEY) for row in state.to_pylist()})
    times = pa.Table.from_pylist(rows).column("request_time").cast(pa.timestamp("us", tz="UTC")).to_pylist()
    _same([row | {"request_time": time} for row, time in zip(rows, times, strict=True)], pairs)
    assert sorted(lost) == sorted((row["capture_id"], row["seq"]) for story in pairs[1].values() for row in story)


def test_what_the_horizon_has_passed_is_not_carried(engine: Engine) -> None:
    story = Story("quiet")
    for number in range(5):
        story.answers(number, f"orphan {number}")
        story.asks(number, f"request {number}")
    events = table(story)

    def carried(end_ms: int) -> int:
        return len(_of(_folded(engine, events, _clocks(events, end_ns=end_ms * MS, ended=False)), CARRIED).to_pylist())

    assert carried(300_003) == 4
    assert carried(300_005) == 0


def test_what_a_recording_left_that_others_have_outlived_is_not_carried(engine: Engine) -> None:
    story = Story("stopped")
    story.asks(0, "answered")
    story.answers(1, "answered")
    story.answers(2, "orphan")
    story.asks(3, "long", ttl_ms=1_000_000)
    story.answers(4, "long", code=3)
    story.asks(5, "no answer")
    ends, events = 5 * MS, table(story)

    def carried(silent_s: float, end_ns: int = ends, *, ended: bool = False) -> set[str]:
        clocks = _clocks(events, silent_ns=round(silent_s * 1000 * MS), ended=ended, end_ns=end_ns)
        return set(_of(_folded(engine, events, clocks), CARRIED).column("correlation_id").to_pylist())

    everything = {"answered", "orphan", "long", "no answer"}
    # The horizon is 300 s, and as long again it is waited.
    assert carried(0) == carried(600) == everything
    assert carried(0, ended=True) == set()
    # Nobody can say yet whether it stays open at the end: the recording may go on.
    assert carried(601) == {"no answer"}
    assert carried(86_400) == {"no answer"}
    assert carried(86_400 + 301) == set()
    # With a deadline that its recording has passed it is settled.
    assert carried(601, ends + 31_000 * MS) == set()


def test_a_recording_is_silent_while_others_go_on_and_all_of_it_is_read() -> None:
    clocks = Watermarks({"one": 5, "two": 7}, {"one": 1000, "two": 1000}).later([Watermarks({"two": 9}, {"two": 1600})])
    rows = {row["capture_id"]: (row["end_ns"], row["silent_ns"]) for row in clocks.table(all_read=True).to_pylist()}
    assert rows == {"one": (5, 600), "two": (9, 0)}
    assert {row["silent_ns"] for row in clocks.table(all_read=False).to_pylist()} == {0}
    assert clocks.only({"one"}) == Watermarks({"one": 5}, {"one": 1000})
    # As an older polybus has left it.
    assert [row["silent_ns"] for row in Watermarks({"one": 5}).table(all_read=True).to_pylist()] == [0]


def test_a_horizon_shorter_than_the_timeout_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter than timeout=30"):
        MatchTimeouts(timeout=30, horizon=10)
