"""`polybus analyse`: the pipeline over a capture, its verdict and its report."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from attrs import asdict
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .. import analysis, spark
from .._validation import counted
from ..protocols.up import names_in
from .engines import Chosen, EngineName, capture_size, choose
from .options import Json, argument, duration, flag, option
from .problems import PeerError
from .routes import read_routes, text_of
from .values import json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..analysis import Done

_POLL: Final = 0.3
"""Seconds between two looks at how far Spark has come."""


def analyse(
    capture: Annotated[str, argument("DIR", "The capture: a folder, or a URI (hdfs://, s3://).")],
    out: Annotated[str, option("DIR", "Where the tables and the report go; again later for what is new.")],
    engine: Annotated[EngineName, option("E", "What runs it; auto: what the size asks for.")] = EngineName.AUTO,
    master: Annotated[str, option("M", "Where Spark runs, local[*] if not said: local[2], spark://host:7077, yarn.")] = "",
    timeout: Annotated[float, duration("An answer after this is late.", min=0.001)] = 30.0,
    start: Annotated[str, option("TIME", "Only from here on, 2026-11-21T08:00:00Z.")] = "",
    end: Annotated[str, option("TIME", "Only up to here.")] = "",
    connection: Annotated[str, option("ID", "Only this connection's.")] = "",
    before: Annotated[str, option("DIR", "Results of an earlier capture: say what has changed since.")] = "",
    names: Annotated[Path | None, option("FILE", "What subjects are called: TOML, name = number or address.")] = None,
    routes: Annotated[Path | None, option("FILE", "Routes of a bridge: what it calls a subject is the subject.")] = None,
    strict: Annotated[bool, flag("--strict", "Fail where a part of the capture cannot be read.")] = False,
    settle: Annotated[bool, flag("--settle", "Nothing more is recorded: leave nothing provisional.")] = False,
    delta: Annotated[bool, flag("--delta", "Keep a log of Delta Lake beside each table, for its readers.")] = False,
    as_json: Json = False,
) -> None:
    """Analyse a capture: tables, metrics and an HTML report.

    A capture that one machine does soon is analysed by DuckDB, a large one by Spark, which needs Java; the tables are the same.
    Exchanges that what is recorded later may still change are counted as provisional until a run finds them over.
    """
    window: dict[str, Any] = {
        "start_ns": analysis.nanoseconds(start, "--start") if start else None,
        "end_ns": analysis.nanoseconds(end, "--end") if end else None,
        "connection": connection or None,
    }
    table = names_in(text_of(names, "--names"), file=str(names)) if names is not None else {}
    called = analysis.Names(table, tuple(read_routes(routes)) if routes is not None else ())
    # Before the ten seconds that Spark takes to start.
    analysis.check(capture, out, **window, before=before or None)
    size = capture_size(capture)
    chosen, shown = choose(engine, size, master), _StageProgress(as_json)
    with shown.bars, ExitStack() as stack:
        shown.stage("start")
        if chosen.name is EngineName.SPARK:
            running: Any = stack.enter_context(_on_spark(master or "local[*]", size, shown))
        else:
            running = stack.enter_context(analysis.DuckEngine(spill=_spill(out)))
        pipeline = analysis.Pipeline(running, timeout=timeout, strict=strict, delta=delta, progress=shown.stage, names=called)
        done = pipeline.run(capture, out, **window, before=before or None, settle=settle)
    _say(done, chosen, as_json)
    if not done.total.frames and (start or end or connection):
        raise PeerError(
            f"{capture}: nothing was recorded within --start, --end and --connection; "
            f"polybus capture info {capture} has the times"
        )


def _spill(out: str) -> str | None:
    """A folder of the results for what does not fit memory: the next run removes what a killed one has left there."""
    from ..analysis.manifest import STAGING

    return None if "://" in out else f"{out}/{STAGING}/duckdb"


@contextmanager
def _on_spark(master: str, size: int, shown: _StageProgress) -> Iterator[Any]:
    engine = spark.SparkEngine  # first of all: it says what is not installed
    from .spark_engine import LITTLE, named_failures, running_session

    with running_session(master, brief=size < LITTLE) as session, shown.following(session), named_failures():
        yield engine(session)


class _StageProgress:
    """A bar for each stage, where a human looks."""

    def __init__(self, as_json: bool) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description:10}"), BarColumn(), TimeElapsedColumn())
        self.bars: Progress = Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal)
        self._task: TaskID | None = None
        self._over = threading.Event()

    def stage(self, name: str) -> None:
        if self._task is not None:
            self.bars.update(self._task, total=1, completed=1)
        self._task = self.bars.add_task(name, total=None)

    @contextmanager
    def following(self, session: SparkSession) -> Iterator[None]:
        """The tasks that Spark has done move the bar."""
        follower = threading.Thread(target=self._follow, args=(session,), daemon=True)
        if not self.bars.disable:
            follower.start()
        try:
            yield
        finally:
            self._over.set()
            if follower.is_alive():
                follower.join()

    def _follow(self, session: SparkSession) -> None:
        tracker = session.sparkContext.statusTracker()
        while not self._over.wait(_POLL):
            stages = [found for number in tracker.getActiveStageIds() if (found := tracker.getStageInfo(number)) is not None]
            total = sum(stage.numTasks for stage in stages)
            if total and self._task is not None:
                self.bars.update(self._task, total=total, completed=sum(stage.numCompletedTasks for stage in stages))


def _say(done: Done, chosen: Chosen, as_json: bool) -> None:
    totals = done.metrics["totals"]
    if as_json or not sys.stdout.isatty():
        facts: dict[str, Any] = {"out": done.out, "report": done.report, "engine": chosen.name, "why": chosen.reason}
        facts |= {"added": asdict(done.added), "total": asdict(done.total)}
        facts |= {"provisional": done.provisional, "outcomes": totals["outcomes"], "verdict": done.metrics["verdict"]}
        print(json_line(facts), flush=True)
        return
    counts = done.total
    new = "" if done.added.frames == counts.frames else f" ({done.added.frames:,} of them new)"
    print(
        f"{counted(counts.frames, 'frame')}{new}: {counted(counts.events, 'message')}, {counts.quarantined:,} quarantined, "
        f"{counts.empty:,} empty"
    )
    print(
        f"{counted(totals['exchanges'], 'exchange')}: "
        + ", ".join(f"{n:,} {name}" for name, n in totals["outcomes"].items() if n)
    )
    if done.provisional:
        print(f"{done.provisional:,} of them are provisional: what is recorded later may still change them")
    if totals["orphans"] or counts.gaps or counts.lost:
        what = counted(totals["orphans"], "orphan"), counted(counts.gaps, "gap"), counted(counts.lost, "unreadable stretch")
        print(", ".join(what))
    for finding in done.metrics["verdict"]:
        print(f"{finding['about']}: {finding['text']}")
    print(f"engine: {chosen}")
    print(f"report: {done.report}")
