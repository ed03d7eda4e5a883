"""What is decoded once is read in place of frames: with the same rows, and without the rest."""

import shutil
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from polybus.analysis import open_tables, ranges
from polybus.analysis.engine import exchanges
from polybus.analysis.ranges import RangeReader, ReadPosition, ReadWindow, plan
from polybus.capture import Capture, write_columns
from polybus.capture.columns import sizes, writer
from polybus.capture.columns.reader import SegmentColumns
from polybus.capture.decoding import decoded
from polybus.capture.errors import CaptureError
from polybus.capture.schema import EVENTS, EXCHANGES
from polybus.spark import Pipeline, load, scan
from polybus.spark.source import CaptureReader, Options
from tests.unit.analysis.test_views import Folder
from tests.unit.capture.generator import Traffic, traffic

KEYS = {"events": ("seq", "sub"), "quarantine": ("seq",), "exchanges": ("request_seq",), "orphans": ("seq",)}
MARKED = "of columns"


@attrs.frozen
class Recorded:
    """The same capture without columns and with: of all segments but the last two, one of which is still written."""

    made: Traffic
    plain: Path
    columns: Path


def _few(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writer, "_ROWS_OF_GROUP", 150)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("columns")
    made = traffic(6_000, alike=False)
    plain = made.write(folder / "plain", rows=100, segment_batches=9, sealed=False)
    columns = folder / "columns"
    shutil.copytree(plain, columns)
    with pytest.MonkeyPatch.context() as patch:
        _few(patch)
        done = write_columns(columns)
    assert (done.segments, done.open) == (len(Capture(columns).segments()) - 1, 1)
    for table in ("events", "quarantine"):
        last = max((columns / table).iterdir())
        last.unlink()
    return Recorded(made, plain, columns)


