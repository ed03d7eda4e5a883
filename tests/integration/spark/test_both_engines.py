"""Spark and DuckDB make the same rows of every table, whatever the traffic is."""

import random
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb as duckdb_module
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from polybus.analysis import DuckEngine, Engine, open_tables
from polybus.analysis import Pipeline as AnyPipeline
from polybus.analysis.clocks import Watermarks
from polybus.analysis.correlation import FOLDED, MatchTimeouts, closes_of, exchanges_of, fold, orphans_of, turns_of
from polybus.analysis.pipeline import Done
from polybus.analysis.results import Output
from polybus.analysis.storage import TableStorage
from polybus.capture import write_columns
from polybus.capture.schema import EVENTS, EXCHANGES, ORPHANS, OUTCOMES, QUARANTINE
from polybus.capture.store.segments import SegmentWriter
from polybus.spark import load, scan
from polybus.spark.engine import SparkEngine
from tests.loops import FULL
from tests.unit.analysis.delta_reading import same_by_delta
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import damage_batches, open_segment
from tests.unit.capture.generator import traffic
from tests.unit.capture.test_strange_rows import strange_capture

from .stories import Event, event, recorded, table

QUESTIONS = Path(__file__).parents[3] / "docs" / "how-to" / "questions.md"
TIMEOUTS = MatchTimeouts(30.0, 100.0)
STEPS = [0, 0, 0.001, 1, 1, 10, 500, 29_999, 30_000, 30_001, 59_999, 100_000, 100_001, 300_000]
"""Milliseconds between two events: at, before and after what the timeouts and times to live below make a difference for."""
RECORDINGS = 200


def _recording(seed: int) -> list[Event]:
    """Some events: few ids, so that they come round, on few connections, in both directions, some of them in one frame."""
    chance = random.Random(seed)
    events, at, seq, sub = list[Event](), 0.0, 0, 0
    ids = ["1", "2", "3"][: chance.randint(1, 3)]
    for _ in range(chance.randint(1, 40)):
        if chance.random() < 0.2:
            sub += 1
        else:
            at, seq, sub = at + chance.choice(STEPS), seq + chance.randint(1, 3), 0
        columns: dict[str, Any] = {
            "seq": seq,
            "sub": sub,
            "conn_id": chance.choice(["a", "a", "a", "b"]),
            "client": chance.choice(["", "", "", "7", None]),
            "protocol": chance.choice(["ubre", "ubre", "ubre", "csb"]),
            "correlation_id": chance.choice([*ids, *ids, *ids, None]),
            "direction": chance.choice([0, 1]),
            "subject": chance.choice(
                ["user.get", "user.get", "user.set", "_polybus.hello", "//v/a/1/rpc._polybus.hello", None]
            ),
            "data": chance.choice([b"?", b"?", b"!", b"", None]),
        }
        usual, other = ["request", "response"] * 4, ["publish", "cancel", "stream", "item", "item", "end", "close"]
        kind = chance.choice([*usual, *other])
        if kind in ("request", "stream"):
            wait = chance.choice([None, None, 0, 1, 30_000, 30_001, 100_001, 2**53])
            left = chance.choice([None, None, None, -1, 0, 30_000_000_000, 100_000_000_001])
            columns |= {"ttl_ms": wait, "deadline_ns": None if left is None else round(at * 1_000_000) + left}
        elif kind in ("response", "end"):
            code = chance.choice([0, 0, 5, 13])
            columns |= {"code": code, "code_name": str(code)}
        events.append(event(kind, at, **columns))
    return recorded(f"recording {seed}", *events)


TABLES = {"events": EVENTS, "quarantine": QUARANTINE, "exchanges": EXCHANGES, "orphans": ORPHANS}


@pytest.fixture
def duckdb() -> Iterator[DuckEngine]:
    with DuckEngine(memory="1GB") as engine:
        yield engine


def _ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=str)


def _table(out: Path, name: str) -> list[dict[str, Any]]:
    schema, storage = TABLES[name], TableStorage(out)
    with DuckEngine() as engine:
        return _ordered(engine.rows(engine.read(storage, name, Output(storage).files(name), schema)).to_pylist())


def _results(engine: Engine, capture: Path, out: Path, before: Path | None = None) -> tuple[Path, Done]:
    return out, AnyPipeline(engine, timeout=30.0).run(capture, out, before=before)


