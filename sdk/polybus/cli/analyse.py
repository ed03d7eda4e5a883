"""`polybus analyse` and `polybus journey`.

The engine is DuckDB for captures that one machine analyses quickly, and Spark for large captures and for clusters.
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
from ..plugins.tools import counted, in_one_line, shown_duration
from ..protocols.up.names import table_in
from .bridge import read_routes, text_of
from .options import Json, argument, duration, flag, json_line, option
from .problems import PeerError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..analysis import Done

_POLL: Final = 0.3
"""Seconds between progress polls of Spark."""
LARGE: Final = 512 << 20
"""Spark, if installed, analyses captures of at least this many bytes, about 13 million frames."""
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
LITTLE: Final = 32 << 20
"""Capture size in bytes below which the JVM does not optimise its code, about a million frames."""


EngineName: TypeAlias = Literal["auto", "duckdb", "spark"]


def analyse(
    capture: Annotated[str, argument("DIR", "Capture: a folder, or a URI (hdfs://, s3://).")],
    out: Annotated[
        str, option("DIR", "Folder for tables and report. Defaults to CAPTURE-results. Later runs add new data to it.")
    ] = "",
    engine: Annotated[EngineName, option("E", "Engine: auto (chosen by size), duckdb or spark.")] = "auto",
    master: Annotated[
        str, option("M", "Spark master, such as local[2], spark://host:7077 or yarn. Defaults to local[*].")
    ] = "",
    timeout: Annotated[float, duration("Seconds after which an answer is late.", min=0.001)] = 30.0,
    start: Annotated[str, option("TIME", "Analyse only frames from this time on, for example 2026-11-21T08:00:00Z.")] = "",
    end: Annotated[str, option("TIME", "Analyse only frames up to this time.")] = "",
    connection: Annotated[str, option("ID", "Analyse only this connection.")] = "",
    before: Annotated[str, option("DIR", "Compare with the results of an earlier capture.")] = "",
    names: Annotated[Path | None, option("FILE", "Subject names: TOML with name = number or address.")] = None,
    routes: Annotated[Path | None, option("FILE", "Use the subject names in the routes file of a bridge.")] = None,
    strict: Annotated[bool, flag("--strict", "Fail if part of the capture cannot be read.")] = False,
    settle: Annotated[bool, flag("--settle", "Treat the recording as complete and leave nothing provisional.")] = False,
    delta: Annotated[bool, flag("--delta", "Write a Delta Lake log beside each table.")] = False,
    fail_on: Annotated[
        str, option("WHAT", "Exit with status 1 for failed, lost=3 (more than 3), slow=SECONDS (p95), broke, ...")
    ] = "",
    as_json: Json = False,
) -> None:
    """Analyse a capture and write tables, metrics and an HTML report.

    Small captures are analysed with DuckDB and large ones with Spark, which requires Java. Both write the same tables.
    Exchanges that later recordings may still change count as provisional until a run finds them complete.
    """
    out, limits = out or results_of(capture), _limits(fail_on)
    window: dict[str, Any] = {**_times(start, end), "connection": connection or None}
    table = table_in(text_of(names, "--names"), str(names), 1 << 32) if names is not None else {}
    called = analysis.Names(table, tuple(read_routes(routes)) if routes is not None else ())
    # First, because Spark takes ten seconds to start.
    analysis.check(capture, out, **window, before=before or None)
    size = sum(segment.size for segment in Capture(capture).segments())
    chosen, why = choose(engine, size, master)
    shown = _StageProgress(as_json)
    with _advised(out), shown.bars, ExitStack() as stack:
        stack.callback(os.umask, os.umask(0o077))  # as private as the capture, since they contain its data
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
            f"{capture}: no frames match --start, --end and --connection; polybus capture info {capture} shows the times"
        )
    if found := list(_beyond(limits, done.metrics)):
        raise PeerError(f"--fail-on: {'; '.join(found)}")


_COUNTED: Final = {
    "lost": ("timeout", "lost", "unanswered"),
    **{name: (name,) for name in ("late", "cancelled", "unseen", "open-at-end")},
}
"""The outcomes counted by each name in --fail-on."""
_OTHERS: Final = ("failed", "refused", "slow", "broke", "unheard", "gaps", "quarantined")


def _times(start: str, end: str) -> dict[str, int | None]:
    return {
        "start_ns": analysis.nanoseconds(start, "--start") if start else None,
        "end_ns": analysis.nanoseconds(end, "--end") if end else None,
    }


def results_of(capture: str) -> str:
    """Return the default results folder, which is next to the capture."""
    place, mark, options = capture.partition("?") if "://" in capture else (capture, "", "")
    place = place.rstrip("/")
    if os.path.basename(place) in ("", ".", ".."):  # next to the capture, not in it
        place = os.path.abspath(place or capture)
    return f"{place}-results{mark}{options}"


@contextmanager
def _advised(out: str) -> Iterator[None]:
    """Mention --out if the folder is not writable, because the user may not know the default folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or out not in str(error.filename):
            raise
        raise PeerError(f"{error}: choose another folder with --out DIR") from error


