"""`polybus analyse` and `polybus journey`: the pipeline over a capture, its verdict and its report; one request of its results.

The engine is DuckDB for what one machine does soon, Spark for what is large or lies on a cluster.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from attrs import asdict
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from .. import analysis, spark
from ..capture import Capture
from ..capture.errors import CaptureError
from ..plugins.tools import counted, in_one_line
from ..protocols.up import names_in
from .options import Json, argument, duration, flag, option
from .problems import PeerError, UsageError
from .routes import read_routes, text_of
from .values import json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..analysis import Done

_POLL: Final = 0.3
"""Seconds between two looks at how far Spark has come."""
LARGE: Final = 512 << 20
"""Bytes of a capture, about 13 million frames, from which on Spark is taken where it is installed."""
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
LITTLE: Final = 32 << 20
"""Bytes of a capture, about a million frames, up to which the JVM's code is not optimized."""


EngineName: TypeAlias = Literal["auto", "duckdb", "spark"]


def analyse(
    capture: Annotated[str, argument("DIR", "The capture: a folder, or a URI (hdfs://, s3://).")],
    out: Annotated[str, option("DIR", "Where tables and report go, CAPTURE-results; again for what is new.")] = "",
    engine: Annotated[EngineName, option("E", "What runs it; auto: what the size asks for.")] = "auto",
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
    fail_on: Annotated[str, option("WHAT", "Status 1 where there is: failed, lost=3, slow=SECONDS (p95), broke, ...")] = "",
    as_json: Json = False,
) -> None:
    """Analyse a capture: tables, metrics and an HTML report.

    A capture that one machine does soon is analysed by DuckDB, a large one by Spark, which needs Java; the tables are the same.
    Exchanges that what is recorded later may still change are counted as provisional until a run finds them over.
    """
    out, limits = out or results_of(capture), _limits(fail_on)
    window: dict[str, Any] = {
        "start_ns": analysis.nanoseconds(start, "--start") if start else None,
        "end_ns": analysis.nanoseconds(end, "--end") if end else None,
        "connection": connection or None,
    }
    table = names_in(text_of(names, "--names"), file=str(names)) if names is not None else {}
    called = analysis.Names(table, tuple(read_routes(routes)) if routes is not None else ())
    # Before the ten seconds that Spark takes to start.
    analysis.check(capture, out, **window, before=before or None)
    size = sum(segment.size for segment in Capture(capture).segments())
    chosen, why = choose(engine, size, master)
    shown = _StageProgress(as_json)
    with _advised(out), shown.bars, ExitStack() as stack:
        stack.callback(os.umask, os.umask(0o077))  # as the files of a capture: the results hold what was in it
        shown.stage("start")
        if chosen == "spark":
            running: Any = stack.enter_context(_on_spark(master or "local[*]", size, shown))
        else:
            running = stack.enter_context(analysis.DuckEngine(spill=_spill(out)))
        pipeline = analysis.Pipeline(running, timeout=timeout, strict=strict, delta=delta, progress=shown.stage, names=called)
        done = pipeline.run(capture, out, **window, before=before or None, settle=settle)
    _say(done, chosen, why, as_json)
    if not done.total.frames and (start or end or connection):
        raise PeerError(
            f"{capture}: nothing was recorded within --start, --end and --connection; "
            f"polybus capture info {capture} has the times"
        )
    if found := list(_beyond(limits, done.metrics)):
        raise PeerError(f"--fail-on: {'; '.join(found)}")


_COUNTED: Final = {
    "failed": ("error",),
    "lost": ("timeout", "lost", "unanswered"),
    **{name: (name,) for name in ("late", "cancelled", "unseen", "open-at-end")},
}
"""Outcomes, by what `--fail-on` calls them."""
_OTHERS: Final = ("slow", "broke", "unheard", "gaps", "quarantined")


