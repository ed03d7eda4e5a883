"""`polybus demo`: the live view and the summary. What is shown comes from `polybus.demo`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Annotated, Any

import anyio
import typer
from attrs import asdict
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..demo.backend import SABOTAGE
from ..demo.play import Outcome, RowRun, play
from ..demo.rows import all_rows, chosen_rows
from .demo_report import DemoReport
from .options import flag, option
from .problems import UsageError
from .values import json_line

_MARKS: dict[Outcome, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "running": ("…", "yellow"),
    "ok": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "not here": ("–", "dim"),
}


def demo(
    only: Annotated[
        str | None, option("WORDS", "Transports, protocols or variants, with commas: tcp,unix or binary,tcp")
    ] = None,
    report: Annotated[
        str, option("DIR", "A new folder for the recording, its tables and a report; without --only it is made.")
    ] = "",
    as_json: Annotated[bool, flag("--json", "Print the result as JSON and nothing else.")] = False,
    sabotage: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """A small plant in several processes, over every protocol and transport, recorded and analysed.

    Status 1 if any step did not hold.
    """
    if sabotage and sabotage not in SABOTAGE:
        raise UsageError(f"--sabotage {sabotage!r}: one of {', '.join(SABOTAGE)}")
    if only is not None and not only.replace(",", " ").strip():
        raise UsageError(f"--only {only!r} names nothing: for example --only tcp,unix; without it everything is played")
    runs = [RowRun.of(row) for row in chosen_rows(all_rows(), (only or "").split(","))]
    demo_report = DemoReport.begin(report, wanted=bool(report) or not only)
    begin = perf_counter()
    if as_json:
        anyio.run(play, runs, sabotage, None, demo_report.record)
        seconds = perf_counter() - begin
        demo_report.analyse()
        print(json_line(_result(runs, seconds) | demo_report.as_json(), pretty=True), flush=True)
    else:
        _play_live(runs, sabotage, begin, demo_report)
    if not all(run.ok for run in runs):
        raise typer.Exit(1)


def _play_live(runs: list[RowRun], sabotage: str, begin: float, demo_report: DemoReport) -> None:
    console = Console()
    if console.is_terminal:
        view = Live(get_renderable=lambda: _progress(runs), console=console, refresh_per_second=10, transient=True)
        with view:
            anyio.run(play, runs, sabotage, None, demo_report.record)
    else:
        anyio.run(play, runs, sabotage, None, demo_report.record)
    for group in _groups(runs):
        console.print(_summary(group))
        console.print(_legend(_steps(group)), soft_wrap=True)
    for line in _remarks(runs):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_verdict(runs, perf_counter() - begin))
    if demo_report.wanted:
        with console.status("Spark looks at what was recorded"):
            demo_report.analyse()
        for said in demo_report.lines():
            console.print(said, highlight=False, soft_wrap=True)


def _groups(runs: list[RowRun]) -> list[list[RowRun]]:
    """Runs that play the same steps, or some of them: one table for each, so that it fits into 80 columns."""
    groups: list[list[RowRun]] = []
    for run in runs:
        group = next((group for group in groups if not run.steps.keys().isdisjoint(_steps(group))), None)
        if group is None:
            groups.append(group := [])
        group.append(run)
    return groups


def _steps(runs: list[RowRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.steps))


def _mark(run: RowRun, name: str) -> Text:
    step = run.steps.get(name)
    return Text(*_MARKS["not here" if step is None or run.not_here else step.outcome])


def _table(runs: list[RowRun], further: Mapping[str, Callable[[RowRun], str]] | None = None) -> Table:
    """A mark for each step of each run, and further columns by their heads."""
    names, further = _steps(runs), further or {}
    table = Table(box=None, padding=(0, 1), pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for head in [*map(str, range(1, len(names) + 1)), *further]:
        table.add_column(head, justify="right", no_wrap=True)
    for run in runs:
        more = ("" if run.not_here else shown(run) for shown in further.values())
        table.add_row(run.row.name, *(_mark(run, name) for name in names), *more)
    return table


def _legend(names: list[str]) -> Text:
    return Text(", ".join(f"{number} {name}" for number, name in enumerate(names, start=1)), style="dim")


def _progress(runs: list[RowRun]) -> Group:
    shown: list[Table | Text] = []
    for group in _groups(runs):
        shown += [_table(group), _legend(_steps(group))]
    now = [f"{run.row.name}: {step.name}" for run in runs for step in run.steps.values() if step.outcome == "running"]
    return Group(*shown, Text(", ".join(now) or "starting processes", overflow="ellipsis", no_wrap=True))


def _summary(runs: list[RowRun]) -> Table:
    return _table(
        runs,
        {
            "sent": lambda run: str(run.sent),
            "received": lambda run: str(run.received),
            "seconds": lambda run: f"{run.seconds:.1f}",
        },
    )


def _remarks(runs: list[RowRun]) -> list[Text]:
    lines: list[Text] = []
    good = [run for run in runs if run.ok and not run.not_here]
    for run in sorted(good, key=lambda run: run.row.transport == "memory")[:1]:
        lines.append(Text(f"\nWhat was seen over {run.row.name}:", style="bold"))
        for number, (name, step) in enumerate(run.steps.items(), start=1):
            lines.append(Text(f"{number:3} {name:16} {step.seconds * 1000:5.0f} ms  {step.detail}"))
        lines.append(Text(""))
    for run in runs:
        if run.not_here:
            lines.append(Text(f"{run.row.name}: not possible here: {run.not_here}", style="yellow"))
        if run.trouble:
            lines.append(Text(f"{run.row.name}: {run.trouble}", style="red"))
        failed = [step for step in run.steps.values() if step.outcome == "failed"]
        lines += [Text(f"{run.row.name}: {step.name}: {step.detail}", style="red") for step in failed]
    return lines


def _verdict(runs: list[RowRun], seconds: float) -> Text:
    steps = [step for run in runs for step in run.steps.values() if not run.not_here]
    held = sum(step.outcome == "ok" for step in steps)
    good = all(run.ok for run in runs)
    played = sum(not run.not_here for run in runs)
    text = f"{held} of {len(steps)} steps held over {played} wires in {seconds:.1f} s"
    return Text(text, style="bold green" if good else "bold red")


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