def _limits(text: str) -> dict[str, float]:
    """Parse ``failed,lost=3,slow=0.5``."""
    limits = dict[str, float]()
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, value = (one.strip() for one in part.partition("="))
        known = ", ".join((*_OTHERS, *_COUNTED))
        if name not in (*_COUNTED, *_OTHERS):
            raise UsageError(f"--fail-on {name}: unknown; use one of {known}")
        try:
            limits[name] = float(value or (0 if name != "slow" else "?"))
        except ValueError:
            limits[name] = math.nan
        if not 0 <= limits[name] < math.inf:
            raise UsageError(
                f"--fail-on {part}: use a number, as in slow=0.5 (p95 above half a second) or lost=3 (more than three)"
            )
    if text and not limits:
        raise UsageError(f"--fail-on {text!r}: name a finding, as in --fail-on failed,lost=3")
    return limits


def _beyond(limits: Mapping[str, float], metrics: Mapping[str, Any]) -> Iterator[str]:
    from ..analysis.report.tables import DEFECTS

    outcomes, counts = metrics["totals"]["outcomes"], metrics["counts"]
    failed = sum(row["n"] for row in metrics["errors"] if row["code"] in DEFECTS)
    found = {name: sum(outcomes.get(one, 0) for one in names) for name, names in _COUNTED.items()} | {
        "failed": failed,
        "refused": outcomes.get("error", 0) - failed,
        "broke": metrics["totals"]["broke"],
        "unheard": sum(row["n"] for row in metrics["unheard"]),
        "gaps": counts["gaps"] + counts["lost"],
        "quarantined": counts["quarantined"],
    }
    for name, limit in limits.items():
        if name != "slow":
            if found[name] > limit:
                yield f"{found[name]:,} {name}" + (f", more than {limit:g}" if limit else "")
        elif slow := [row for row in metrics["latency"] if (row["p95_ns"] or 0) > limit * 1e9]:
            worst = max(slow, key=lambda row: row["p95_ns"])
            yield f"{counted(len(slow), 'subject')} slower than {limit:g} s, such as {in_one_line(worst['subject'] or '')}"


def _spill(out: str) -> str | None:
    """Return a folder for data that does not fit into memory. Each run removes leftovers of killed runs."""
    from ..analysis.results import STAGING

    if "://" in out:
        return None
    os.makedirs(out, exist_ok=True)  # so that an error names this folder
    return f"{out}/{STAGING}"


@contextmanager
def _on_spark(master: str, size: int, shown: _StageProgress) -> Iterator[Any]:
    engine = spark.SparkEngine  # first, because it reports a missing installation
    with running_session(master, brief=size < LITTLE) as session, shown.following(session), named_failures():
        yield engine(session)


class _StageProgress:
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
        print(f"{done.provisional:,} of them are provisional, because later recordings may change them")
    if totals["orphans"] or counts.gaps or counts.lost:
        what = counted(totals["orphans"], "orphan"), counted(counts.gaps, "gap"), counted(counts.lost, "unreadable stretch")
        print(", ".join(what))
    for finding in done.metrics["verdict"]:
        print(f"{finding['about']}: {finding['text']}")
    print(f"engine: {engine}, {why}")
    print(f"report: {done.report}")


# -- which engine ----------------------------------------------------------------------------------------------------------


def choose(asked: EngineName, size: int, master: str) -> tuple[EngineName, str]:
    """Return the engine for a capture of `size` bytes, and the reason for the choice."""
    if asked == "duckdb" and master:
        raise UsageError(f"--master {master} is for Spark, but --engine is duckdb: leave one of them out")
    if asked != "auto":
        return asked, "set by --engine"
    if master:
        return "spark", "implied by --master"
    shown, limit = in_units(size), in_units(LARGE)
    if size < LARGE and find_spec("duckdb") is not None:
        return "duckdb", f"because the capture has {shown}; Spark is used from {limit} on"
    if size < LARGE:
        return "spark", "because DuckDB is not installed: pip install 'polybus[analyse]'"
    if find_spec("pyspark") is not None:
        return "spark", f"because the capture has {shown}; below {limit}, DuckDB is used, without Java"
    return "duckdb", "because PySpark is not installed: pip install 'polybus[spark]' for large captures"


