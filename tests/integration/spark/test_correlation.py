"""Pairs, outcomes, attempts, duplicates and doubt, over stories told by hand; all are paired in one go, by each engine."""

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pytest
from attrs import field, frozen

from polybus.analysis import DuckEngine, Engine, MatchTimeouts
from polybus.analysis.clocks import Watermarks
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
from polybus.capture.schema import EXCHANGES
from polybus.capture.schema import ORPHANS as ORPHAN_ROWS
from polybus.spark.engine import SparkEngine

from .stories import MS, START, Event, answers, asks, cancels, closes, ends, item, opens, recorded, stops, table


@frozen
class Story:
    """A recording, the columns of its exchanges in the order of their requests, and the numbers of its orphans."""

    rule: str
    events: tuple[Event, ...]
    columns: dict[str, list[Any]]
    orphans: list[int] = field(factory=list)

    @property
    def rows(self) -> list[Event]:
        return recorded(self.rule, *self.events)


STORIES = [
    Story(
        "an answer is paired with its latency on the monotonic clock",
        (asks(0), answers(12.5)),
        {
            **{"request_seq": [0], "response_seq": [1], "outcome": ["ok"], "code": [0], "match_quality": ["unique"]},
            **{"latency_ns": [12_500_000], "latency_ms": [12.5], "request_time_ns": [START], "identity_key": ["somebody"]},
            **{"attempts": [1], "duplicates": [0], "direction": [0], "peer": ["tcp:127.0.0.1:1"], "kind": ["request"]},
        },
    ),
    Story(
        "an answer with a code is an error",
        (asks(0), answers(5, code=5, code_name="NOT_FOUND")),
        {"outcome": ["error"], "code": [5], "code_name": ["NOT_FOUND"]},
    ),
    Story(
        "the first answer counts and further ones are duplicates",
        (asks(0), answers(5, data=b"first"), answers(6, code=13), answers(7)),
        {"response_seq": [1], "code": [0], "outcome": ["ok"], "duplicates": [2]},
    ),
    Story(
        "a request whose timeout has passed is unanswered",
        (asks(0), ends(30_001)),
        {"outcome": ["unanswered"], "latency_ns": [None], "latency_ms": [None], "response_seq": [None]},
    ),
    Story(
        "a request whose deadline has passed is a timeout",
        (asks(0, deadline_ns=1_000_000_000), asks(10, "2", ttl_ms=2000), ends(1100)),
        {"outcome": ["timeout", "open-at-end"]},
    ),
    Story(
        "a request that may still be answered is open at the end",
        (asks(0), asks(0, "2", deadline_ns=60_000_000_000), ends(29_999)),
        {"outcome": ["open-at-end", "open-at-end"]},
    ),
    Story(
        "late is after the ttl or the timeout",
        (
            *(asks(0), asks(0, "2", ttl_ms=100), asks(0, "3", ttl_ms=60_000)),
            *(answers(101, "2"), answers(40_000), answers(40_000, "3")),
        ),
        {"outcome": ["late", "late", "ok"]},
    ),
    Story(
        "a ttl may be longer than any recording",
        (asks(0, ttl_ms=2**53), answers(400_000), asks(1, "2", ttl_ms=2**53), ends(10**11)),
        {"outcome": ["ok", "open-at-end"]},
    ),
    Story(
        "the same bytes once more before anybody answered are a further attempt",
        (asks(0), asks(1000), asks(2000), answers(2500)),
        {"attempts": [3], "request_seq": [0], "response_seq": [3], "latency_ms": [2500.0], "match_quality": ["unique"]},
    ),
    Story(
        "an id that comes round is flagged and paired in order",
        (asks(0, data=b"a"), answers(10), asks(3000, data=b"b"), answers(3020)),
        {"match_quality": ["unique", "reused_id"], "latency_ms": [10.0, 20.0]},
    ),
    Story(
        "an id that comes round while the first has no answer is ambiguous",
        (asks(0, data=b"a"), asks(3000, data=b"b"), answers(3020)),
        {"match_quality": ["ambiguous", "ambiguous"], "response_seq": [None, 2]},
    ),
    Story(
        "beyond the horizon an id is new",
        (asks(0, data=b"a"), asks(400_000, data=b"b"), answers(400_010)),
        {"match_quality": ["unique", "unique"], "outcome": ["unanswered", "ok"]},
    ),
    Story(
        "answers without a request, or so late that nobody remembers it, are orphans",
        (answers(0, "9"), answers(1, "9"), asks(2, "1"), answers(400_000, "1"), answers(400_001, "1")),
        {"outcome": ["unanswered"]},
        orphans=[0, 1, 3, 4],
    ),
    Story(
        "an id that an orphan had is used before, though nobody saw what it was for",
        (answers(0), answers(5), asks(10, data=b"a"), answers(20), asks(400_000, data=b"b")),
        {"match_quality": ["reused_id", "unique"], "response_seq": [3, None]},
        orphans=[0, 1],
    ),
    Story(
        "an id that an orphan had long ago is new",
        (answers(0), asks(300_001), answers(300_002)),
        {"match_quality": ["unique"]},
        orphans=[0],
    ),
    Story(
        "both sides may use the same ids",
        (asks(0, subject="out"), asks(1, subject="in", direction=1), answers(2, direction=0), answers(5)),
        {"subject": ["out", "in"], "direction": [0, 1], "latency_ms": [5.0, 1.0]},
    ),
    Story(
        "ids of csb hold the action and belong to the client behind a broker",
        (
            asks(0, "0001:READ", protocol="csb", client="a"),
            asks(1, "0001:WRITE", protocol="csb", client="a"),
            asks(2, "0001:READ", protocol="csb", client="b"),
            answers(10, "0001:WRITE", protocol="csb", client="a"),
            answers(20, "0001:READ", protocol="csb", client="b"),
            answers(30, "0001:READ", protocol="csb", client="a"),
        ),
        {"response_seq": [5, 3, 4], "match_quality": ["unique"] * 3, "identity_key": ["a", "a", "b"]},
    ),
    Story(
        "ids belong to their connection",
        (asks(0), asks(1, conn_id="another"), answers(2, conn_id="another"), answers(9)),
        {"latency_ms": [9.0, 1.0]},
    ),
    Story(
        "what only says that nobody waits any more is no answer",
        (
            *(asks(0, id, ttl_ms=None if id == "6" else 1000) for id in "123456"),
            *(answers(500, "3", code=4), answers(500, "4", code=1)),
            *(answers(1001, id, code=code) for id, code in (("1", 4), ("2", 1), ("5", 0), ("6", 4))),
        ),
        {
            "outcome": ["timeout", "timeout", "error", "error", "late", "timeout"],
            "code": [None, None, 4, 1, 0, None],
            "latency_ms": [None, None, 500.0, 500.0, 1001.0, None],
        },
    ),
    Story(
        "what is given up before its deadline is cancelled",
        (
            *(asks(0, "before", ttl_ms=1000), cancels(10, "before")),
            *(asks(0, "at its deadline", ttl_ms=1000), cancels(999.9, "at its deadline")),
            *(asks(0, "after", ttl_ms=1000), cancels(1009, "after")),
            *(asks(10, "echoed", ttl_ms=1000), cancels(20, "echoed"), answers(21, "echoed", code=1)),
            *(asks(10, "crossed", ttl_ms=1000), cancels(20, "crossed"), answers(21, "crossed")),
            *(asks(30, "answered first", ttl_ms=1000), answers(40, "answered first"), cancels(41, "answered first")),
            cancels(50, "of nobody"),
        ),
        {
            "outcome": ["cancelled", "timeout", "timeout", "cancelled", "cancelled", "ok"],
            "latency_ms": [None, None, None, None, None, 10.0],
            "code": [None, None, None, None, None, 0],
        },
    ),
    Story(
        "a connection that ends settles what waits on it",
        (
            *(asks(0, "1", ttl_ms=1000), asks(0, "2", ttl_ms=60_000), asks(0, "3"), asks(0, "4")),
            *(asks(0, "5", conn_id="another"), answers(1, "4"), closes(20_000)),
        ),
        {"outcome": ["timeout", "lost", "lost", "ok", "open-at-end"]},
    ),
    Story(
        "a client that has gone is another one than the next of its name",
        (
            *(asks(0, "1", client="a"), asks(0, "2", client="b"), closes(10, client="a")),
            *(asks(20, "3", client="a"), closes(30, client="a"), asks(40, "4", client="a"), ends(50)),
        ),
        {"outcome": ["lost", "open-at-end", "lost", "open-at-end"]},
    ),
    Story(
        "an id that ended a stream from before the recording is not new, and that end is no orphan",
        (stops(0), asks(1), answers(2)),
        {"kind": ["request"], "outcome": ["ok"], "match_quality": ["reused_id"]},
    ),
    Story(
        "a stream has an exchange with its items and its end",
        (
            *(opens(0, "well"), item(5, "well"), item(6, "well")),
            item(6.5, "well", direction=0),  # of a channel: what the asker says does not count
            *(stops(7, "well", direction=0), stops(8, "well", code=0)),
            *(opens(10, "failed"), stops(12, "failed", code=13)),
            *(opens(20, "refused"), answers(21, "refused", code=3)),
            *(opens(30, "left"), item(31, "left"), cancels(32, "left")),
            *(opens(40, "patient"), item(4_000_000, "patient"), item(8_000_000, "patient")),
            *(opens(8_000_001, "cut off"), item(8_000_002, "cut off"), closes(8_000_003)),
        ),
        {
            "correlation_id": ["well", "failed", "refused", "left", "patient", "cut off"],
            "kind": ["stream"] * 6,
            "outcome": ["ok", "error", "error", "cancelled", "lost", "lost"],
            "code": [0, 13, 3, None, None, None],
            "items": [2, 0, 0, 1, 2, 1],
            "latency_ms": [5.0, 2.0, 1.0, 1.0, 3_999_960.0, 1.0],
            "length_ns": [8 * MS, 2 * MS, 1 * MS, None, None, None],
        },
    ),
]
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
    last = events.group_by("capture_id").aggregate([("mono_ns", "max")])
    return pa.table(
        {
            "capture_id": last["capture_id"],
            "end_ns": last["mono_ns_max"] if end_ns is None else pa.array([end_ns] * len(last), pa.int64()),
            "silent_ns": pa.array([silent_ns] * len(last), pa.int64()),
            "ended": pa.array([ended] * len(last)),
            "from_seq": pa.array([-1] * len(last), pa.int64()),
            "until_seq": pa.array([1000] * len(last), pa.int64()),
            "hole_ns": pa.nulls(len(last), pa.int64()),
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
    events = table(*(story.rows for story in STORIES))
    folded = _folded(engine, events, _clocks(events))
    exchanges = engine.rows(exchanges_of(engine, engine.hand(folded)))
    orphans = engine.rows(orphans_of(engine, engine.hand(events), engine.hand(_of(folded, ORPHANS))))
    assert exchanges.column_names == EXCHANGES.names
    assert orphans.column_names == ORPHAN_ROWS.names

    def by_story(rows: list[dict[str, Any]], order: str) -> Rows:
        rows = sorted(rows, key=lambda row: row[order])
        return {story.rule: [row for row in rows if row["capture_id"] == story.rule] for story in STORIES}

    return by_story(exchanges.cast(EXCHANGES).to_pylist(), "request_seq"), by_story(orphans.to_pylist(), "seq")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.rule)
def test_what_a_story_tells_is_so(pairs: tuple[Rows, Rows], story: Story) -> None:
    exchanges, orphans = (part[story.rule] for part in pairs)
    assert {name: [row[name] for row in exchanges] for name in story.columns} == story.columns
    assert [row["seq"] for row in orphans] == story.orphans


def test_what_a_hole_may_have_swallowed_is_unseen(engine: Engine) -> None:
    told = (
        *(asks(0, "answered in it"), asks(1, "over before it", ttl_ms=5), asks(2, "answered later")),
        *(opens(3, "went on"), opens(4, "silent since"), closes(90, conn_id="another")),
        *(asks(95, "gone before it", conn_id="gone"), closes(96, conn_id="gone"), asks(300, "asked later")),
        *(answers(400, "answered later"), item(500, "went on"), closes(600), ends(40_000)),
    )
    events = table(recorded("holed", *told))
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


def test_runs_over_what_is_new_give_the_same_pairs_and_carry_a_turn_a_key(engine: Engine, pairs: tuple[Rows, Rows]) -> None:
    rows: list[dict[str, Any]] = []
    lost: list[tuple[str, int]] = []
    last: dict[str, int] = {}
    state: pa.Table | None = None
    for begin, end in ((0, 1), (1, 2), (2, 99)):
        events = table(*(story.rows[begin:end] for story in STORIES))
        last |= {story.rule: story.rows[:end][-1]["mono_ns"] for story in STORIES}
        folded = _folded(engine, events, Watermarks(last).table(all_read=True), state)
        made = engine.rows(exchanges_of(engine, engine.hand(folded), "part"))
        rows += [row for row in made.to_pylist() if row.pop("part") == FINAL or end == 99]
        orphans = orphans_of(engine, engine.hand(events), engine.hand(_of(folded, ORPHANS)))
        lost += [(row["capture_id"], row["seq"]) for row in engine.rows(orphans).to_pylist()]
        state = _of(folded, CARRIED).select(TURNS.names)
        assert state.num_rows == len({tuple(row[name] for name in KEY) for row in state.to_pylist()})
    times = pa.Table.from_pylist(rows).column("request_time").cast(pa.timestamp("us", tz="UTC")).to_pylist()
    found = [row | {"request_time": time} for row, time in zip(rows, times, strict=True)]
    wanted = [row for story in pairs[0].values() for row in story]
    assert sorted(found, key=_by_request) == sorted(wanted, key=_by_request)
    assert sorted(lost) == sorted((row["capture_id"], row["seq"]) for story in pairs[1].values() for row in story)


def _by_request(row: dict[str, Any]) -> tuple[str, int]:
    return row["capture_id"], row["request_seq"]


def test_what_a_recording_left_that_others_have_outlived_is_not_carried(engine: Engine) -> None:
    answered = asks(0, "answered"), answers(1, "answered"), answers(2, "orphan")
    given_up = asks(3, "long", ttl_ms=1_000_000), answers(4, "long", code=3), asks(5, "no answer")
    end, events = 5 * MS, table(recorded("stopped", *answered, *given_up))

    def carried(silent_s: float, end_ns: int = end, *, ended: bool = False) -> set[str]:
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
    assert carried(601, end + 31_000 * MS) == set()


def test_a_recording_is_silent_while_others_go_on_and_all_of_it_is_read() -> None:
    clocks = Watermarks({"one": 5, "two": 7}, {"one": 1000, "two": 1000})
    clocks.add({"two": 9}, {"two": 1600})
    rows = {row["capture_id"]: (row["end_ns"], row["silent_ns"]) for row in clocks.table(all_read=True).to_pylist()}
    assert rows == {"one": (5, 600), "two": (9, 0)}
    assert {row["silent_ns"] for row in clocks.table(all_read=False).to_pylist()} == {0}
    assert clocks.only({"one"}) == Watermarks({"one": 5}, {"one": 1000})
    # As an older polybus has left it.
    assert [row["silent_ns"] for row in Watermarks({"one": 5}).table(all_read=True).to_pylist()] == [0]
