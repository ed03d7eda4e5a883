"""Processes of the story, and what is seen of them while it is told: a view draws this."""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Literal, Self, TypeAlias

import anyio
import anyio.abc
from attrs import define, field, frozen

from ..children import Child, DemoError
from ..play import TIMEOUT, CheckFailed

Pace: TypeAlias = Callable[[float], Awaitable[None]]
"""Lets so many seconds of the story pass: for people in real time, for machines at once."""
Kind: TypeAlias = Literal["ask", "answer", "failure", "publication"]

DESKS = ("ann", "bob")
"""Two processes of one program."""
_AT_ONCE = 0.05
_URL = "ubre+ws://127.0.0.1:0/bus"
_FABRIC = "up+zenoh://127.0.0.1:0"


@frozen
class Line:
    """A line that a process has printed, or, of nobody, a command."""

    who: str
    text: str
    ms: float | None = None
    """Milliseconds after what it is the consequence of, as seen from here."""


@frozen
class Arrow:
    """A message between a desk and the plant."""

    label: str
    kind: Kind
    born: float
    """In the time of the story."""

    @property
    def outward(self) -> bool:
        return self.kind == "ask"


@define
class Actor:
    """One process as it is drawn."""

    pid: int = 0
    state: Literal["not yet", "here", "killed", "ended"] = "not yet"


@define
class Cast:
    """The plant, two desks, what they have printed, and what is on the wires between them."""

    folder: Path
    pace: Pace
    record: Path | None = None
    """Folder that the first desk records to."""
    now: float = 0.0
    """Seconds of the story, moved by the view."""
    url: str = _URL
    actors: dict[str, Actor] = field(factory=lambda: {name: Actor() for name in ("plant", *DESKS)})
    linked: dict[str, bool] = field(factory=lambda: dict.fromkeys(DESKS, False))
    arrows: dict[str, list[Arrow]] = field(factory=lambda: {desk: [] for desk in DESKS})
    """Of each desk, those of this scene: the last that went there, and the last that came."""
    lines: list[Line] = field(factory=list)
    """Of this scene."""
    _children: dict[str, Child] = field(factory=dict)
    _stack: AsyncExitStack = field(factory=AsyncExitStack)
    _group: anyio.abc.TaskGroup = field(init=False)
    _printed: anyio.Event = field(factory=anyio.Event)
    _since: float = 0.0

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._group.cancel_scope.cancel()
        await self._stack.aclose()

    # -- processes -------------------------------------------------------------------------------------------------------

    async def open_plant(self) -> None:
        """Start a plant: the first where there is room, later ones where it was."""
        line = await self._start("plant", "children", "story.plant", self.url)
        word, _, url = line.partition(" ")
        if word != "serving":
            raise DemoError(f"the plant said {line!r}")
        self.url = url

    async def open_desk(self, name: str, record: Path | None = None) -> None:
        """Start a desk, which connects, and listens."""
        line = await self._start(name, "story.desk", self.url, *([] if record is None else [str(record)]))
        self.linked[name] = True
        self._hear(name, line, timed=False)

    async def open_gate(self, record: Path | None = None) -> str:
        """Start the gate between the plant and a fabric of Zenoh. Gives the address of the fabric."""
        line = await self._start("gate", "story.gate", self.url, _FABRIC, *([] if record is None else [str(record)]))
        word, _, url = line.partition(" ")
        if word != "serving":
            raise DemoError(f"the gate said {line!r}")
        return url

    async def open_van(self, fabric: str) -> None:
        """Start a van, which connects to a fabric, delivers, and leaves."""
        self._since = perf_counter()
        self._hear("van", await self._start("van", "children", "story.van", fabric), timed=False)

    async def close_gate(self) -> None:
        await self._children["gate"].end_input()
        await self.ended("gate")

    async def _start(self, name: str, role: str, *arguments: str) -> str:
        child = Child(role, *arguments, log=self.folder / f"{name}.log")
        self._children[name] = await self._stack.enter_async_context(child)
        line = await child.start()
        self.actors[name] = Actor(child.pid, "here")
        self._group.start_soon(self._listen, name, child)
        return line

    async def kill_plant(self) -> None:
        """End the plant without a word."""
        self._command(f"kill -9 {self._children['plant'].pid}")
        await self._children["plant"].kill()
        self.actors["plant"].state = "killed"

    def drain_plant(self) -> None:
        """Ask the plant to leave in order."""
        self._command(f"kill -TERM {self._children['plant'].pid}")
        self._children["plant"].send(signal.SIGTERM)

    async def ended(self, name: str) -> None:
        """Wait for the orderly end of a process; CheckFailed with another status than 0."""
        with anyio.fail_after(TIMEOUT):
            status = await self._children[name].ended()
        self.actors[name].state = "ended"
        if status != 0:
            raise CheckFailed(f"{name} has left with status {status}")

    async def close_desk(self, name: str) -> None:
        await self._children[name].end_input()
        self.linked[name] = False
        await self.ended(name)

    # -- what they say ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new scene."""
        self.lines = []
        self.arrows = {desk: [] for desk in DESKS}

    async def tell(self, desk: str, step: str, subject: str) -> None:
        """Have a desk take a step, which asks for a subject."""
        self._since = perf_counter()
        printed = self._printed
        await self._children[desk].tell(step)
        self.show(desk, subject, "ask")
        # Before anything is drawn: that takes longer than an answer, whose time would then be wrong.
        with anyio.move_on_after(_AT_ONCE):
            await printed.wait()

    def show(self, desk: str, label: str, kind: Kind) -> None:
        """Draw a message; an answer behind its question, which is drawn slower than it was."""
        arrow = Arrow(label, kind, self.now)
        self.arrows[desk] = [*(other for other in self.arrows[desk] if other.outward != arrow.outward), arrow]

    async def hears(self, name: str, pattern: str) -> str:
        """Wait for a line of this scene; CheckFailed when it does not come."""
        with anyio.move_on_after(TIMEOUT):
            while True:
                for line in self.lines:
                    if line.who == name and re.search(pattern, line.text):
                        return line.text
                printed = self._printed
                await printed.wait()
        said = " | ".join(line.text for line in self.lines if line.who == name)
        raise CheckFailed(f"{name} has said {said!r}, and not {pattern!r}" if said else f"{name} has not said {pattern!r}")

    def note(self, text: str) -> None:
        """A line of nobody."""
        self.lines.append(Line("", text))

    def _command(self, text: str) -> None:
        self.note(f"$ {text}")
        self._since = perf_counter()

    async def _listen(self, name: str, child: Child) -> None:
        async for line in child.lines():
            self._hear(name, line)

    def _hear(self, name: str, text: str, timed: bool = True) -> None:
        ms = (perf_counter() - self._since) * 1000 if timed else None
        self.lines.append(Line(name, text, ms))
        if text.startswith("link "):
            self.linked[name] = text.startswith("link up")
        self._printed, printed = anyio.Event(), self._printed
        printed.set()