def results_of(capture: str) -> str:
    """The folder of the results of a capture, beside it, for who names none."""
    place, mark, options = capture.partition("?") if "://" in capture else (capture, "", "")
    place = place.rstrip("/")
    if os.path.basename(place) in ("", ".", ".."):  # beside it, not in it
        place = os.path.abspath(place or capture)
    return f"{place}-results{mark}{options}"


@contextmanager
def _advised(out: str) -> Iterator[None]:
    """Say what to do where results may not be written: who has named no folder does not know of it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or out not in str(error.filename):
            raise
        raise PeerError(f"{error}: --out DIR says where else the results go") from error


def _limits(text: str) -> dict[str, float]:
    """By what is not to be there, how much of it may be: ``failed,lost=3,slow=0.5``."""
    limits = dict[str, float]()
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, value = (one.strip() for one in part.partition("="))
        known = ", ".join((*_COUNTED, *_OTHERS))
        if name not in (*_COUNTED, *_OTHERS):
            raise UsageError(f"--fail-on {name}: there is no such thing; there are {known}")
        try:
            limits[name] = float(value or (0 if name != "slow" else "?"))
        except ValueError:
            limits[name] = math.nan
        if not 0 <= limits[name] < math.inf:
            raise UsageError(f"--fail-on {part}: slow=0.5 is a p95 of half a second, lost=3 are more than three")
    if text and not limits:
        raise UsageError(f"--fail-on {text!r}: on what? --fail-on failed,lost=3")
    return limits


def _beyond(limits: Mapping[str, float], metrics: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about all of which there is more than may be."""
    for name, limit in limits.items():
        if name == "slow":
            some = [row for row in metrics["latency"] if (row["p95_ns"] or 0) > limit * 1e9]
            if some:
                worst = max(some, key=lambda row: row["p95_ns"])
                yield f"{counted(len(some), 'subject')} slower than {limit:g} s, such as {in_one_line(worst['subject'] or '')}"
            continue
        found = {
            "broke": metrics["totals"]["broke"],
            "unheard": sum(row["n"] for row in metrics["unheard"]),
            "gaps": metrics["counts"]["gaps"] + metrics["counts"]["lost"],
            "quarantined": metrics["counts"]["quarantined"],
        }
        n = found.get(name, sum(metrics["totals"]["outcomes"].get(one, 0) for one in _COUNTED.get(name, ())))
        if n > limit:
            yield f"{n:,} {name}" + (f", more than {limit:g}" if limit else "")


def _spill(out: str) -> str | None:
    """A folder of the results for what does not fit memory: the next run removes what a killed one has left there."""
    from ..analysis.results import STAGING

    return None if "://" in out else f"{out}/{STAGING}/duckdb"


@contextmanager
def _on_spark(master: str, size: int, shown: _StageProgress) -> Iterator[Any]:
    engine = spark.SparkEngine  # first of all: it says what is not installed
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


def _say(done: Done, engine: str, why: str, as_json: bool) -> None:
    totals = done.metrics["totals"]
    if as_json:
        facts: dict[str, Any] = {"out": done.out, "report": done.report, "engine": engine, "why": why}
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
    print(f"engine: {engine}, {why}")
    print(f"report: {done.report}")


# -- which engine ----------------------------------------------------------------------------------------------------------


def choose(asked: EngineName, size: int, master: str) -> tuple[EngineName, str]:
    """The engine for a capture of `size` bytes, and why it is that one; UsageError where one is asked for that cannot be."""
    if asked == "duckdb" and master:
        raise UsageError(f"--master {master} says where Spark runs, and --engine duckdb is not Spark: leave one of them out")
    if asked != "auto":
        return asked, "as --engine says"
    if master:
        return "spark", "since --master says where it runs"
    shown, limit = in_units(size), in_units(LARGE)
    if size < LARGE and find_spec("duckdb") is not None:
        return "duckdb", f"for a capture of {shown}; from {limit} on it is spark"
    if size < LARGE:
        return "spark", "since duckdb is not installed: pip install 'polybus[analyse]'"
    if find_spec("pyspark") is not None:
        return "spark", f"for a capture of {shown}; below {limit} it is duckdb, which does without Java"
    return "duckdb", "since pyspark is not installed: pip install 'polybus[spark]' for what is large"


