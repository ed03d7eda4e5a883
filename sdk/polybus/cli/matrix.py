"""The matrix of `polybus demo --all` while it is played, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import anyio
from attrs import define, field
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .._validation import counted
from ..demo.play import Outcome, RowRun

_MARKS: dict[Outcome, tuple[str, str]] = {
    "waiting": ("·", "dim"),
    "running": ("…", "yellow"),
    "ok": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "not here": ("–", "dim"),
}
_LOOK = 0.25
"""Seconds between two looks at what has ended, where there is no terminal."""
_SHOWN = 8
"""Wires that are named while they are played."""


@define
class Progress:
    """The share of a number of rows that is done, and the time that the rest will take."""

    runs: list[RowRun]
    _clock: Callable[[], float] = perf_counter
    _begin: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._begin = self._clock()

    @property
    def ended(self) -> list[RowRun]:
        """In the order in which they have."""
        return sorted((run for run in self.runs if run.ended_at is not None), key=lambda run: run.ended_at or 0.0)

    @property
    def share(self) -> float:
        """Of all steps, those of a row that was ended among them."""
        steps = sum(len(run.steps) for run in self.runs)
        done = sum(run.ended_at is not None or step.seconds > 0 for run in self.runs for step in run.steps.values())
        return done / steps if steps else 1.0

    def left(self) -> str:
        """In words; nothing before a tenth is done, from which nothing can be told."""
        share = self.share
        if share < 0.1:
            return ""
        seconds = (self._clock() - self._begin) * (1 - share) / share
        if share == 1:
            return ""
        return f"about {5 * round(seconds / 5)} s left" if seconds > 7 else "a few seconds left"

    def line(self) -> str:
        """In one line."""
        words = [
            f"{len(self.ended)} of {counted(len(self.runs), 'wire')}",
            f"{self._clock() - self._begin:.0f} s",
            self.left(),
        ]
        return ", ".join(word for word in words if word)

    def picture(self) -> Group:
        """For a terminal of any size: a bar, what runs, and what has failed."""
        running = [
            Text(f"… {run.row.name}: {step.name}", style="dim", no_wrap=True, overflow="ellipsis")
            for run in self.runs
            for step in run.steps.values()
            if step.outcome == "running"
        ][:_SHOWN]
        failed = [
            Text(f"✗ {run.row.name}: {step.name}: {step.detail}", style="red", no_wrap=True, overflow="ellipsis")
            for run in self.runs
            for step in run.steps.values()
            if step.outcome == "failed"
        ][:_SHOWN]
        bar = ProgressBar(total=1.0, completed=self.share)
        return Group(Text(self.line(), no_wrap=True), bar, *failed, *(running or [Text("… starting processes", style="dim")]))


@define
class ProgressLines:
    """The progress where there is no terminal: a line for each row that has ended."""

    console: Console
    progress: Progress
    _said: int = 0

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.say()
            await anyio.sleep(_LOOK)

    def say(self) -> None:
        """Say what has ended since."""
        ended = self.progress.ended
        for run in ended[self._said :]:
            self.console.print(Text(f"{run.row.name}: {_came_of(run)} ({self.progress.line()})"), soft_wrap=True)
        self._said = len(ended)


def live(runs: list[RowRun], console: Console) -> Live:
    """The progress on a terminal, gone when it is over."""
    progress = Progress(runs)
    return Live(get_renderable=progress.picture, console=console, refresh_per_second=8, transient=True)


def _came_of(run: RowRun) -> str:
    if run.not_here:
        return "not possible here"
    held = sum(step.outcome == "ok" for step in run.steps.values())
    return f"{held} of {len(run.steps)} steps held in {run.seconds:.1f} s"


def print_matrix(runs: list[RowRun], console: Console, seconds: float) -> None:
    """Tables, what was seen, what went wrong, and the verdict."""
    for group in groups_of(runs):
        console.print(summary(group))
        console.print(legend(steps_of(group)), soft_wrap=True)
    for line in _remarks(runs):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_verdict(runs, seconds))


def groups_of(runs: list[RowRun]) -> list[list[RowRun]]:
    """Runs that play the same steps, or some of them: one table for each, so that it fits into 80 columns."""
    groups: list[list[RowRun]] = []
    for run in runs:
        group = next((group for group in groups if not run.steps.keys().isdisjoint(steps_of(group))), None)
        if group is None:
            groups.append(group := [])
        group.append(run)
    return groups


def steps_of(runs: list[RowRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.steps))


def _mark(run: RowRun, name: str) -> Text:
    step = run.steps.get(name)
    return Text(*_MARKS["not here" if step is None or run.not_here else step.outcome])


def _table(runs: list[RowRun], further: Mapping[str, Callable[[RowRun], str]] | None = None) -> Table:
    """A mark for each step of each run, and further columns by their heads."""
    names, further = steps_of(runs), further or {}
    table = Table(box=None, padding=(0, 1), pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for head in [*map(str, range(1, len(names) + 1)), *further]:
        table.add_column(head, justify="right", no_wrap=True)
    for run in runs:
        more = ("" if run.not_here else shown(run) for shown in further.values())
        table.add_row(run.row.name, *(_mark(run, name) for name in names), *more)
    return table


def legend(names: list[str]) -> Text:
    return Text(", ".join(f"{number} {name}" for number, name in enumerate(names, start=1)), style="dim")


def summary(runs: list[RowRun]) -> Table:
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