@pytest.fixture
def marked(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A capture whose columns tell themselves from what decoding gives."""

    def telling(batches: Any) -> Any:
        for made in decoded(batches):
            place = EVENTS.get_field_index("subject")
            said = pa.repeat(pa.scalar(MARKED), made.events.num_rows)
            yield made._replace(events=made.events.set_column(place, EVENTS.field(place), said))

    shutil.copytree(recorded.plain, tmp_path / "marked")
    monkeypatch.setattr(writer, "decoded", telling)
    _few(monkeypatch)
    write_columns(tmp_path / "marked")
    return tmp_path / "marked"


def _sorted(rows: DataFrame, table: str = "events") -> pa.Table:
    return rows.toArrow().sort_by([(name, "ascending") for name in KEYS[table]])


def _source(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("polybus").options(**options).load(str(path))


@pytest.mark.parametrize("table", ["events", "quarantine", "exchanges", "raw"])
def test_the_source_gives_the_same_rows_with_columns(spark: SparkSession, recorded: Recorded, table: str) -> None:
    one, other = (_source(spark, path, table=table) for path in (recorded.plain, recorded.columns))
    if table == "raw":
        assert one.count() == other.count() == recorded.made.table.num_rows
    else:
        assert _sorted(one, table).equals(_sorted(other, table))


def test_it_reads_the_columns_and_decodes_what_has_none(spark: SparkSession, marked: Path) -> None:
    capture = Capture(marked)
    whole = [segment.number for segment in capture.segments() if SegmentColumns.of(capture, segment) is not None]
    frames = sum(batch.rows.num_rows for batch in capture.batches((0, 0), (max(whole) + 1, 0)))
    subjects = {row["subject"]: row["count"] for row in _source(spark, marked).groupBy("subject").count().collect()}
    assert 0 < frames - 100 < subjects.pop(MARKED) <= frames
    assert len(subjects) > 50


@pytest.mark.parametrize("rows", [1, 600, 10_000])
def test_pieces_of_a_segment_with_columns_are_whole_groups(
    recorded: Recorded, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SCAN", 0)
    capture = Capture(recorded.columns)
    seen: list[int] = []
    for piece in plan(capture, ReadPosition(), rows=rows):
        batches = RangeReader(capture.path, piece).table("events", ["seq"], ReadWindow(), None)
        seen += [seq for batch in batches for seq in batch["seq"].to_pylist()]
        columns = SegmentColumns.of(capture, capture.segments()[piece.start.segment])
        if columns is not None:
            assert piece.start.batch in {0, *(group.after for group in columns.groups)}
            first = next(iter(RangeReader(capture.path, piece).frames(["seq"])), None)
            assert first is not None or piece.start.batch == columns.groups[-1].after
    assert seen == [row for batch in _numbers(recorded.plain) for row in batch]


def _numbers(path: Path) -> list[list[int]]:
    return [made.events["seq"].to_pylist() for made in decoded(batch.rows for batch in Capture(path).batches())]


@pytest.mark.parametrize(
    "query",
    [
        "kind = 'request' and seq > 700",
        "seq >= 700 and seq < 900 and code is null",
        "code is not null and code_name in ('NOT_FOUND', 'OK') and nbytes <= 200",
        "time >= '2023-11-14T22:13:20.100Z' and direction = 1",
        "kind != 'request' and subject like 'orders%'",
        "time_ns > 1700000000050000000 and conn_id = 'cafe-2'",
        "data = x'31' or kind = 'publish'",
    ],
)
@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_give_the_same_whoever_applies_them(spark: SparkSession, recorded: Recorded, query: str, pushed: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    plain = spark.createDataFrame(_sorted(_source(spark, recorded.plain)))
    wanted = [row["seq"] for row in plain.where(query).select("seq").collect()]
    assert wanted or "x'31'" in query
    for rows in (_source(spark, recorded.columns), scan(spark, recorded.columns)):
        assert sorted(row["seq"] for row in rows.where(query).select("seq").collect()) == wanted
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_scan_is_of_parquet_and_reads_the_columns_that_are_asked_for(
    spark: SparkSession, recorded: Recorded, tmp_path: Path
) -> None:
    whole = scan(spark, recorded.columns)
    assert _sorted(whole).equals(_sorted(_source(spark, recorded.plain)))
    assert _sorted(scan(spark, recorded.columns, "quarantine"), "quarantine").num_rows == len(recorded.made.quarantine)
    assert _sorted(scan(spark, recorded.plain)).equals(_sorted(whole)), "without columns too"
    sealed = recorded.made.write(tmp_path / "sealed", rows=100, segment_batches=9)
    write_columns(sealed)
    rows = scan(spark, sealed).where("kind = 'response'").select("seq", "code")
    told = rows._jdf.queryExecution().executedPlan().toString()
    assert "ReadSchema: struct<kind:string,code:int,seq:bigint>" in told
    assert "PushedFilters: [IsNotNull(kind), EqualTo(kind,response)]" in told
    with pytest.raises(ValueError, match="one of events, quarantine"):
        scan(spark, sealed, "raw")
    with pytest.raises(CaptureError):
        scan(spark, tmp_path / "nothing")


def test_the_pipeline_makes_the_same_tables_of_columns(
    spark: SparkSession, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Pipeline(spark).run(path, tmp_path / path.name, report=False) for path in (recorded.plain, recorded.columns))
    assert one.total == other.total
    for table in KEYS:
        found = [_sorted(load(spark, tmp_path / path.name, table), table) for path in (recorded.plain, recorded.columns)]
        assert found[0].equals(found[1]), table
    gaps = [
        sorted((row["seq"], row["detail"]) for row in _gaps(tmp_path / path.name))
        for path in (recorded.plain, recorded.columns)
    ]
    assert gaps[0] == gaps[1] != []
    # Spark is handed no file that unpacks to more than one of ours.
    monkeypatch.setattr(sizes, "MOST_OF_GROUP", 1000)
    with pytest.raises(CaptureError, match="unpack to"):
        scan(spark, recorded.columns)
    with pytest.raises(CaptureError, match="unpack to"):
        load(spark, tmp_path / recorded.plain.name, "events")


def _gaps(out: Path) -> list[dict[str, Any]]:
    from polybus.analysis.results import Output
    from polybus.analysis.storage import TableStorage

    return Output(TableStorage(out)).last.gaps


def test_a_window_is_the_same_with_columns(recorded: Recorded) -> None:
    times = recorded.made.table["ts_ns"].to_pylist()
    window = ReadWindow(times[1500], times[3000], "cafe-2")
    found = [
        sorted(row["request_seq"] for batch in exchanges(Capture(path), window, 30.0) for row in batch.to_pylist())
        for path in (recorded.plain, recorded.columns)
    ]
    assert found[0] == found[1] != []


def test_a_stream_that_stops_within_a_group_goes_on_there(spark: SparkSession, recorded: Recorded, tmp_path: Path) -> None:
    stream = spark.readStream.format("polybus").option("maxRowsPerTrigger", 700).load(str(recorded.columns))
    writer = stream.select("seq", "sub").writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "seen"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(300)
    assert query.exception() is None
    found = spark.read.parquet(str(tmp_path / "out")).toArrow().sort_by([("seq", "ascending"), ("sub", "ascending")])
    assert found.equals(_sorted(_source(spark, recorded.plain)).select(["seq", "sub"]))


def test_segments_are_chosen_by_their_numbers(spark: SparkSession, recorded: Recorded) -> None:
    some = _source(spark, recorded.plain, segments="0, 2", table="raw").count()
    capture = Capture(recorded.plain)
    assert some == sum(message.rows for number in (0, 2) for message in capture.reader(capture.segments()[number]).messages())
    assert _source(spark, recorded.plain, segments="9999").count() == 0
    with pytest.raises(Exception, match="must be segment numbers, separated by commas"):
        _source(spark, recorded.plain, segments="first").count()


def test_each_recording_is_a_task_of_spark_and_together_they_have_the_exchanges_of_the_pipeline(tmp_path: Path) -> None:
    day = Folder(client_a=0, server=0)
    for number in range(20):
        day.asked(f"x-{number}", "tank.get", number * 50, 20 if number % 3 else None, {"client_a": "a", "server": "a"})
    day.metrics(tmp_path)
    reader = CaptureReader(Options.of({"path": str(tmp_path / "capture"), "table": "exchanges"}))
    tasks = [pa.Table.from_batches(reader.read(part)) for part in reader.partitions()]
    assert [set(task["capture_id"].to_pylist()) for task in tasks] == [{"client_a"}, {"server"}]
    made = open_tables(tmp_path / "out").sql("from exchanges").to_arrow_table().select(EXCHANGES.names).cast(EXCHANGES)
    order = [("capture_id", "ascending"), ("request_seq", "ascending")]
    assert pa.concat_tables(tasks).sort_by(order).to_pylist() == made.sort_by(order).to_pylist()
