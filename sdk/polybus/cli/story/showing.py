"""The story for those who watch: on a terminal as it happens, anywhere else in lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import anyio
from attrs import define, field
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ...demo.story.scenes import SCENES, Telling
from .drawing import Drawing
from .frames import Recorder

_BETWEEN = 0.05
"""Seconds between two pictures on a terminal."""


def can_draw(console: Console) -> bool:
    """True for a terminal on which lines can be drawn again; FORCE_COLOR makes none of a pipe."""
    return sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal


def has_all_letters(console: Console) -> bool:
    """False where arrows and the like cannot be written."""
    return console.encoding.startswith("utf")


@define
class Screen:
    """On a terminal: the picture follows the size that it has."""

    console: Console
    live: Live
    recorder: Recorder | None = None
    """Takes pictures of it too."""
    _drawn: list[Text] = field(factory=list)
    _telling: Telling | None = None

    async def show(self, telling: Telling) -> None:
        self._telling = telling
        if self.recorder is not None:
            await self.recorder.show(telling)
        self._draw()

    async def pace(self, seconds: float) -> None:
        assert self._telling is not None
        cast = self._telling.cast
        begin, from_now = anyio.current_time(), cast.now
        while cast.now < from_now + seconds:
            self._draw()
            await anyio.sleep(_BETWEEN)
            cast.now = min(from_now + seconds, from_now + anyio.current_time() - begin)
        self._draw()

    def _draw(self) -> None:
        assert self._telling is not None
        width, height = self.console.size
        lines = Drawing(width, height, plain=not has_all_letters(self.console)).lines(self._telling)
        if lines != self._drawn:
            self._drawn = lines
            self.live.update(Group(*lines), refresh=True)
        if self.recorder is not None:
            self.recorder.take()


@define
class Lines:
    """In a pipe: what happens, in the order in which it does, as fast as it does."""

    console: Console
    recorder: Recorder | None = None

    async def show(self, telling: Telling) -> None:
        if self.recorder is not None:
            await self.recorder.show(telling)
        drawing = Drawing(max(40, self.console.width), plain=not has_all_letters(self.console))
        step = telling.run.steps[telling.scene.name]
        if step.outcome == "running":
            title = Text(f"{telling.number + 1}/{len(SCENES)} {telling.scene.title}", style="bold")
            self._print([title, Text(telling.scene.why), Text(), *drawing.code(telling.scene.code), Text()])
            return
        self._print([row for line in telling.cast.lines for row in drawing.said(line)])
        if step.outcome != "ok":
            self._print([Text(step.detail, style="red" if step.outcome == "failed" else "dim")])
        elif telling.scene.elsewhere:
            self._print([Text(telling.scene.elsewhere, style="dim")])
        self._print([Text()])

    def _print(self, lines: Sequence[Text]) -> None:
        for line in lines:
            line.rstrip()
            self.console.print(line, soft_wrap=True, highlight=False)

    async def pace(self, seconds: float) -> None:
        if self.recorder is not None:
            await self.recorder.pace(seconds)


@define
class Unseen:
    """For machines, which read the outcome; or for a recording."""

    recorders: Sequence[Recorder] = field(factory=tuple)
    _telling: Telling | None = None

    async def show(self, telling: Telling) -> None:
        self._telling = telling
        for recorder in self.recorders:
            await recorder.show(telling)

    async def pace(self, seconds: float) -> None:
        assert self._telling is not None
        begin = self._telling.cast.now
        for recorder in self.recorders:
            self._telling.cast.now = begin
            await recorder.pace(seconds)