def in_units(size: int) -> str:
    """A number of bytes for people: ``3.4 MiB``."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size} bytes" if not power else f"{size / 1024**power:.3g} {_UNITS[power]}"


# -- Spark: its session, whose JVM writes to a file, and what went wrong in one line ---------------------------------------


@contextmanager
def named_failures() -> Iterator[None]:
    """Raise PeerError with the cause of a failure of Spark, and KeyboardInterrupt where the user has interrupted it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    nobody, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(nobody)  # py4j logs what interrupts it, with all of its stack: here that is the user
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        raise PeerError(_reason(str(error))) from error
    finally:
        root.removeHandler(nobody)


def _is_interrupted(error: BaseException | None) -> bool:
    """True for an error of py4j while it cancelled a job that the user has interrupted."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


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
def running_session(master: str, *, brief: bool) -> Iterator[SparkSession]:
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


# -- polybus journey -------------------------------------------------------------------------------------------------------


def journey(
    out: Annotated[str, argument("DIR", "The results of polybus analyse.")],
    id: Annotated[str, option("ID", "Of the requests with this id, as on the wire.")] = "",
    subject: Annotated[str, option("PATTERN", "Of requests for this subject, 'tank.*'.")] = "",
    start: Annotated[str, option("TIME", "Of requests from here on, 2026-11-21T08:00:00Z.")] = "",
    end: Annotated[str, option("TIME", "Of requests before.")] = "",
    most: Annotated[int, option("N", "At most so many, the earliest first.", min=1, max=100)] = 4,
    as_json: Json = False,
) -> None:
    """Show what became of a request, by id, subject or time: where it was seen, what it led to, and each frame.

    What only may belong to it has a question mark.
    """
    if not (id or subject or start or end):
        raise UsageError("which request? --id ID, --subject PATTERN, --start TIME or --end TIME says it")
    window = {
        "start_ns": analysis.nanoseconds(start, "--start") if start else None,
        "end_ns": analysis.nanoseconds(end, "--end") if end else None,
    }
    found = analysis.journeys(out, id=id or None, subject=subject or None, most=most, **window)
    if not found:
        raise CaptureError(f"{out}: no request is like that; its table exchanges has all ids, subjects and times")
    if as_json or not sys.stdout.isatty():
        for row in found:
            print(json_line(row), flush=True)
    else:
        print("\n\n".join("\n".join(_journey_lines(row)) for row in found))


def _journey_lines(row: dict[str, Any]) -> list[str]:
    from ..analysis.report import words

    def hop(hop: dict[str, Any], mark: str) -> str:
        way, took = "in" if hop["direction"] else "out", "" if hop["latency_ns"] is None else words.duration(hop["latency_ns"])
        ended = f"{hop['outcome']} {hop['code_name'] or ''}".strip()
        after = f"+{words.duration(hop['at_ns'])}" if hop["at_ns"] >= 0 else f"-{words.duration(-hop['at_ns'])}"
        where, subject = f"{hop['protocol']} {words.shortened(hop['peer'] or '')}", words.shortened(hop["subject"] or "")
        return f"{mark} {after:>10}  {way:3} {where:32} {subject}: {ended} {took}  {hop['known_by']}".rstrip()

    name, id = words.shortened(row["subject"] or "no subject"), words.shortened(row["correlation_id"])
    title = f"{name}, {words.moment(row['request_time_ns'])}, id {id}"
    return [title, *(hop(one, " ") for one in row["hops"]), *(hop(one, "?") for one in row["may_be"])]
