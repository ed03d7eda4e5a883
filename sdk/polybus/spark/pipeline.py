"""From a capture to tables, metrics and a report: all of it, or only what is new since the last run."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from polybus.capture.errors import CaptureError
from polybus.capture.reading import Capture

from .correlation import CARRIED, FINAL, OPEN, ORPHANS, ends_of, exchanges_of, fold, orphans_of, part_of, turns_of
from .manifest import STAGING, STATE, Counts, Manifest, Output, run_prefix
from .metrics import measure
from .patience import Patience
from .ranges import Place, Window, plan, reach
from .report import render
from .results import load_files
from .storage import Storage
from .taking import SAMPLES, Taken, taker

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Done", "Pipeline", "check"]

STAGES: Final = ("decode", "correlate", "exchanges", "orphans", "metrics", "report")
DAY_NS: Final = 86_400_000_000_000
TAKEN: Final = ("frames", "rowed", "quarantined", "empty", "events", "refused", "gaps", "lost")

Progress = Callable[[str], None]


@attrs.frozen
class Done:
    """What a run has made.

    Attributes:
        out: The folder.
        added: What this run added.
        total: What is there now.
        metrics: As in ``metrics.json``; empty where none were wanted.
        report: Path of the HTML file; empty where none was wanted.
    """

    out: str
    added: Counts
    total: Counts
    metrics: dict[str, Any]
    report: str


class Pipeline:
    """The stages decode, correlate, metrics and report, over one capture and one folder of results.

    ``Pipeline(spark).run("captures", "out")`` makes ``events``, ``quarantine``, ``exchanges``, ``orphans`` and ``metrics`` as
    Parquet, ``metrics.json`` and ``report.html``. Run again, it takes what has been recorded since; what was open is carried
    over, so the tables are those that a single run would have made. A run that is killed leaves nothing that counts.

    Args:
        spark: The session, on any master. Other masters than local ones need paths that all machines reach.
        timeout: Seconds after which an answer is late, where a request says nothing itself.
        horizon: Seconds for which an id is remembered; ten timeouts when None. See `Patience`.
        strict: Fail where a part of the capture cannot be read, instead of counting it.
        progress: Told the name of each stage when it begins.

    Raises:
        ValueError: The timeout is not above zero, or the horizon is shorter.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        timeout: float = 30.0,
        horizon: float | None = None,
        strict: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._spark = spark
        self._patience = Patience(timeout) if horizon is None else Patience(timeout, horizon)
        self._strict = strict
        self._progress: Progress = progress if progress is not None else lambda stage: None

    def run(
        self,
        capture: str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        connection: str | None = None,
        report: bool = True,
    ) -> Done:
        """Take what is new, and write metrics and report anew.

        Args:
            capture: The folder of segments; a path, or a URI that `pyarrow.fs` knows.
            out: The folder of results.
            start_ns: Only frames from here on, ns since 1970 UTC.
            end_ns: Only frames before.
            connection: Only this connection's.
            report: False leaves metrics and report as they are, for runs that follow each other closely.

        Raises:
            CaptureError: It is no capture, or a segment is missing; `out` holds something else; with `strict`, a part of the
                capture cannot be read.
            OSError: Files cannot be written.
        """
        step = self._step(capture, out, Window(start_ns, end_ns, connection))
        added = step.advance()
        return self._finish(step, added) if report else Done(step.out, added, step.output.counts, {}, "")

    def stream(
        self,
        capture: str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        every: str | None = None,
        max_rows: int | None = None,
    ) -> StreamingQuery:
        """Follow a capture: each batch of the stream goes through the same stages as `run`, but for metrics and report.

        Args:
            capture: As for `run`.
            out: As for `run`; the checkpoint is in it too.
            every: How often there is a batch, ``10 seconds``; when None, what is there is taken and the query ends.
            max_rows: Of a batch, about.

        Returns:
            The running query; call `report` whenever a report is wanted.

        Raises:
            CaptureError: As `run`.
        """
        from .source import BusDataSource

        step = self._step(capture, out, Window())
        self._spark.dataSource.register(BusDataSource)
        reader = self._spark.readStream.format("polybus").option("table", "places")
        if max_rows is not None:
            reader = reader.option("maxRowsPerTrigger", max_rows)

        def take(places: DataFrame, number: int) -> None:
            reached = [Place(row["segment"], row["batch"], row["offset"]) for row in places.collect()]
            if reached:
                # What a killed run had done already is not done again: the manifest knows where it ended.
                step.advance(max(reached))

        writer = reader.load(os.fspath(capture)).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", step.storage.for_spark("_checkpoint"))
        writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
        return writer.start()

    def report(self, capture: str | os.PathLike[str], out: str | os.PathLike[str]) -> Done:
        """Metrics and report of what is there, without taking anything.

        Raises:
            CaptureError: `out` holds something else.
        """
        return self._finish(self._step(capture, out, Window()), Counts())

    def _step(self, capture: str | os.PathLike[str], out: str | os.PathLike[str], window: Window) -> Step:
        return Step(self._spark, os.fspath(capture), os.fspath(out), window, self._patience, self._strict, self._progress)

    def _finish(self, step: Step, added: Counts) -> Done:
        self._progress("metrics")
        metrics = measure(self._spark, step.output)
        step.storage.write("metrics.json", json.dumps(metrics, indent=1).encode())
        self._progress("report")
        step.storage.write("report.html", render(metrics).encode())
        return Done(step.out, added, step.output.counts, metrics, f"{step.out.rstrip('/')}/report.html")


