"""The pipeline against traffic whose truth is known: once, in pieces, and as a stream, it must find the same."""

import io
import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from polybus.analysis.engine import exchanges as matched
from polybus.analysis.ingest import RunCounts
from polybus.analysis.ranges import ReadPosition, ReadWindow, plan
from polybus.analysis.report.tables import METRICS
from polybus.analysis.results import Output
from polybus.analysis.storage import TableStorage
from polybus.capture import Capture, CaptureError
from polybus.capture.schema import EVENTS, EXCHANGES, FLAG_GAP_BEFORE, QUARANTINE
from polybus.capture.store.segments import segment_name
from polybus.cli.app import run
from polybus.spark import Done, Pipeline, load, nanoseconds
from polybus.spark.engine import ingest_task, spark_schema
from polybus.spark.source import BusDataSource
from tests.unit.capture import rows as frames
from tests.unit.capture.folders import damage, write_segment
from tests.unit.capture.generator import EXCHANGES as TRUTH
from tests.unit.capture.generator import Traffic, traffic

TABLES = {"events": ("seq", "sub"), "quarantine": ("seq",), "exchanges": ("request_seq",), "orphans": ("seq",)}


@attrs.frozen
class Recorded:
    made: Traffic
    path: Path
    out: Path
    done: Done
    tables: dict[str, pa.Table]
    told: dict[str, Any]
    """Printed by `polybus analyse`, which was that run."""


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("pipeline")
    made = traffic(12_000)
    path, out = made.write(folder / "capture", rows=200, segment_batches=9), folder / "out"
    with redirect_stdout(io.StringIO()) as said:
        assert run(["analyse", str(path), "--out", str(out), "--engine", "spark", "--json"]) == 0
    done = Pipeline(spark).run(path, out)  # which finds nothing new
    return Recorded(made, path, out, done, {table: rows_of(spark, out, table) for table in TABLES}, json.loads(said.getvalue()))


def rows_of(spark: SparkSession, out: Path, table: str) -> pa.Table:
    rows = load(spark, out, table).toArrow()
    return rows.sort_by([(name, "ascending") for name in TABLES[table]])


def same_tables(spark: SparkSession, recorded: Recorded, other: Path) -> None:
    for table in TABLES:
        assert recorded.tables[table].equals(rows_of(spark, other, table)), table


def test_every_pair_latency_and_outcome_is_the_true_one(recorded: Recorded) -> None:
    found = recorded.tables["exchanges"]
    assert found.column_names == EXCHANGES.names
    truth = recorded.made.exchanges
    assert found.num_rows == truth.num_rows
    wrong = Counter[str]()
    for true, row in zip(truth.to_pylist(), found.to_pylist(), strict=True):
        wrong.update(f"{name} of {row['protocol']}" for name in TRUTH.names if name != "client" and row[name] != true[name])
    assert +wrong == Counter()


def test_every_event_orphan_and_frame_of_the_quarantine_is_there(recorded: Recorded) -> None:
    made = recorded.made
    events = recorded.tables["events"]
    assert events.column_names == EVENTS.names
    kinds = Counter(zip(events["protocol"].to_pylist(), events["kind"].to_pylist(), strict=True))
    assert dict(kinds) == made.events
    quarantine = recorded.tables["quarantine"]
    assert quarantine.column_names == QUARANTINE.names
    assert dict(zip(quarantine["seq"].to_pylist(), quarantine["reason"].to_pylist(), strict=True)) == made.quarantine
    assert set(recorded.tables["orphans"]["seq"].to_pylist()) >= set(made.orphans)


def test_frames_in_are_rows_and_quarantine_and_empty_ones_and_the_command_tells_it(
    spark: SparkSession, recorded: Recorded
) -> None:
    counts, made = recorded.done.total, recorded.made
    assert counts.frames == made.frames == counts.rowed + counts.quarantined + counts.empty
    assert (counts.quarantined, counts.empty, counts.gaps, counts.lost) == (len(made.quarantine), made.empty, made.gaps, 0)
    assert counts.exchanges == made.exchanges.num_rows
    told = recorded.told
    assert told["total"]["frames"] == told["added"]["frames"] == made.frames
    assert sum(told["outcomes"].values()) == told["total"]["exchanges"] == made.exchanges.num_rows
    assert told["added"]["exchanges"] + told["provisional"] == told["total"]["exchanges"]
    assert told["provisional"] > 0, "the recording may go on"
    assert spark.range(3).count() == 3, "the session of others is left as it was"


