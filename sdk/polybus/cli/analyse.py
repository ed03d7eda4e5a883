"""`polybus analyse`: the Spark pipeline over a capture, and its report."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final

from attrs import asdict
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .. import spark
from .options import Json, argument, duration, flag, option
from .problems import PeerError
from .values import json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..spark import Done

_POLL: Final = 0.3
"""Seconds between two looks at how far Spark has come."""
_LITTLE: Final = 32 << 20
"""Bytes of a capture, about a million frames, up to which the JVM's code is not optimized."""


def analyse(
    capture: Annotated[str, argument("DIR", "The capture: a folder, or a URI (hdfs://, s3://).")],
    out: Annotated[str, option("DIR", "Where the tables and the report go; again later for what is new.")],
    master: Annotated[str, option("M", "Where Spark runs: local[2], spark://host:7077, yarn.")] = "local[*]",
    timeout: Annotated[float, duration("An answer after this is late.", min=0.001)] = 30.0,
    start: Annotated[str, option("TIME", "Only from here on, 2026-11-21T08:00:00Z.")] = "",
    end: Annotated[str, option("TIME", "Only up to here.")] = "",
    connection: Annotated[str, option("ID", "Only this connection's.")] = "",
    strict: Annotated[bool, flag("--strict", "Fail where a part of the capture cannot be read.")] = False,
    as_json: Json = False,
) -> None:
    """Analyse a capture by Spark: tables, metrics and an HTML report.

    Exchanges that what is recorded later may still change are counted as provisional until a run finds them over.
    """
    window: dict[str, Any] = {
        "start_ns": spark.nanoseconds(start, "--start") if start else None,
        "end_ns": spark.nanoseconds(end, "--end") if end else None,
        "connection": connection or None,
    }
    # Before the ten seconds that Spark takes to start.
    spark.check(capture, out, **window)
    with ExitStack() as stack:
        shown = _StageProgress(as_json)
        stack.enter_context(shown.bars)
        shown.stage("start")
        stack.enter_context(_quiet())
        session = stack.enter_context(running_session(spark, master, brief=_is_little(capture)))
        pipeline = spark.Pipeline(session, timeout=timeout, strict=strict, progress=shown.stage)
        with shown.following(session):
            done = _run(pipeline, capture, out, window)
    _say(done, as_json)


def _run(pipeline: Any, capture: str, out: str, window: dict[str, Any]) -> Done:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        done: Done = pipeline.run(capture, out, **window)
    except (PySparkException, Py4JError) as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        raise PeerError(_reason(str(error))) from error
    return done


def _is_interrupted(error: BaseException | None) -> bool:
    """True for an error of py4j while it cancelled a job that the user has interrupted."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_little(capture: str) -> bool:
    from ..capture.store.reader import Capture

    return sum(segment.size for segment in Capture(capture).segments()) < _LITTLE


_PYTHONS: Final = re.compile(r"(?!org\.|java\.|scala\.)[A-Za-z_][\w.]*(?:Error|Exception|Warning): ")


def _reason(text: str) -> str:
    """The error of a task, out of Spark's account of it: ours, Python's, or the place in Java where it began."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["Spark failed, and does not say why"]
    said = [line.partition(": ")[2] for line in lines if line.startswith("polybus.")]
    python = [line for line in lines if _PYTHONS.match(line)]
    return (said or python or _causes(lines) or lines[:1])[-1]


def _why(lines: Sequence[str]) -> str:
    """Why Spark did not start, out of what its JVM wrote, and after that what Python says."""
    errors = [line for line in lines if "Exception" in line or "ERROR" in line]
    return (_causes(lines) or errors or lines[-1:] or ["nobody says why"])[0].strip(": ")


def _causes(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]


@contextmanager
def _quiet() -> Iterator[None]:
    """py4j logs what interrupts it, with all of its stack: here that is the user."""
    nobody, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(nobody)
    try:
        yield
    finally:
        root.removeHandler(nobody)


@contextmanager
def running_session(spark: Any, master: str, *, brief: bool) -> Iterator[SparkSession]:
    """A session whose JVM writes to a file, which tells why it did not start (PeerError); `brief` is one for seconds."""
    from pyspark.sql import SparkSession

    from ..spark.session import remove_after, sockets, unoptimized

    with tempfile.TemporaryFile() as log:
        running = SparkSession.getActiveSession()
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            local = master.startswith("local")
            with unoptimized() if brief and local else nullcontext():
                session = spark.start_session(master, settings=sockets() if local else {})
            session.sparkContext.setLogLevel("ERROR")
            if local:
                remove_after(session)
        except spark.SparkUnavailable as error:
            raise PeerError(str(error)) from None
        except Exception as error:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise PeerError(f"Spark did not start on {master}: {_why([*lines, *str(error).splitlines()])[:300]}") from None
        finally:
            os.dup2(before, 2)
            os.close(before)
        try:
            yield session
        finally:
            if session is not running:
                session.stop()


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


def _say(done: Done, as_json: bool) -> None:
    totals = done.metrics["totals"]
    if as_json or not sys.stdout.isatty():
        facts: dict[str, Any] = {"out": done.out, "report": done.report}
        facts |= {"added": asdict(done.added), "total": asdict(done.total)}
        print(json_line({**facts, "provisional": done.provisional, "outcomes": totals["outcomes"]}), flush=True)
        return
    counts = done.total
    new = "" if done.added.frames == counts.frames else f" ({done.added.frames:,} of them new)"
    print(
        f"{counts.frames:,} frames{new}: {counts.events:,} messages, {counts.quarantined:,} quarantined, {counts.empty:,} empty"
    )
    print(f"{counts.exchanges:,} exchanges: " + ", ".join(f"{n:,} {name}" for name, n in totals["outcomes"].items() if n))
    if done.provisional:
        print(f"{done.provisional:,} of them are provisional: what is recorded later may still change them")
    if counts.orphans or counts.gaps or counts.lost:
        print(f"{counts.orphans:,} orphans, {counts.gaps:,} gaps, {counts.lost:,} stretches unreadable")
    print(f"report: {done.report}")