def in_units(size: int) -> str:
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size} bytes" if not power else f"{size / 1024**power:.3g} {_UNITS[power]}"


# -- Spark -----------------------------------------------------------------------------------------------------------------


@contextmanager
def named_failures() -> Iterator[None]:
    """Convert Spark errors to a `PeerError` with the cause, or to `KeyboardInterrupt` if the user interrupted Spark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    nobody, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(nobody)  # otherwise py4j prints a stack trace on Ctrl-C
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        raise PeerError(_reason(str(error))) from error
    finally:
        root.removeHandler(nobody)


def _is_interrupted(error: BaseException | None) -> bool:
    """Return True if py4j raised the error while cancelling a job after Ctrl-C."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


_PYTHONS: Final = re.compile(r"(?!org\.|java\.|scala\.)[A-Za-z_][\w.]*(?:Error|Exception|Warning): ")


def _reason(text: str) -> str:
    """Find the cause in Spark's output, which may be a polybus, Python or Java error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["Spark did not give a reason"]
    said = [line.partition(": ")[2] for line in lines if line.startswith("polybus.")]
    python = [line for line in lines if _PYTHONS.match(line)]
    return (said or python or _causes(lines) or lines[:1])[-1]


def _why(lines: Sequence[str]) -> str:
    errors = [line for line in lines if "Exception" in line or "ERROR" in line]
    return (_causes(lines) or errors or lines[-1:] or ["no reason given"])[0].strip(": ")


def _causes(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]


@contextmanager
def running_session(master: str, *, brief: bool) -> Iterator[SparkSession]:
    """Start Spark and hide the JVM's output. `brief` is suitable for work that takes seconds."""
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
    out: Annotated[str, argument("DIR", "Results folder of polybus analyse.")],
    id: Annotated[str, option("ID", "Request id, as on the wire.")] = "",
    subject: Annotated[str, option("PATTERN", "Requests for this subject, for example 'tank.*'.")] = "",
    start: Annotated[str, option("TIME", "Requests from this time on, for example 2026-11-21T08:00:00Z.")] = "",
    end: Annotated[str, option("TIME", "Requests before this time.")] = "",
    most: Annotated[int, option("N", "Maximum number of requests, earliest first.", min=1, max=100)] = 4,
    as_json: Json = False,
) -> None:
    """Trace a request, found by id, subject or time, with its hops, consequences and frames.

    A question mark marks parts that may not belong to the request.
    """
    if not (id or subject or start or end):
        raise UsageError("give --id ID, --subject PATTERN, --start TIME or --end TIME")
    found = analysis.journeys(out, id=id or None, subject=subject or None, most=most, **_times(start, end))
    if not found:
        raise CaptureError(f"{out}: no request matches; see the exchanges table for all ids, subjects and times")
    if as_json or not sys.stdout.isatty():
        for row in found:
            print(json_line(row), flush=True)
    else:
        print("\n\n".join("\n".join(_journey_lines(row)) for row in found))


def _journey_lines(row: dict[str, Any]) -> list[str]:
    from ..analysis.report import words

    def hop(hop: dict[str, Any], mark: str) -> str:
        way, took = "in" if hop["direction"] else "out", "" if hop["latency_ns"] is None else shown_duration(hop["latency_ns"])
        ended = f"{hop['outcome']} {hop['code_name'] or ''}".strip()
        after = f"+{shown_duration(hop['at_ns'])}" if hop["at_ns"] >= 0 else f"-{shown_duration(-hop['at_ns'])}"
        where, subject = f"{hop['protocol']} {words.shortened(hop['peer'] or '')}", words.shortened(hop["subject"] or "")
        return f"{mark} {after:>10}  {way:3} {where:32} {subject}: {ended} {took}  {hop['known_by']}".rstrip()

    name, id = words.shortened(row["subject"] or "no subject"), words.shortened(row["correlation_id"])
    title = f"{name}, {words.moment(row['request_time_ns'])}, id {id}"
    return [title, *(hop(one, " ") for one in row["hops"]), *(hop(one, "?") for one in row["may_be"])]
