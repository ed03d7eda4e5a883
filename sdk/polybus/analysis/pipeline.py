"""From a capture to tables, metrics and a report: all of it, or only what is new since the last run."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import attrs

from polybus.capture.store.filesystems import AnyPath
from polybus.capture.store.reader import Capture

from .engine import Engine
from .manifest import Output, RunCounts
from .ranges import ReadWindow
from .report.comparison import compare, is_of
from .report.earlier import Earlier, read_earlier
from .report.metrics import measure, shaped, write_tables
from .report.names import Names
from .report.verdict import verdict
from .run import PipelineStep, Progress
from .storage import Storage, absolute
from .timeouts import MatchTimeouts

METRICS: Final = "metrics.json"
REPORT: Final = "report.html"
_VERSION: Final = 4
"""Of what metrics hold: those of an older one are made anew."""


@attrs.frozen
class Done:
    """Result of a run."""

    out: str
    """The folder."""
    added: RunCounts
    """Rows that this run added for good; among the exchanges are those that runs before had as provisional."""
    total: RunCounts
    """Rows that are there now: what all runs have added, and the provisional exchanges."""
    metrics: dict[str, Any]
    """As in ``metrics.json``; empty where none were wanted."""
    report: str
    """Path of the HTML file; empty where none was wanted."""
    provisional: int = 0
    """Number of ``total.exchanges`` that may still change with what is recorded later: an answer may come, or the id again,
    within the horizon of `Pipeline`. The last ones of a recording are provisional until it says that it is over, or, where its
    writer was killed, until others were recorded for long enough after it."""


class Pipeline:
    """The stages decode, correlate, metrics and report, over one capture and one folder of results.

    ``Pipeline(engine).run("captures", "out")`` makes ``events``, ``quarantine``, ``exchanges``, ``orphans`` and ``metrics`` as
    Parquet, ``metrics.json`` and ``report.html``. Run again, it takes what has been recorded since; what was open is carried
    over, so the tables are those that a single run would have made, whichever engines have run it. A run that is killed
    leaves nothing that counts.

    Args:
        engine: Runs it: `polybus.analysis.DuckEngine`, or Spark, see `polybus.spark.Pipeline`.
        timeout: Seconds after which an answer is late, where a request says nothing itself.
        horizon: Seconds for which an id is remembered; ten timeouts when None. See `Patience`.
        strict: Fail where a part of the capture cannot be read, instead of counting it.
        delta: Keep a log of Delta Lake beside each table; where one was begun before, it is kept in any case.
        progress: Told the name of each stage when it begins.
        names: What subjects are called in metrics and report, beside what wires call them.

    Raises:
        ValueError: The timeout is not above zero, or the horizon is shorter.
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
        """Take what is new, and write metrics and report anew; where nothing is new, they stay as they are.

        Args:
            capture: The folder of segments; a path, or a URI that `pyarrow.fs` knows.
            out: The folder of results.
            start_ns: Only frames from here on, ns since 1970 UTC.
            end_ns: Only frames before.
            connection: Only this connection's.
            before: The folder of results of an earlier capture: the report says what has changed since.
            report: False leaves metrics and report as they are, for runs that follow each other closely.
            settle: Nothing more comes to the recordings that are there, also where killed recorders could not say so: nothing
                stays provisional. An answer that is recorded later all the same is an orphan.

        Raises:
            CaptureError: It is no capture, or a segment is missing, or it is not the one any more that `out` holds the results
                of; `out` holds something else; with `strict`, a part of the capture cannot be read. `before` holds no
                results, or those of another version. There is no such `connection`; with `settle`, a recorder still writes.
            ValueError: `end_ns` is not after `start_ns`.
            OSError: Files cannot be written.
        """
        window = ReadWindow(start_ns, end_ns, connection)
        window.check()
        earlier = read_earlier(before, out) if before is not None else None
        step = self.step(capture, out, window)
        with step.alone():
            added = step.advance(settle=settle)
            if not report:
                return _done(step.out, step.output, added)
            return _done(step.out, step.output, added, self._reported(step.output, earlier))

    def report(self, capture: AnyPath, out: AnyPath, *, before: AnyPath | None = None) -> Done:
        """Metrics and report of what is there, without taking anything.

        Args:
            capture: As for `run`.
            out: As for `run`.
            before: As for `run`.

        Raises:
            CaptureError: `out` holds something else, or nothing; `before` as for `run`.
        """
        earlier = read_earlier(before, out) if before is not None else None
        storage = Storage(out)
        with storage.alone(lambda: self._progress("wait")):
            output = Output.of(out)
            output.check(absolute(os.fspath(capture)), {})
            return _done(os.fspath(out), output, RunCounts(), self._measured(output, earlier))

    def step(self, capture: AnyPath, out: AnyPath, window: ReadWindow) -> PipelineStep:
        """One run over what is new, which is yet to be made."""
        given = os.fspath(capture), os.fspath(out), window
        return PipelineStep(self._engine, *given, self._timeouts, self._strict, self._delta, self._progress)

    def _reported(self, output: Output, earlier: Earlier | None) -> dict[str, Any]:
        """The metrics that are there, if they are of all runs and compared with the same; else new ones."""
        metrics = _metrics_of(output, str(self._names))
        if metrics is None:
            return self._measured(output, earlier)
        return metrics if is_of(metrics, earlier) else self._told(output, metrics, earlier)

    def _measured(self, output: Output, earlier: Earlier | None) -> dict[str, Any]:
        self._progress("metrics")
        return self._told(output, measure(self._engine, output, self._names), earlier)

    def _told(self, output: Output, metrics: dict[str, Any], earlier: Earlier | None) -> dict[str, Any]:
        """Comparison, verdict and report of metrics."""
        self._progress("report")
        from .report.page import render  # which takes as long to load as all else together

        output.storage.remove(METRICS)  # a report that is newer than they are is none that anybody asked for
        compared = compare(metrics, earlier)
        compared["changes"] = shaped("changes", compared["changes"])
        write_tables(output, {"changes": compared["changes"]})
        metrics = {**metrics, **compared, "version": _VERSION}
        metrics["verdict"] = [attrs.asdict(finding) for finding in verdict(metrics)]
        output.storage.write(REPORT, render(metrics).encode())
        # Last: where it is there and of the last run, the report is too.
        output.storage.write(METRICS, json.dumps(metrics, indent=1).encode())
        return metrics


def _done(out: str, output: Output, added: RunCounts, metrics: dict[str, Any] | None = None) -> Done:
    folder, mark, options = out.partition("?") if "://" in out else (out, "", "")
    report = f"{folder.rstrip('/')}/{REPORT}{mark}{options}" if metrics is not None else ""
    return Done(out, added, output.counts, metrics or {}, report, output.provisional)


def _metrics_of(output: Output, names: str = "") -> dict[str, Any] | None:
    """The metrics that are there, if they are of all runs and have these names."""
    if not {METRICS, REPORT} <= set(output.storage.names()):
        return None
    try:
        metrics: dict[str, Any] = json.loads(output.storage.read(METRICS))
    except ValueError:
        return None
    fresh = metrics.get("runs") == len(output.manifests) and metrics.get("version") == _VERSION and metrics["names"] == names
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
    """Check that `Pipeline.run` could begin, before an engine is started.

    Raises:
        CaptureError: It is no capture, or a segment is missing; `out` holds something else, or `before` no results.
        ValueError: `end_ns` is not after `start_ns`.
    """
    ReadWindow(start_ns, end_ns, connection).check()
    Capture(capture).segments()
    Output(Storage(out))
    if before is not None:
        read_earlier(before, out)
