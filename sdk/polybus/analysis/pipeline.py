"""Turns a capture into tables, metrics and a report. Processes either all records or only those added since the last run."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import attrs
import msgspec
import pyarrow as pa

from polybus.capture.errors import CaptureError
from polybus.capture.paths import folder_path
from polybus.capture.schema import EVENTS, ORPHANS
from polybus.capture.store.filesystems import AnyPath
from polybus.capture.store.reader import Capture
from polybus.capture.store.segments import Stretch

from ..plugins.tools import check_type, counted, shown
from . import correlation
from .clocks import Holes, Watermarks, joined
from .correlation import MatchTimeouts
from .engine import Engine
from .ingest import IngestResult, RunCounts
from .ranges import SAMPLES, ReadPosition, ReadWindow, is_written, plan, reach
from .report.metrics import measure, shaped, write_tables
from .report.names import Names
from .report.sums import note_merged
from .report.verdict import Earlier, compare, is_of, read_earlier, verdict
from .results import STAGING, STATE, Output, ResultFile, ResultsState, keep_logs, merge_small, run_prefix
from .storage import BY_DATE, TableStorage, absolute

Progress = Callable[[str], None]
_NAMED: Final = 5


@attrs.define(slots=False)
class PipelineStep:
    _engine: Engine
    capture: str
    out: str
    _window: ReadWindow
    _timeouts: MatchTimeouts
    _strict: bool
    _delta: bool
    _progress: Progress

    def __attrs_post_init__(self) -> None:
        self._capture = Capture(self.capture)
        # The path for other machines, and for later runs from another folder.
        self._path = absolute(self.capture)
        self.storage: TableStorage = TableStorage(self.out)
        self._settings = {**attrs.asdict(self._timeouts), **attrs.asdict(self._window)}
        self.output: Output = Output(self.storage)
        self.output.check(self._path, self._settings)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs waiting while this run writes, and check the results again."""
        with self.storage.alone(lambda: self._progress("wait")):
            self.output = Output(self.storage)
            self.output.check(self._path, self._settings)
            self.output.clean()
            self._keep_logs()
            yield

    def advance(self, until: ReadPosition | None = None, *, settle: bool = False) -> RunCounts:
        last = self.output.last
        start = self._begin()
        end = reach(self._capture, start, over=settle) if until is None else until
        torn = self._torn() if settle else IngestResult()
        if end <= start and not (settle and self.output.provisional) and not (torn.lost and not self.output.runs):
            return RunCounts()
        token = uuid.uuid4().hex[:12]
        # Without a lock, a late run must not overwrite another one's files.
        prefix, staging = f"{run_prefix(self.output.runs + 1)}{token}-", f"{STAGING}/{token}"
        self._progress("decode")
        taken = [self._gone(start), *self._decode(start, end, staging), torn]
        self._check(taken)
        moved = self._move_in(prefix, taken)
        clocks = Watermarks(dict(last.ends), dict(last.seen))
        for done in taken:
            clocks.add(done.holes.ends, done.seen)
        counts = sum(taken, RunCounts())
        if not self.output.runs and not counts.frames:
            self._check_connection()
        events = self._engine.read(self.storage, "events", [file.name for file in moved if file.table == "events"], EVENTS)
        parts = [Holes(ends=last.ends, after=last.after), *(done.holes for done in taken)]
        ended = set(clocks.ends) if settle else _ended(taken)
        now = clocks.table(all_read=self._is_all(end), ended=ended, holes=joined(parts))
        folded = self._fold(staging, events, last.folder, now)
        exchanges, orphans = self._exchanges(prefix, staging, folded), self._orphans(prefix, staging, folded, events)
        counts.exchanges = sum(file.rows for file in exchanges if not file.provisional)
        counts.orphans = sum(file.rows for file in orphans)
        folder, names = self._carry(prefix, folded)
        clocks = clocks.only(names)
        state = ResultsState(
            capture=self._path,
            settings=self._settings,
            end=end,
            counts=last.counts + counts,
            ends=clocks.ends,
            seen=clocks.seen,
            after={name: seq for part in parts for name, seq in part.after.items() if name in names},
            folder=folder,
            gaps=[*last.gaps, *(row for done in taken for row in done.gap_rows)][:SAMPLES],
            losses=[*last.losses, *(row for done in taken for row in done.losses)][:SAMPLES],
            recording=self._recording(end),
        )
        merged = merge_small(self.output, prefix, staging)
        replaced = self.output.commit(state, [*moved, *exchanges, *orphans, *merged], chain.from_iterable(merged.values()))
        note_merged(self.storage, {file.name: names for file, names in merged.items()})
        self.output = Output(self.storage)
        self._keep_logs()
        for name in filter(None, (*replaced, staging, last.folder)):
            self.storage.remove(name)
        return counts

    def _keep_logs(self) -> None:
        if self.output.runs:
            keep_logs(self.output, begin=self._delta)

    def _begin(self) -> ReadPosition:
        """Return the end position of the last run. Raises `CaptureError` if the capture has been replaced by another one."""
        if not self.output.runs:
            return ReadPosition(self._capture.segments()[0].number)
        last = self.output.last
        now = self._recording(last.end)
        if now != last.recording and None not in (now, last.recording):
            raise CaptureError(
                f"{self._path} is not the capture that was analysed into {self.storage.inside('')}: its segment "
                f"{last.end.segment} belongs to recording {now}, not {last.recording}; analyse into a new folder"
            )
        return last.end

    def _recording(self, place: ReadPosition) -> str | None:
        for segment in self._capture.segments(complete=False):
            if segment.number == place.segment:
                return self._capture.reader(segment).schema_metadata().get("capture_id")
        return None

    def _gone(self, start: ReadPosition) -> IngestResult:
        """Count segments that retention removed before they were read. The number of their frames is unknown."""
        numbers = range(start.segment + 1, self._capture.segments()[0].number)
        losses = [{"segment": number, **attrs.asdict(Stretch(0, 0, 0))} for number in numbers[:SAMPLES]]
        return IngestResult(lost=len(numbers), losses=losses)

    def _torn(self) -> IngestResult:
        """Count the incomplete batch of a killed recorder at the end. Raises `CaptureError` if a recorder is still writing."""
        segments = self._capture.segments()
        for segment in segments:
            if is_written(self._capture, segment):
                raise CaptureError(f"{segment.path} is still being written: settle the capture after the recorder has stopped")
        torn = [stretch for stretch in self._capture.reader(segments[-1]).all_damage() if stretch.torn]
        losses = [{"segment": segments[-1].number, **attrs.asdict(stretch)} for stretch in torn]
        return IngestResult(lost=len(losses), losses=losses)

    def _check_connection(self) -> None:
        wanted, known = self._window.connection, dict[str, None]()
        if wanted is None:
            return
        for batch in self._capture.batches(columns=["conn_id"]):
            known |= dict.fromkeys(batch.rows.column("conn_id").to_pylist())
        if wanted not in known:
            some = ", ".join(name for name in list(known)[:_NAMED] if name)
            raise CaptureError(f"{self._path} has no connection {wanted!r}; it has {len(known)}, such as {some or 'none'}")

    def _is_all(self, end: ReadPosition) -> bool:
        last = self._capture.segments(complete=False)[-1]
        return end.segment == last.number and reach(self._capture, end) == end

    def _carry(self, prefix: str, folded: str) -> tuple[str | None, set[str]]:
        """Move open turns to the folder for the next run. Returns this folder, if any, and the names of their recordings."""
        files = [(part, name) for part in correlation.CARRIED for name in self.storage.files(f"{folded}/part={part}")]
        state, names = f"{STATE}/{prefix[:-1]}", set[str]()
        for part, name in files:
            if name.endswith(".parquet"):
                names |= self.storage.values(name, "capture_id")
                # Spark gives a task's files the same name in each part.
                self.storage.move(name, f"{state}/{part}-{name.rpartition('/')[2]}")
        return (state if files else None), names

    def _decode(self, start: ReadPosition, end: ReadPosition, staging: str) -> list[IngestResult]:
        ranges = plan(self._capture, start, end)
        if not ranges:
            return []
        taken = self._engine.take(self._path, absolute(self.out), f"{staging}/taken", ranges, self._window)
        for done in taken:
            if done.frames != done.rowed + done.quarantined + done.empty:
                raise CaptureError(
                    f"{self._path}: {done.frames} frames went in, and {done.rowed} with rows + {done.quarantined} quarantined "
                    f"+ {done.empty} empty came out: this is a defect of polybus, please report it"
                )
        return taken

    def _check(self, taken: list[IngestResult]) -> None:
        lost = [loss for done in taken for loss in done.losses]
        if self._strict and lost:
            raise CaptureError(
                f"{self._path}: {counted(sum(done.lost for done in taken), 'stretch')} cannot be read, the first in segment "
                f"{lost[0]['segment']} at byte {lost[0]['offset']}: `polybus capture verify` names them all; without --strict "
                "they are counted and skipped"
            )

    def _move_in(self, prefix: str, taken: list[IngestResult]) -> list[ResultFile]:
        moved = []
        for number, done in enumerate(taken):
            for place, staged, rows in done.files:
                moved.append(ResultFile(f"{place}/{prefix}{number:06d}.parquet", rows))
                self.storage.move(staged, moved[-1].name)
        return moved

    def _fold(self, staging: str, events: Any, before: str | None, clocks: pa.Table) -> str:
        """Fold the turns of this run and of the last one. Returns the results folder, which is partitioned by part."""
        self._progress("correlate")
        turns = [correlation.turns_of(self._engine, events, self._timeouts)]
        if before is not None:
            files = self.storage.files(before)
            for name in files:
                self.storage.check(name)
            turns.append(self._engine.read(self.storage, before, files, correlation.TURNS))
        folder = f"{staging}/folded"
        closes = correlation.closes_of(self._engine, events)
        folded = correlation.fold(self._engine, turns, self._timeouts, self._engine.hand(clocks), closes)
        self._engine.write(folded, self.storage, folder, correlation.FOLDED, ["part"])
        return folder

    def _exchanges(self, prefix: str, staging: str, folded: str) -> list[ResultFile]:
        self._progress("exchanges")
        if (table := self._read_folded(folded, (correlation.FINAL, correlation.OPEN))) is None:
            return []
        made = correlation.exchanges_of(self._engine, table, "part")
        return self._write(made, "exchanges", correlation.EXCHANGES_BY_PART, ["part", *BY_DATE], prefix, staging)

    def _orphans(self, prefix: str, staging: str, folded: str, events: Any) -> list[ResultFile]:
        self._progress("orphans")
        if (lost := self._read_folded(folded, correlation.ORPHANS)) is None:
            return []
        # Carried-over orphans are not events of this run, so each is in the table once.
        made = correlation.orphans_of(self._engine, events, lost)
        return self._write(made, "orphans", ORPHANS, BY_DATE, prefix, staging)

    def _read_folded(self, folder: str, parts: Sequence[str]) -> Any:
        """Read parts by folder if they have rows. Spark then knows how few orphans there are, and does not sort all events."""
        files = [name for part in parts for name in self.storage.files(f"{folder}/part={part}") if name.endswith(".parquet")]
        return self._engine.read(self.storage, folder, files, correlation.FOLDED) if files else None

    def _write(
        self, made: Any, table: str, schema: pa.Schema, parts: Sequence[str], prefix: str, staging: str
    ) -> list[ResultFile]:
        staged, written = f"{staging}/{table}", []
        self._engine.write(made, self.storage, staged, schema, parts)
        files = (name for name in self.storage.files(staged) if name.endswith(".parquet"))
        for number, name in enumerate(files):
            *folders, _ = name.removeprefix(staged + "/").split("/")
            part = folders.pop(0).partition("=")[2] if folders[0].startswith("part=") else ""
            place = f"{table}/{'/'.join(folders)}/{prefix}{part or 'all'}-{number:06d}.parquet"
            written.append(ResultFile(place, self.storage.rows(name), part == correlation.OPEN))
            self.storage.move(name, place)
        return written