def check(capture: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Whether `Pipeline.run` could begin, asked before Spark is started.

    Raises:
        CaptureError: It is no capture, or a segment is missing; `out` holds something else.
    """
    Capture(capture).segments()
    Output(Storage(out))


class Written(NamedTuple):
    """A file of a table."""

    name: str
    rows: int
    part: str


class Step:
    """One run over what is new."""

    def __init__(
        self, spark: SparkSession, capture: str, out: str, window: Window, patience: Patience, strict: bool, progress: Progress
    ) -> None:
        self.out = out
        self._spark = spark
        self._capture = Capture(capture)
        # As other machines, and later runs from elsewhere, would call it.
        self._path = _absolute(capture)
        self._window = window
        self._patience = patience
        self._strict = strict
        self._progress = progress
        self.storage: Storage = Storage(out)
        self.output: Output = Output(self.storage)
        self._settings = {"timeout": patience.timeout, "horizon": patience.horizon, **attrs.asdict(window)}
        self.output.check(self._path, self._settings)
        self.output.clean()

    def advance(self, until: Place | None = None) -> Counts:
        """Take what lies between the last run and a place, or the end of what is there; nothing where that was done before."""
        last = self.output.last
        start = last.end if last is not None else Place(self._capture.segments()[0].number)
        end = reach(self._capture, start) if until is None else until
        if end <= start:
            return Counts()
        run = last.run + 1 if last is not None else 1
        staging = f"{STAGING}/{uuid.uuid4().hex[:12]}"
        self._progress("decode")
        taken = self._decode(start, end, staging)
        moved = self._move_in(run, taken)
        ends = dict(last.ends) if last is not None else {}
        for done in taken:
            for capture_id, mono in done.ends.items():
                ends[capture_id] = max(mono, ends.get(capture_id, mono))
        counts = _sum_of(taken)
        events = load_files(self._spark, self.storage, "events", moved.get("events", []))
        folded = self._fold(staging, events, last.state if last is not None else None, ends)
        exchanges = self._exchanges(run, staging, folded, ends, moved)
        orphans = self._orphans(run, staging, folded, events, moved)
        counts.exchanges = sum(file.rows for file in exchanges if file.part == FINAL)
        counts.orphans = sum(file.rows for file in orphans)
        still_open = [file for file in exchanges if file.part == OPEN]
        state = self._carry(run, folded)
        self.output.commit(
            Manifest(
                run=run,
                capture=self._path,
                settings=self._settings,
                start=start,
                end=end,
                counts=counts,
                open_exchanges=sum(file.rows for file in still_open),
                ends=ends,
                added=moved,
                provisional=[file.name for file in still_open],
                state=state,
                gaps=[row for done in taken for row in done.gap_rows][:SAMPLES],
                losses=[row for done in taken for row in done.losses][:SAMPLES],
            )
        )
        self._forget(last, staging)
        return counts

    def _carry(self, run: int, folded: str) -> str | None:
        """What the next run begins with; where there is nothing, None."""
        files = [(part, name) for part in CARRIED for name in self.storage.files(f"{folded}/part={part}")]
        if not files:
            return None
        state = f"{STATE}/{run_prefix(run)}{uuid.uuid4().hex[:8]}"
        for part, name in files:
            if name.endswith(".parquet"):
                # Spark gives the files of a task the same name in each part.
                self.storage.move(name, f"{state}/{part}-{name.rpartition('/')[2]}")
        return state

    def _forget(self, last: Manifest | None, staging: str) -> None:
        """What the new manifest has replaced."""
        for name in [*last.provisional, *([last.state] if last.state is not None else [])] if last is not None else []:
            self.storage.remove(name)
        self.storage.remove(staging)

    # -- decode ----------------------------------------------------------------------------------------------------------

    def _decode(self, start: Place, end: Place, staging: str) -> list[Taken]:
        ranges = plan(self._capture, start, end)
        count = max(1, len(ranges))
        numbers = self._spark.range(0, len(ranges), 1, count)
        rows = numbers.mapInArrow(
            taker(self._path, _absolute(self.out), f"{staging}/taken", ranges, self._window), "taken string"
        ).collect()
        taken = [Taken(**json.loads(row["taken"])) for row in rows]
        for done in taken:
            if done.frames != done.rowed + done.quarantined + done.empty:
                raise CaptureError(
                    f"{self._path}: {done.frames} frames went in, and {done.rowed} with rows + {done.quarantined} quarantined "
                    f"+ {done.empty} empty came out: this is a defect of polybus, please report it"
                )
        if self._strict and any(done.lost for done in taken):
            lost = [loss for done in taken for loss in done.losses]
            raise CaptureError(
                f"{self._path}: {sum(done.lost for done in taken)} stretches cannot be read, the first in segment "
                f"{lost[0]['segment']} at byte {lost[0]['offset']}: `polybus capture verify` names them all; without --strict "
                "they are counted and passed by"
            )
        return taken

    def _move_in(self, run: int, taken: list[Taken]) -> dict[str, list[str]]:
        """The files of the tasks that Spark has accepted, into the tables."""
        moved: dict[str, list[str]] = {}
        for number, done in enumerate(taken):
            for place, staged in done.files:
                name = f"{place}/{run_prefix(run)}{number:06d}.parquet"
                self.storage.move(staged, name)
                moved.setdefault(place.partition("/")[0], []).append(name)
        return moved

    # -- correlate -------------------------------------------------------------------------------------------------------

    def _fold(self, staging: str, events: DataFrame, before: str | None, ends: dict[str, int]) -> str:
        """Fold the turns, with those that the last run left open; the folder of the result, by what is over and what is not."""
        self._progress("correlate")
        turns = turns_of(events, self._patience)
        if before is not None:
            turns = turns.unionByName(self._spark.read.schema(turns.schema).parquet(self.storage.for_spark(before)))
        folder = f"{staging}/folded"
        folded = fold(turns, self._patience).withColumn("part", part_of(ends_of(ends)))
        folded.write.partitionBy("part").parquet(self.storage.for_spark(folder))
        return folder

    def _exchanges(
        self, run: int, staging: str, folded: str, ends: dict[str, int], moved: dict[str, list[str]]
    ) -> list[Written]:
        """The exchanges that are over go to the table for good; those which are not are given back."""
        self._progress("exchanges")
        table = self._read_folded(folded, ~F.col("part").isin(*ORPHANS))
        made = exchanges_of(table, self._patience, ends_of(ends), "part")
        written = self._write(made, "exchanges", f"{staging}/exchanges", run, "request_time_ns", "part")
        moved["exchanges"] = [file.name for file in written if file.part == FINAL]
        return written

    def _orphans(self, run: int, staging: str, folded: str, events: DataFrame, moved: dict[str, list[str]]) -> list[Written]:
        self._progress("orphans")
        if not any(self.storage.files(f"{folded}/part={part}") for part in ORPHANS):
            return []
        # Those that were carried over are no event of this run: each is in the table once.
        lost = self._read_folded(folded, F.col("part").isin(*ORPHANS))
        written = self._write(orphans_of(events, lost), "orphans", f"{staging}/orphans", run, "time_ns")
        moved["orphans"] = [file.name for file in written]
        return written

    def _read_folded(self, folder: str, wanted: Column) -> DataFrame:
        return self._spark.read.parquet(self.storage.for_spark(folder)).where(wanted)

    def _write(self, rows: DataFrame, table: str, staged: str, run: int, time: str, *parts: str) -> list[Written]:
        """Rows into the files of a table, by date and protocol."""
        # Not to_date: that depends on the session's time zone.
        date = F.date_add(F.lit("1970-01-01"), F.expr(f"cast({time} div {DAY_NS} as int)"))
        dated = rows.withColumn("date", date)
        dated.write.partitionBy(*parts, "date", "protocol").parquet(self.storage.for_spark(staged))
        written = []
        for number, name in enumerate(self.storage.files(staged)):
            if not name.endswith(".parquet"):
                continue
            *folders, _ = name.removeprefix(staged + "/").split("/")
            part = folders.pop(0).partition("=")[2] if parts else ""
            place = f"{table}/{'/'.join(folders)}/{run_prefix(run)}{part or 'all'}-{number:06d}.parquet"
            written.append(Written(place, self.storage.rows(name), part))
            self.storage.move(name, place)
        return written


def _absolute(path: str) -> str:
    """As a worker, whose folder may be another, finds it."""
    return path if "://" in path else os.path.abspath(path)


def _sum_of(taken: list[Taken]) -> Counts:
    total = Counts()
    for done in taken:
        total += Counts(**{name: getattr(done, name) for name in TAKEN})
    return total
