"""`polybus demo`: the story, or with ``--all`` the matrix. What is shown comes from `polybus.demo`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final, TypeVar

import anyio
import typer
from attrs import asdict
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..demo.backend import SABOTAGE
from ..demo.play import RowRun, play
from ..demo.rows import all_rows, chosen_rows
from ..demo.story.programs import PROGRAMS, path_of, text_of
from ..demo.story.scenes import Telling, View, can_record, story_run, tell
from .demo_report import DemoReport
from .matrix import Progress, ProgressLines, live, print_matrix
from .options import flag, option
from .problems import UsageError, unwrapped
from .story.drawing import Drawing, coloured
from .story.frames import Recorder
from .story.page import page
from .story.showing import Lines, Screen, Unseen, can_draw, has_all_letters
from .values import json_line

T = TypeVar("T")

_PATIENCE: Final = 5.0
"""Seconds for a browser to open."""


def demo(
    everything: Annotated[
        bool,
        flag("--all", "Instead of the story every protocol over every transport, with failures on purpose: 2 to 4 minutes."),
    ] = False,
    only: Annotated[
        str | None,
        option("WORDS", "Of --all some transports, protocols or variants, with commas: tcp,unix or binary,tcp"),
    ] = None,
    show: Annotated[bool, flag("--show", "Print the programs of the story, and where they are.")] = False,
    browser: Annotated[bool, flag("--browser", "Make a page of the story when it has been told, and open it.")] = False,
    report: Annotated[
        str,
        option("DIR", "A new folder for the recording, its tables and a report; with --all and without --only it is made."),
    ] = "",
    as_json: Annotated[bool, flag("--json", "Print the result as JSON and nothing else.")] = False,
    sabotage: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Two programs in a story of twenty seconds; with --all a small plant over every protocol and transport.

    Status 1 if anything did not hold.
    """
    if sabotage and sabotage not in SABOTAGE:
        raise UsageError(f"--sabotage {sabotage!r}: one of {', '.join(SABOTAGE)}")
    if only is not None and not only.replace(",", " ").strip():
        raise UsageError(f"--only {only!r} names nothing: for example --only tcp,unix; --all plays everything")
    matrix = everything or only is not None or bool(sabotage)
    if matrix and (show or browser):
        raise UsageError(f"{'--show' if show else '--browser'} is about the story: use it without --all and --only")
    if show:
        _show_programs()
        return
    good = _matrix(only, sabotage, report, as_json) if matrix else _story(report, as_json, browser)
    if not good:
        raise typer.Exit(1)


# -- the story -------------------------------------------------------------------------------------------------------------


def _show_programs() -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    for name in PROGRAMS:
        console.print(Text(f"# {path_of(name)}", style="dim"))
        for line in text_of(name).splitlines():
            console.print(coloured(line))
        console.print()


def _story(report: str, as_json: bool, browser: bool) -> bool:
    console, demo_report = Console(), DemoReport.begin(report, wanted=bool(report))
    recorder = Recorder(Drawing()) if browser else None
    with tempfile.TemporaryDirectory(prefix="polybus-") as folder:
        record = (demo_report.record or Path(folder) / "capture") if can_record() else None
        if as_json:
            telling = _told(Unseen([] if recorder is None else [recorder]), folder, record)
        elif can_draw(console):
            with Live(console=console, screen=True, auto_refresh=False) as screen:
                telling = _told(Screen(console, screen, recorder), folder, record)
            _print_curtain(console, telling)
        else:
            telling = _told(Lines(console, recorder), folder, record)
            _print_curtain(console, telling)
    where = _write_page(telling, recorder, demo_report) if recorder is not None else None
    if as_json:
        demo_report.analyse()
        shown = {} if where is None else {"page": where.as_uri()}
        print(json_line(_story_result(telling) | shown | demo_report.as_json(), pretty=True), flush=True)
    else:
        _say_report(console, demo_report)
    if where is not None:
        opened = open_page(where)
        if not as_json:
            console.print(Text(f"{'page' if opened else 'open in a browser'}: {where.as_uri()}"), soft_wrap=True)
    return telling.run.ok


def _told(view: View, folder: str, record: Path | None) -> Telling:
    return run_until_signal(lambda: tell(story_run(), view, Path(folder), record))


def _print_curtain(console: Console, telling: Telling) -> None:
    for line in Drawing(max(40, console.width), plain=not has_all_letters(console)).curtain(telling):
        console.print(line, soft_wrap=True, highlight=False)