def _ended(taken: list[IngestResult]) -> set[str]:
    names = set[str]()
    for done in taken:
        names = names.difference(done.holes.ends).union(done.ended)
    return names


METRICS: Final = "metrics.json"
REPORT: Final = "report.html"
_VERSION: Final = 6


@attrs.frozen
class Done:
    """Result of a run."""

    out: str
    added: RunCounts
    """Number of final rows added by this run, including exchanges that were provisional before."""
    total: RunCounts
    """Number of rows in the tables, counting all runs and provisional exchanges."""
    metrics: dict[str, Any]
    """The same data as in ``metrics.json``. Empty if not requested."""
    report: str
    """Path of the HTML file. Empty if not requested."""
    provisional: int = 0
    """Number of ``total.exchanges`` that later records may still change, because an answer may arrive or the id may be reused
    within the horizon. The last exchanges of a recording are provisional until it ends. If its recorder was killed, they are
    provisional until other recordings have continued long enough.
    """


class Pipeline:
    """Runs the pipeline's stages for a capture and a results folder: decode, correlate, metrics and report.

    ``Pipeline(engine).run("captures", "out")`` creates ``events``, ``quarantine``, ``exchanges``, ``orphans`` and ``metrics``
    as Parquet files, as well as ``metrics.json`` and ``report.html``. Another run adds new records and continues open
    exchanges, so that the tables are the same as after a single run, with any combination of engines. Files left by a killed
    run are ignored.

    Args:
        engine: A `polybus.analysis.DuckEngine`. For Spark, see `polybus.spark.Pipeline`.
        timeout: Seconds after which an answer counts as late, unless the request has its own timeout.
        horizon: Seconds after which an id is forgotten. Defaults to ten timeouts. See `MatchTimeouts`.
        strict: Fail if part of the capture cannot be read, instead of counting that part as lost.
        delta: Write a Delta Lake log next to each table. An existing log is always continued.
        progress: Called with the name of each stage when it begins.
        names: Display names of subjects in metrics and report, in addition to the protocols' own.

    Raises:
        ValueError: If the timeout is not positive, or the horizon is shorter than the timeout.
        TypeError: If an argument has the wrong type.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        timeout: float = 30.0,
        horizon: float | None = None,
        strict: bool = False,
        delta: bool = False,
        progress: Progress | None = None,
        names: Names | None = None,
    ) -> None:
        if isinstance(engine, type) or not hasattr(engine, "take"):
            raise TypeError(f"engine={shown(engine)} must be an engine, for example DuckEngine()")
        check_type(names, Names, "names", "names=Names({'lock': 0x00010001})")
        self._engine = engine
        self._timeouts = MatchTimeouts(timeout) if horizon is None else MatchTimeouts(timeout, horizon)
        self._strict = strict
        self._delta = delta
        self._names = names or Names()
        self._progress: Progress = progress if progress is not None else lambda stage: None

    def run(
        self,
        capture: AnyPath,
        out: AnyPath,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        connection: str | None = None,
        before: AnyPath | None = None,
        report: bool = True,
        settle: bool = False,
    ) -> Done:
        """Process new records, then rewrite metrics and report. Without new records, both stay unchanged.

        Args:
            capture: The folder of segments, as a path or a URI that `pyarrow.fs` supports.
            out: The results folder.
            start_ns: Include only frames from this time on, in ns since 1970 (UTC).
            end_ns: Include only frames before this time.
            connection: Include only frames of this connection.
            before: The results folder of an earlier capture. The report then shows the changes since that capture.
            report: Set to False to leave metrics and report unchanged, for example if you run the pipeline often.
            settle: Treat the recordings as complete, even if a killed recorder did not write an end. No exchange then stays
                provisional, and a later answer is an orphan.

        Raises:
            CaptureError: If `capture` is not a capture, lacks a segment, or is not the capture that the results in `out` belong
                to. If `out` contains anything other than results. If `before` does not contain results of this version. If
                `connection` does not exist. With `strict`, if part of the capture cannot be read. With `settle`, if a recorder
                is still writing.
            ValueError: If `end_ns` is not after `start_ns`, or a path is empty.
            TypeError: If an argument has the wrong type.
            OSError: If files cannot be written.
        """
        window = ReadWindow(start_ns, end_ns, connection)
        window.check()
        earlier = read_earlier(before, out) if before is not None else None
        step = self.step(capture, out, window)
        with step.alone():
            added = step.advance(settle=settle)
            if not report:
                return _done(step.out, step.output, added)
            metrics = _metrics_of(step.output, str(self._names))
            if metrics is None:
                metrics = self._measured(step.output, earlier)
            elif not is_of(metrics, earlier):
                metrics = self._told(step.output, metrics, earlier)
            return _done(step.out, step.output, added, metrics)

    def report(self, capture: AnyPath, out: AnyPath, *, before: AnyPath | None = None) -> Done:
        """Write metrics and report from the existing tables, without processing new records. Takes the same arguments as `run`.

        Raises:
            CaptureError: If `out` does not contain results, or `before` is invalid as described for `run`.
        """
        earlier = read_earlier(before, out) if before is not None else None
        storage = Output.of(out).storage  # before the folder is created
        with storage.alone(lambda: self._progress("wait")):
            output = Output.of(out)
            output.check(absolute(folder_path(capture, "capture")), {})
            return _done(os.fspath(out), output, RunCounts(), self._measured(output, earlier))

    def step(self, capture: AnyPath, out: AnyPath, window: ReadWindow) -> PipelineStep:
        """Return a run over new records that has not started yet."""
        given = folder_path(capture, "capture"), folder_path(out, "out"), window
        return PipelineStep(self._engine, *given, self._timeouts, self._strict, self._delta, self._progress)

    def _measured(self, output: Output, earlier: Earlier | None) -> dict[str, Any]:
        self._progress("metrics")
        return self._told(output, measure(self._engine, output, self._names), earlier)

    def _told(self, output: Output, metrics: dict[str, Any], earlier: Earlier | None) -> dict[str, Any]:
        self._progress("report")
        from .report.page import render  # which takes as long to load as all else together

        output.storage.remove(METRICS)  # a report without its metrics is incomplete
        compared = compare(metrics, earlier)
        compared["changes"] = shaped("changes", compared["changes"])
        write_tables(output, {"changes": compared["changes"]})
        metrics = {**metrics, **compared, "version": _VERSION}
        metrics["verdict"] = [attrs.asdict(finding) for finding in verdict(metrics)]
        output.storage.write(REPORT, render(metrics).encode())
        # Last: their presence shows that the report is complete.
        output.storage.write(METRICS, msgspec.json.format(msgspec.json.encode(metrics), indent=1))
        return metrics


def _done(out: str, output: Output, added: RunCounts, metrics: dict[str, Any] | None = None) -> Done:
    folder, mark, options = out.partition("?") if "://" in out else (out, "", "")
    report = f"{folder.rstrip('/')}/{REPORT}{mark}{options}" if metrics is not None else ""
    return Done(out, added, output.counts, metrics or {}, report, output.provisional)


def _metrics_of(output: Output, names: str = "") -> dict[str, Any] | None:
    if not {METRICS, REPORT} <= set(output.storage.names()):
        return None
    try:
        metrics: dict[str, Any] = json.loads(output.storage.read(METRICS))
    except ValueError:
        return None
    fresh = metrics.get("runs") == output.runs and metrics.get("version") == _VERSION and metrics["names"] == names
    return metrics if fresh else None


def check(
    capture: AnyPath,
    out: AnyPath,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    connection: str | None = None,
    before: AnyPath | None = None,
) -> None:
    """Check that `Pipeline.run` can start, before an engine is started.

    Raises:
        CaptureError: If `capture` is not a capture or lacks a segment, `out` contains anything other than results, or `before`
            does not contain results.
        TypeError, ValueError: As for `Pipeline.run`.
    """
    ReadWindow(start_ns, end_ns, connection).check()
    Capture(capture).segments()
    Output(TableStorage(out))
    if before is not None:
        read_earlier(before, out)