def test_running_again_changes_nothing(spark: SparkSession, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in recorded.out.rglob("*.*")}
    stages: list[str] = []
    again = Pipeline(spark, progress=stages.append).run(recorded.path, recorded.out)
    assert again == attrs.evolve(recorded.done, added=RunCounts())
    assert stages == [], "nothing is asked of Spark"
    assert run(["analyse", str(recorded.path), "--out", str(recorded.out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["added"]["frames"] == 0
    assert (told["total"], told["provisional"]) == (recorded.told["total"], recorded.told["provisional"])
    assert {path: path.read_bytes() for path in recorded.out.rglob("*.*")} == before


def test_runs_over_what_is_new_and_a_stream_give_the_tables_of_a_single_run(
    spark: SparkSession, recorded: Recorded, tmp_path: Path
) -> None:
    """The capture grows, also in the middle of a segment, and whoever comes next takes only what is new."""
    capture, out = tmp_path / "capture", tmp_path / "out [1]"  # no pattern of names
    capture.mkdir()
    segments = sorted(recorded.path.iterdir())

    def grow(first: int, last: int) -> None:
        for segment in segments[first:last]:
            shutil.copy(segment, capture)
            (capture / segment.with_suffix(".open").name).unlink(missing_ok=True)
        if last < len(segments):  # the next one is half written, and torn
            half = segments[last].read_bytes()
            (capture / segments[last].with_suffix(".open").name).write_bytes(half[: len(half) // 2])

    pipeline = Pipeline(spark)
    grow(0, 1)
    first = pipeline.run(capture, out, report=False).added.frames
    query = pipeline.stream(capture, out, every="1 second", max_rows=2500)
    grow(1, 3)
    query.processAllAvailable()
    streamed = Output(TableStorage(out)).counts.frames - first
    grow(3, 4)
    pipeline.run(capture, out, report=False)  # of which the stream may take something, or all
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    grow(4, len(segments))
    last = pipeline.run(capture, out, report=False).added.frames
    assert all((first, streamed, last))
    assert Output(TableStorage(out)).counts.frames == recorded.made.frames
    same_tables(spark, recorded, out)
    done = pipeline.report(capture, out)
    assert done.total == recorded.done.total
    assert done.metrics["totals"] == recorded.done.metrics["totals"]


def test_the_data_source_reads_every_table(spark: SparkSession, recorded: Recorded) -> None:

    def read(table: str, **options: Any) -> pa.Table:
        return spark.read.format("polybus").options(table=table, **options).load(str(recorded.path)).toArrow()

    events = recorded.tables["events"]
    assert read("events", rowsPerPartition=4000).sort_by("seq").equals(events)
    assert read("quarantine").sort_by("seq").equals(recorded.tables["quarantine"])
    assert read("exchanges").sort_by("request_seq").equals(recorded.tables["exchanges"])
    assert read("raw").sort_by("seq")["frame"].to_pylist() == recorded.made.table["frame"].to_pylist()
    some = read("events", columns="kind, seq", connection="cafe-5")
    assert some.column_names == ["kind", "seq"]
    narrow = spark.read.format("polybus").schema("seq long, kind string").load(str(recorded.path)).limit(1).toArrow()
    assert narrow.column_names == ["seq", "kind"]
    assert some.num_rows == events["conn_id"].to_pylist().count("cafe-5") > 0


def test_a_window_of_time_is_read(spark: SparkSession, recorded: Recorded, tmp_path: Path) -> None:
    times = recorded.made.table["ts_ns"].to_pylist()
    gap = next(row for row, flags in enumerate(recorded.made.table["flags"].to_pylist()) if flags & FLAG_GAP_BEFORE)
    start, end = times[gap - 2000], times[gap + 500]
    wanted = sum(start <= time < end for time in times)
    read = spark.read.format("polybus").options(table="raw", start=str(start), end=str(end)).load(str(recorded.path))
    assert read.count() == wanted
    done = Pipeline(spark).run(recorded.path, tmp_path / "all", start_ns=start, end_ns=end, report=False)
    assert done.total.frames + done.total.gaps == wanted
    # Of one connection there are fewer; gaps belong to all.
    only: dict[str, Any] = {"start_ns": start, "end_ns": end, "connection": "cafe-2"}
    done = Pipeline(spark).run(recorded.path, tmp_path / "out", **only, report=False)
    within = [row for row in recorded.made.table.to_pylist() if start <= row["ts_ns"] < end]
    gaps = [row for row in within if row["flags"] & FLAG_GAP_BEFORE]
    assert done.total.gaps == len(gaps) > 0
    assert done.total.frames == sum(row["conn_id"] == "cafe-2" for row in within if row not in gaps)
    assert 0 < done.total.frames < wanted


def test_one_event_after_the_other_gives_the_same_pairs(recorded: Recorded) -> None:
    made = pa.Table.from_batches(list(matched(Capture(recorded.path), ReadWindow(), 30.0)), schema=EXCHANGES)
    assert made.sort_by("request_seq").equals(recorded.tables["exchanges"].cast(EXCHANGES))
    begin, end = (recorded.made.table["ts_ns"][place].as_py() for place in (3000, 6000))
    narrow = pa.Table.from_batches(list(matched(Capture(recorded.path), ReadWindow(begin, end, "cafe-2"), 30.0)))
    asked = [row for row in made.to_pylist() if row["conn_id"] == "cafe-2" and begin <= row["request_time_ns"] < end]
    assert sorted(narrow["request_seq"].to_pylist()) == sorted(row["request_seq"] for row in asked) != []


def test_the_report_fetches_nothing_and_shows_the_numbers_of_the_metrics(recorded: Recorded) -> None:
    html = (recorded.out / "report.html").read_text()
    assert not re.search(r'<(link|img|iframe)|\b(src|href)="[^#"]|url\((?!#)', html)
    assert html.count("<svg") >= 5
    assert 'name="viewport"' in html
    metrics = json.loads((recorded.out / "metrics.json").read_text())
    assert metrics == recorded.done.metrics
    tiles = {name: int(value.replace(",", "")) for name, value in re.findall(r'data-metric="([^"]*)">([\d,]+)<', html)}
    assert {name: n for name, n in metrics["totals"]["outcomes"].items() if n}.items() <= tiles.items()
    assert tiles["frames"] == metrics["counts"]["frames"] == recorded.made.frames
    assert metrics["provisional"] == recorded.done.provisional > 0
    assert f"{metrics['provisional']:,} exchanges are provisional" in html


def test_the_metrics_are_those_of_the_truth(recorded: Recorded) -> None:
    metrics, truth = recorded.done.metrics, recorded.made.exchanges.to_pylist()
    assert metrics["totals"]["exchanges"] == len(truth)
    assert metrics["totals"]["events"] == sum(recorded.made.events.values())
    assert {row["protocol"]: 0 for row in metrics["latency"]}.keys() == {"ubre", "csb", "jrep", "uprotocol", "up"}
    for row in metrics["latency"]:
        mine = [one for one in truth if (one["protocol"], one["subject"]) == (row["protocol"], row["subject"])]
        latencies = sorted(one["latency_ns"] for one in mine if one["latency_ns"] is not None)
        assert (row["n"], row["answered"], row["max_ns"]) == (len(mine), len(latencies), max(latencies, default=None))
        if latencies:
            exact = latencies[(len(latencies) + 1) // 2 - 1]
            assert exact <= row["p50_ns"] <= exact * 1.01
        assert (row["p99_ns"] is None) == (len(latencies) < 100)
        for outcome in ("ok", "error", "late", "timeout", "unanswered"):
            assert row[outcome] == sum(one["outcome"] == outcome for one in mine)
    assert sum(row["n"] for row in metrics["quarantine"]) == len(recorded.made.quarantine)
    assert sum(row["n"] for row in metrics["latency_histogram"]) == sum(row["answered"] for row in metrics["latency"])
    assert sum(row["n"] for row in metrics["throughput"]) == metrics["totals"]["events"]
    assert len(metrics["gaps"]) == recorded.made.gaps


def test_the_metrics_have_the_columns_of_their_reference(recorded: Recorded) -> None:
    assert {path.stem for path in (recorded.out / "metrics").iterdir()} == METRICS.keys()
    for name, (_, schema) in METRICS.items():
        table = pq.read_table(recorded.out / "metrics" / f"{name}.parquet")
        assert table.schema == schema, name
        rows = recorded.done.metrics[name]
        assert table.to_pylist() == rows
        assert not rows or set(rows[0]) == set(schema.names), name


def test_what_cannot_be_read_is_counted_or_with_strict_refused(spark: SparkSession, recorded: Recorded, tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    shutil.copytree(recorded.path, capture)
    damage(sorted(capture.iterdir())[1])
    _write_strange(capture, len(list(capture.iterdir())))
    with pytest.raises(CaptureError, match="without --strict"):
        Pipeline(spark, strict=True).run(capture, tmp_path / "strict")
    assert not (tmp_path / "strict" / "_delta_log").exists()
    done = Pipeline(spark).run(capture, tmp_path / "out", report=False)
    assert done.total.lost == 1
    assert 0 < recorded.made.frames + 2 - done.total.frames <= 200
    assert Output(TableStorage(tmp_path / "out")).last.losses[0]["segment"] == 1
    # What peers and strangers have put into a capture stops nothing, and goes nowhere else.
    patient = load(spark, tmp_path / "out", "exchanges").where("capture_id = 'c'").select("outcome").collect()
    assert [row["outcome"] for row in patient] == ["open-at-end"]
    found = load(spark, tmp_path / "out", "quarantine").where("capture_id = 'c'").select("protocol", "reason").collect()
    assert [tuple(row) for row in found] == [("x/../../../../gone", "unknown_protocol")]
    assert {path.name for path in tmp_path.iterdir()} == {"capture", "strict", "out"}


def test_what_retention_removes_between_two_runs_is_lost_and_another_capture_is_not_taken_for_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    capture, out = tmp_path / "capture", tmp_path / "out"
    _write_segments(capture, "c", range(2))
    assert Pipeline(spark).run(capture, out, report=False).total.frames == 4
    _write_segments(capture, "c", range(2, 6))
    for number in range(4):  # two of them have been read
        (capture / segment_name(number, sealed=True)).unlink()
    with pytest.raises(CaptureError, match="2 stretches cannot be read, the first in segment 2"):
        Pipeline(spark, strict=True).run(capture, out, report=False)
    done = Pipeline(spark).run(capture, out, report=False)
    assert (done.added.frames, done.added.lost) == (4, 2)
    assert [loss["segment"] for loss in Output(TableStorage(out)).last.losses] == [2, 3]
    shutil.rmtree(capture)
    for segments, said in (
        (range(2), "ends with segment 1, but was read up to 5 before: it is another"),
        (range(2, 7), "its segment 5 belongs to recording d, not c; analyse into a new folder"),
    ):
        _write_segments(capture, "d", segments)
        with pytest.raises(CaptureError, match=said):
            Pipeline(spark).run(capture, out, report=False)


def test_a_task_that_spark_starts_again_writes_other_files(tmp_path: Path) -> None:
    """Only the files that an accepted attempt names are moved into the tables."""
    capture, numbers = traffic(200).write(tmp_path / "capture"), pa.RecordBatch.from_pydict({"id": [0]})
    task = partial(ingest_task, str(capture), str(tmp_path), "_staging", plan(Capture(capture), ReadPosition()), ReadWindow())
    told = [row["taken"] for _ in range(2) for rows in task(iter([numbers])) for row in rows.to_pylist()]
    first, second = ({name for _, name, _ in json.loads(one)["files"]} for one in told)
    assert first and second and not first & second


def test_a_worker_that_is_killed_in_the_middle_loses_nothing_and_nothing_counts_twice(
    spark: SparkSession, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"

    def dying(*given: Any) -> Iterator[pa.RecordBatch]:
        """Kill the first worker that has written its files, before Spark knows their names. Spark then repeats its task."""
        for taken in ingest_task(*given):
            try:
                killed.touch(exist_ok=False)
            except FileExistsError:
                yield taken
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("polybus.spark.engine.ingest_task", dying)
    done = Pipeline(spark).run(recorded.path, tmp_path / "out")
    assert killed.exists()
    same_tables(spark, recorded, tmp_path / "out")
    assert (done.total, done.metrics) == (recorded.done.total, recorded.done.metrics)


def _write_segments(capture: Path, recording: str, numbers: range) -> None:
    for number in numbers:
        write_segment(capture, frames.run(2 * number, 2, capture_id=recording), number=number, recording=recording)


def _write_strange(capture: Path, number: int) -> None:
    """A segment with a ttl that in nanoseconds does not fit 64 bits, and a protocol whose name is a path."""
    asks = frames.row(0, frame=b'{"request":"plant.wait","id":"1","ttl":%d}' % 2**53)
    write_segment(capture, frames.batch(asks, frames.row(1, protocol="x/../../../../gone", frame=b"?")), number=number)


def test_a_folder_of_other_things_is_not_written_into(spark: SparkSession, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    with pytest.raises(CaptureError, match="contains files that polybus analyse did not write"):
        Pipeline(spark).run(recorded.path, tmp_path)
    with pytest.raises(CaptureError, match="is not a capture"):
        Pipeline(spark).run(tmp_path, tmp_path / "out")
    with pytest.raises(CaptureError, match="has results with timeout 30.0, not 5"):
        Pipeline(spark, timeout=5).run(recorded.path, recorded.out)
    other = tmp_path / "other"
    shutil.copytree(recorded.path, other)
    with pytest.raises(CaptureError, match="has the results of"):
        Pipeline(spark).run(other, recorded.out)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"table": "nothing"}, "one of events, exchanges, quarantine, raw"),
        ({"columns": "kind, colour"}, "has no column 'colour'"),
        ({"start": "yesterday"}, "pass a time such as 2026"),
        ({"start": "20261121"}, "nanoseconds since 1970 have 19 digits"),
        ({"end": "1763711999"}, "end='1763711999': nanoseconds since 1970 have 19 digits"),
        ({"start": "2026-11-21", "end": "2026-11-21T00:00Z"}, "choose a later end"),
        ({"rowsPerPartition": "0"}, "an integer of at least 1"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger='many' must be an integer"),
        ({"timeout": "soon"}, "timeout='soon' must be a number of seconds above 0"),
        ({"timeout": "nan"}, "must be a number of seconds above 0"),
        ({"columns": "kind,seq,kind"}, "a column is repeated"),
        ({"tabel": "raw"}, "unknown option 'tabel'; use one of path, table"),
        ({"path": ""}, "no capture given"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        BusDataSource({"path": "x", **options}).schema()


def test_a_schema_that_does_not_fit_is_refused() -> None:
    schema = spark_schema("quarantine", ["seq", "detail"])
    with pytest.raises(ValueError, match="events has no column 'detail'"):
        BusDataSource({"path": "x"}).reader(schema)
    with pytest.raises(ValueError, match="seq is bigint, not string: cast it after reading"):
        BusDataSource({"path": "x"}).streamReader(StructType([StructField("seq", StringType())]))


def test_times_are_read_and_those_beyond_all_recordings_are_their_ends() -> None:
    assert nanoseconds("1970-01-01T00:00:01.000001Z") == 1_000_001_000
    assert nanoseconds("1970-01-01T01:00:00+01:00") == 0
    assert nanoseconds("9999-12-31") == nanoseconds("9" * 30) == 2**63 - 1
    assert nanoseconds("0001-01-01") == 1 - 2**63
    with pytest.raises(ValueError, match="--start='²': pass a time such as 2026"):
        nanoseconds("²", "--start")