def _write_page(telling: Telling, recorder: Recorder, demo_report: DemoReport) -> Path:
    recorder.curtain()
    folder = demo_report.record.parent if demo_report.record is not None else Path(tempfile.mkdtemp(prefix="polybus-demo-"))
    where = folder / "story.html"
    where.write_text(page(telling, recorder), encoding="utf-8")
    return where


def open_page(where: Path) -> bool:
    """Open it in the user's browser; False where there is none, and nothing waits for it."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if os.name == "posix" and sys.platform != "darwin" and not any(os.environ.get(name) for name in screens):
        return False  # there are browsers for terminals, which would take this one
    script = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"
    nothing = subprocess.DEVNULL
    try:
        ended = subprocess.run(
            [sys.executable, "-c", script, where.as_uri()],
            stdin=nothing, stdout=nothing, stderr=nothing, timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True  # it is the browser that runs
    return ended.returncode == 0


def _story_result(telling: Telling) -> dict[str, Any]:
    return {
        "ok": telling.run.ok,
        "seconds": round(telling.seconds, 3),
        "python": sys.version.split()[0],
        "scenes": [{**asdict(step), "seconds": round(step.seconds, 3)} for step in telling.run.steps.values()],
        "traffic": telling.traffic or None,
    }


# -- the matrix ------------------------------------------------------------------------------------------------------------


def _matrix(only: str | None, sabotage: str, report: str, as_json: bool) -> bool:
    runs = [RowRun.of(row) for row in chosen_rows(all_rows(), (only or "").split(","))]
    demo_report = DemoReport.begin(report, wanted=bool(report) or not only)
    begin, console = perf_counter(), Console()
    lines = ProgressLines(console, Progress(runs))

    async def play_and_say() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lines.follow)
            await play(runs, sabotage, None, demo_report.record)
            group.cancel_scope.cancel()
        lines.say()

    async def play_alone() -> None:
        await play(runs, sabotage, None, demo_report.record)

    if as_json:
        run_until_signal(play_alone)
        seconds = perf_counter() - begin
        demo_report.analyse()
        print(json_line(_result(runs, seconds) | demo_report.as_json(), pretty=True), flush=True)
        return all(run.ok for run in runs)
    if can_draw(console):
        with live(runs, console):
            run_until_signal(play_alone)
    else:
        run_until_signal(play_and_say)
    print_matrix(runs, console, perf_counter() - begin)
    _say_report(console, demo_report)
    return all(run.ok for run in runs)


def _say_report(console: Console, demo_report: DemoReport) -> None:
    if not demo_report.wanted:
        return
    with console.status("Spark looks at what was recorded"):
        demo_report.analyse()
    for said in demo_report.lines():
        console.print(Text(said), soft_wrap=True)  # no markup: an extra of pip is in brackets


def run_until_signal(function: Callable[[], Awaitable[T]]) -> T:
    """Run it in an event loop. SIGTERM and SIGHUP end it in order, as Ctrl-C does, so that terminal and processes are let go.

    Raises:
        Exit: A signal came; its status is 128 and its number.
    """
    came: list[int] = []

    async def heed(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                came.append(number)
                scope.cancel()

    async def main() -> list[T]:
        results: list[T] = []
        async with anyio.create_task_group() as group:
            if os.name == "posix":
                group.start_soon(heed, group.cancel_scope)
            results.append(await function())
            group.cancel_scope.cancel()
        return results

    results = unwrapped(lambda: anyio.run(main))
    if came:
        raise typer.Exit(128 + came[0])
    return results[0]


def _result(runs: list[RowRun], seconds: float) -> dict[str, Any]:
    return {
        "ok": all(run.ok for run in runs),
        "seconds": round(seconds, 3),
        "python": sys.version.split()[0],
        "rows": [_row_result(run) for run in runs],
    }


def _row_result(run: RowRun) -> dict[str, Any]:
    return {
        **{name: getattr(run.row, name) for name in ("name", "protocol", "variant", "transport")},
        "ok": run.ok,
        "not_here": run.not_here or None,
        "trouble": run.trouble or None,
        "sent": run.sent,
        "received": run.received,
        "seconds": round(run.seconds, 3),
        "steps": [{**asdict(step), "seconds": round(step.seconds, 3)} for step in run.steps.values()],
    }