def _same_results(one: tuple[Path, Done], other: tuple[Path, Done]) -> None:
    assert one[1].total == other[1].total
    for name in TABLES:
        assert _table(one[0], name) == _table(other[0], name), name
    assert one[1].metrics == other[1].metrics
    assert Path(one[1].report).read_text() == Path(other[1].report).read_text()


@pytest.mark.parametrize(("alike", "recordings"), [(True, 2), (False, 1)])
def test_generated_traffic_gives_the_same_rows_in_every_table_and_the_same_report(
    spark: SparkSession, duckdb: DuckEngine, tmp_path: Path, alike: bool, recordings: int
) -> None:
    seed = random.SystemRandom().randrange(10**6) if FULL else 7
    print(f"{seed=}")
    capture = traffic(3000, seed=seed, alike=alike).write(tmp_path / "capture", rows=200, segment_batches=4)
    if recordings > 1:
        others, number = traffic(600, seed=seed, capture_id="other").batches(200), len(list(capture.iterdir()))
        open_segment(capture, *others, number=number, recording="other").seal()
    before = _results(duckdb, traffic(1000, seed=seed + 1).write(tmp_path / "earlier"), tmp_path / "before")[0]
    engines: tuple[Engine, ...] = (duckdb, SparkEngine(spark))
    made = [_results(engine, capture, tmp_path / type(engine).__name__, before=before) for engine in engines]
    _same_results(*made)
    metrics = made[0][1].metrics
    assert {row["why"] for row in metrics["journeys"]} >= {"failed", "slowest"}
    assert all(row["frames"] for row in metrics["journeys"])
    assert metrics["changes"] and metrics["rows"] and metrics["verdict"]
    assert all(_table(made[0][0], name) for name in TABLES)


def test_the_questions_of_the_page_have_the_same_answers_in_both(
    spark: SparkSession, duckdb: DuckEngine, tmp_path: Path
) -> None:
    capture = traffic(3000).write(tmp_path / "capture", rows=200, segment_batches=4)
    out, _ = _results(duckdb, capture, tmp_path / "out")
    questions = re.findall(r"^## (\d+)\. .*?\n```sql\n(.*?)```", QUESTIONS.read_text(), re.DOTALL | re.MULTILINE)
    assert [int(number) for number, _ in questions] == list(range(1, 11))
    plain = open_tables(tmp_path / "out")
    views = duckdb_module.connect()
    for name in TABLES:
        load(spark, out, name).createOrReplaceTempView(name)
        views.execute(f"create view {name} as from read_parquet('{out}/{name}/**/*.parquet', hive_partitioning=true)")
    for connection in (plain, views):
        connection.execute("set timezone = 'UTC'")
    for number, text in questions:
        answers = [_plain(answer) for answer in (plain.sql(text), views.sql(text), spark.sql(text))]
        assert answers[0] and answers[0] == answers[1] == answers[2], f"question {number}"


def test_a_table_has_the_same_columns_and_dates_whichever_way_it_is_opened(
    spark: SparkSession, duckdb: DuckEngine, tmp_path: Path
) -> None:
    capture = traffic(3000).write(tmp_path / "capture", rows=200, segment_batches=4)
    write_columns(capture)
    out, _ = _results(duckdb, capture, tmp_path / "out")
    plain = open_tables(out)
    for name, schema in TABLES.items():
        ways = {"load": load(spark, out, name), "Parquet by Spark": spark.read.parquet(str(out / name))}
        if name != "orphans":
            ways["data source"] = spark.read.format("polybus").option("table", name).load(str(capture))
        if name in ("events", "quarantine"):
            ways["scan"] = scan(spark, capture, name)
        types = {way: sorted(rows.dtypes) for way, rows in ways.items()}
        assert all(found == types["load"] for found in types.values()), name
        assert dict(types["load"])["date"] == "date"
        by_pandas = pd.read_parquet(out / name)
        assert sorted(plain.sql(f"from {name}").columns) == sorted(by_pandas.columns) == sorted(schema.names)
        wanted = plain.sql(f"select date, count(*) from {name} group by date order by date").fetchall()
        assert wanted[0][0] == date(2023, 11, 14)
        for way, rows in ways.items():
            found = [tuple(row) for row in rows.groupBy("date").count().orderBy("date").collect()]
            assert found == wanted, (name, way)
        assert sorted(str(day) for day in by_pandas["date"].unique()) == [str(day) for day, _ in wanted]


def _plain(answer: Any) -> list[list[Any]]:
    """The rows of an answer: sums are decimals in one engine, and whole numbers in the other."""
    table = answer.toArrow() if hasattr(answer, "toArrow") else answer.to_arrow_table()
    rows = ([float(value) if isinstance(value, Decimal) else value for value in row.values()] for row in table.to_pylist())
    return list(rows)


