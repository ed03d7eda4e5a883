"""`polybus demo`, which plays and prints the scenes in `polybus.demo`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from time import perf_counter, time
from typing import Annotated

import anyio
import typer
from attrs import asdict, frozen
from rich.console import Console, Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from ..demo.cast import Cast, StoryLine
from ..demo.scenes import PROGRAMS, SCENES, Scene, SceneOutcome, Telling, can_record, path_of
from .options import flag, json_line, option
from .problems import UsageError, unwrapped

READ, LOOK = 0.65, 0.8
"""Seconds to read the code before it runs, and to read its output afterwards."""
_FOLDERS = "polybus-demo-"
_ORPHANED = 3600
"""A temporary folder that is older, in seconds, counts as orphaned."""
_NEXT = {
    "polybus demo --show": "print the programs",
    "polybus demo --keep rec": "keep the recording",
    "polybus analyse rec --out out": "write a report about it",
}
_MARKS = {"ok": ("✓", "green"), "failed": ("✗", "bold red"), "not here": ("–", "dim"), "waiting": ("·", "dim")}


def demo(
    show: Annotated[bool, flag("--show", "Print the programs and their paths.")] = False,
    keep: Annotated[str, option("DIR", "Keep the recording in this new folder.")] = "",
    as_json: Annotated[bool, flag("--json", "Print only the result, as JSON.")] = False,
) -> None:
    """Run a 20-second demo with two programs.

    Exits with status 1 if a check fails.
    """
    if keep and Path(keep).exists() and any(Path(keep).iterdir()):
        raise UsageError(f"--keep {keep}: the folder is not empty; choose a new one")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal may lack some characters
    paper = Paper(Console(quiet=as_json, highlight=False, emoji=False))
    if show:
        paper.programs()
        return
    begin = perf_counter()
    remove_orphans()
    with tempfile.TemporaryDirectory(prefix=_FOLDERS) as folder:
        record = Path(keep or f"{folder}/capture") if can_record() else None
        telling = unwrapped(lambda: anyio.run(tell, paper, Path(folder), record))
    paper.curtain(telling, seconds := perf_counter() - begin)
    if as_json:
        scenes = [{"name": name, **asdict(seen), "seconds": round(seen.seconds, 3)} for name, seen in telling.seen.items()]
        facts = {"ok": telling.ok, "seconds": round(seconds, 3), "python": sys.version.split()[0], "scenes": scenes}
        print(json_line(facts | {"traffic": telling.traffic or None}, pretty=True), flush=True)
    if not telling.ok:
        raise typer.Exit(1)


def remove_orphans() -> None:
    """Remove temporary folders that killed demos left behind more than an hour ago."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*"):
        with suppress(OSError):  # gone, or another user's
            if time() - folder.stat(follow_symlinks=False).st_mtime > _ORPHANED:
                shutil.rmtree(folder)


async def tell(paper: Paper, folder: Path, record: Path | None) -> Telling:
    """Play the scenes. `folder` stores the processes' stderr."""
    async with Cast(folder, paper.line, record) as cast:
        telling = Telling(cast)
        for scene in SCENES:
            paper.scene(scene)
            await paper.pause(READ)
            seen = await telling.play(scene)
            paper.outcome(seen)
            if seen.outcome == "failed":
                break
            await paper.pause(LOOK)
        return telling


@frozen
class Paper:
    """Prints the scenes, with pauses for reading on a terminal."""

    console: Console

    async def pause(self, seconds: float) -> None:
        if sys.stdout.isatty() and not self.console.quiet:
            await anyio.sleep(seconds)

    def programs(self) -> None:
        for name in PROGRAMS:
            self._print(Text(f"# {path_of(name)}", style="dim"), _code(path_of(name).read_text(encoding="utf-8")), "")

    def scene(self, scene: Scene) -> None:
        number = f"{SCENES.index(scene) + 1}/{len(SCENES)} "
        code = [_row(Text(f"{excerpt.program}.py", style="dim"), _code(excerpt.code), width=8) for excerpt in scene.code]
        self._print(Text.assemble((number, "cyan"), (scene.title, "bold")), scene.why, "", *code, "")

    def line(self, line: StoryLine) -> None:
        took = "" if line.ms is None else f"{line.ms:,.1f} ms" if line.ms < 100 else f"{line.ms:,.0f} ms"
        text = Text(line.text, style="" if line.who else "yellow")
        self._print(_row(Text(line.who, style="bold"), text, Text(took, style="green"), width=5))

    def outcome(self, seen: SceneOutcome) -> None:
        """Print the result of a scene that did not succeed. The lines of successful scenes show their result."""
        self._print(*([] if seen.outcome == "ok" else [Text(seen.detail, style=_MARKS[seen.outcome][1])]), "")

    def curtain(self, telling: Telling, seconds: float) -> None:
        for name, seen in telling.seen.items():
            detail = "not played" if seen.outcome == "waiting" else seen.detail
            self._print(_row(Text.assemble(_MARKS[seen.outcome], " ", (name, "bold")), Text(detail), width=9))
        if telling.traffic:
            self._print("", ", ".join(f"{number:,} {name}" for name, number in telling.traffic.items()))
        passed = sum(seen.outcome == "ok" for seen in telling.seen.values())
        verdict = f"{passed} of {len(SCENES)} scenes passed in {seconds:.0f} s"
        self._print("", Text(verdict, style="bold green" if telling.ok else "bold red"), "")
        self._print(*(_row(Text(command, style="cyan"), what, width=29) for command, what in _NEXT.items()))

    def _print(self, *parts: RenderableType) -> None:
        for row in self.console.render_lines(Group(*parts), pad=False):
            text = Text.assemble(*((segment.text, segment.style or "") for segment in row))
            text.rstrip()
            self.console.print(text, soft_wrap=True)


def _row(left: Text, middle: RenderableType, right: RenderableType = "", *, width: int) -> Table:
    """Create a table row. `width` is the width of the left column."""
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_column(width=width)
    row.add_column(ratio=1, overflow="fold")
    row.add_column(justify="right", no_wrap=True)
    row.add_row(left, middle, right)
    return row


def _code(text: str) -> Syntax:
    return Syntax(text, "python", theme="ansi_light", background_color="default", word_wrap=True)