def test_runs_of_both_engines_may_take_turns_in_one_folder(spark: SparkSession, duckdb: DuckEngine, tmp_path: Path) -> None:
    capture = traffic(3000).write(tmp_path / "capture", rows=200, segment_batches=4)
    damage_batches(capture, 3)  # the last one that the first run reads
    growing, whole = tmp_path / "growing", _results(duckdb, capture, tmp_path / "whole")
    growing.mkdir()
    segments = sorted(capture.iterdir())
    engines: list[Engine] = [SparkEngine(spark), duckdb, SparkEngine(spark), duckdb]
    for number, engine in enumerate(engines):
        for segment in segments[number : number + 1] if number < 3 else segments[3:]:
            (growing / segment.name).hardlink_to(segment)
        turns = AnyPipeline(engine, timeout=30.0, delta=True).run(growing, tmp_path / "turns", report=number == 3)
        same_by_delta(tmp_path / "turns")
    assert Output(TableStorage(tmp_path / "turns")).runs == 4
    assert turns.total == whole[1].total
    for name in TABLES:
        assert _table(tmp_path / "turns", name) == _table(whole[0], name), name
    assert "unseen" in {row["outcome"] for row in _table(whole[0], "exchanges")}
    assert turns.metrics["latency"] == whole[1].metrics["latency"]


def test_a_capture_that_has_nothing_and_results_without_rows_are_the_same(
    spark: SparkSession, duckdb: DuckEngine, tmp_path: Path
) -> None:
    (tmp_path / "capture").mkdir()
    writer = SegmentWriter(tmp_path / "capture", 0)
    writer.write(frames.batch(frames.row(0, frame=b"no frame at all")), 0)
    writer.seal()
    made = [_results(engine, tmp_path / "capture", tmp_path / type(engine).__name__) for engine in (duckdb, SparkEngine(spark))]
    _same_results(*made)
    assert [len(_table(made[0][0], name)) for name in TABLES] == [0, 1, 0, 0]


def test_rows_that_may_say_anything_are_the_same(spark: SparkSession, duckdb: DuckEngine, tmp_path: Path) -> None:
    capture = strange_capture(tmp_path / "capture")
    made = [_results(engine, capture, tmp_path / type(engine).__name__) for engine in (duckdb, SparkEngine(spark))]
    _same_results(*made)
    assert len(_table(made[0][0], "events")) == made[0][1].total.events > 0


def test_both_correlations_give_the_same_exchanges_to_the_row(spark: SparkSession, duckdb: DuckEngine) -> None:
    events = table(*(_recording(seed) for seed in range(RECORDINGS)))
    by_spark, by_duckdb = (_correlated(engine, events) for engine in (SparkEngine(spark), duckdb))
    for row in (*by_spark[0], *by_duckdb[0]):
        row["request_time"] = None  # a time, and one that does not say that it is in UTC
    assert _ordered(by_spark[0]) == _ordered(by_duckdb[0])
    assert by_spark[1] == by_duckdb[1]
    assert {row["outcome"] for row in by_spark[0]} == set(OUTCOMES)
    assert len({row["match_quality"] for row in by_spark[0]}) == 3


def _correlated(engine: Engine, events: pa.Table) -> tuple[list[dict[str, Any]], list[str]]:
    ends = events.group_by("capture_id").aggregate([("mono_ns", "max")])
    marks = Watermarks({row["capture_id"]: row["mono_ns_max"] for row in ends.to_pylist()})
    holes = {name: [(8, 20 * 10**9)] for name in list(marks.ends)[::3]}
    clocks = engine.hand(marks.table(all_read=True, ended=marks.ends, holes=holes))
    given = engine.hand(events)
    turns = turns_of(engine, given, TIMEOUTS)
    folded = engine.rows(fold(engine, [turns], TIMEOUTS, clocks, closes_of(engine, given))).cast(FOLDED)
    exchanges = engine.rows(exchanges_of(engine, engine.hand(folded))).to_pylist()
    lost = engine.hand(pa.Table.from_pylist([row for row in folded.to_pylist() if row["request_seq"] is None], schema=FOLDED))
    orphans = engine.rows(orphans_of(engine, given, lost)).to_pylist()
    return exchanges, sorted(f"{row['capture_id']} {row['seq']} {row['sub']}" for row in orphans)
