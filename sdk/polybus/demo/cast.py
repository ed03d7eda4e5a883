"""The processes of the demo, and their output."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import define, field, frozen

DESKS = ("ann", "bob")
TIMEOUT = 12.0
"""Seconds to wait for a line of output, even on a busy machine."""
_START, _END = 40.0, 5.0
_LINE = 4096


class CheckFailed(Exception):
    """A scene did not produce the expected result."""


@frozen
class StoryLine:
    """A line printed by a process. If `who` is empty, the demo itself printed it."""

    who: str
    text: str
    ms: float | None = None
    """Milliseconds since the step that caused the line."""


@define
class Actor:
    process: anyio.abc.Process
    input: anyio.abc.ByteSendStream
    output: BufferedByteReceiveStream

    async def lines(self) -> AsyncIterator[str]:
        while True:
            try:
                line = await self.output.receive_until(b"\n", _LINE)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound):
                return
            # A program must not control the terminal.
            yield "".join(letter if letter.isprintable() else "?" for letter in line.decode(errors="replace").rstrip())


@define
class Cast:
    """Runs the plant, two desks, the van and its gate, and collects their output."""

    folder: Path
    """Folder for the stderr of the processes."""
    say: Callable[[StoryLine], None]
    """Function called for each line when it arrives."""
    record: Path | None = None
    """Folder for the recordings of the first desk and the gate."""
    url: str = "ubre+ws://127.0.0.1:0/bus"
    lines: list[StoryLine] = field(factory=list)
    """The lines of the current scene."""
    _actors: dict[str, Actor] = field(factory=dict)
    _started: list[anyio.abc.Process] = field(factory=list)
    _group: anyio.abc.TaskGroup = field(init=False)
    _printed: anyio.Event = field(factory=anyio.Event)
    _since: float = 0.0

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        self._group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(_END):
            for process in self._started:
                if process.returncode is None:
                    process.kill()
                await process.aclose()
        return await self._group.__aexit__(*error)

    # -- processes -------------------------------------------------------------------------------------------------------

    async def open_plant(self) -> None:
        """Start a plant on the port of the previous plant."""
        self.url = self._served(await self._start("plant", "children", "plant", self.url))

    async def open_desk(self, name: str) -> None:
        line = await self._start(name, "desk", self.url, *(self._recording if name == DESKS[0] else ()))
        self._hear(name, line, timed=False)

    async def open_gate(self) -> str:
        """Start the gate between the plant and a Zenoh fabric, and return the fabric's address."""
        return self._served(await self._start("gate", "gate", self.url, "up+zenoh://127.0.0.1:0", *self._recording))

    @property
    def _recording(self) -> list[str]:
        return [] if self.record is None else [str(self.record)]

    async def open_van(self, fabric: str) -> None:
        self._since = perf_counter()
        self._hear("van", await self._start("van", "children", "van", fabric), timed=False)

    async def _start(self, name: str, module: str, *arguments: str) -> str:
        """Start a process and return its first line, which the process prints when it is ready."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as stderr:
            process = await anyio.open_process(
                [sys.executable, "-m", f"polybus.demo.{module}", *arguments],
                stderr=stderr,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=os.name == "posix",
            )
        self._started.append(process)
        assert process.stdin is not None and process.stdout is not None
        self._actors[name] = actor = Actor(process, process.stdin, BufferedByteReceiveStream(process.stdout))
        with anyio.move_on_after(_START):
            async for line in actor.lines():
                self._group.start_soon(self._listen, name, actor)
                return line
        tail = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise CheckFailed(f"{name} did not start: {' | '.join(tail) or 'no output'}")

    @staticmethod
    def _served(line: str) -> str:
        word, _, url = line.partition(" ")
        if word != "serving":
            raise CheckFailed(f"expected the address of a server, got {line!r}")
        return url

    async def kill_plant(self) -> None:
        self._signal("kill -9", getattr(signal, "SIGKILL", signal.SIGTERM))
        await self._actors["plant"].process.wait()

    def drain_plant(self) -> None:
        self._signal("kill -TERM", signal.SIGTERM)

    def _signal(self, command: str, number: int) -> None:
        process = self._actors["plant"].process
        self.note(f"$ {command} {process.pid}")
        self._since = perf_counter()
        process.send_signal(signal.Signals(number))

    async def close(self, name: str) -> None:
        await self._actors[name].input.aclose()
        await self.ended(name)

    async def ended(self, name: str) -> None:
        """Wait until a process exits. Raises `CheckFailed` if its exit status is not 0."""
        process = self._actors[name].process
        with anyio.move_on_after(TIMEOUT):
            if status := await process.wait():
                raise CheckFailed(f"{name} exited with status {status}")
            return
        raise CheckFailed(f"{name} did not exit within {TIMEOUT:.0f} seconds")

    # -- output ----------------------------------------------------------------------------------------------------------

    async def tell(self, desk: str, step: str) -> None:
        self._since = perf_counter()
        await self._actors[desk].input.send(f"{step}\n".encode())

    async def hears(self, name: str, pattern: str) -> StoryLine:
        """Wait for a line in the current scene. Raises `CheckFailed` after `TIMEOUT`."""
        with anyio.move_on_after(TIMEOUT):
            while True:
                printed = self._printed
                for line in self.lines:
                    if line.who == name and re.search(pattern, line.text):
                        return line
                await printed.wait()
        said = " | ".join(line.text for line in self.lines if line.who == name)
        raise CheckFailed(f"expected {pattern!r} from {name}, got {said!r}")

    def note(self, text: str) -> None:
        self._hear("", text, timed=False)

    async def _listen(self, name: str, actor: Actor) -> None:
        async for line in actor.lines():
            self._hear(name, line)

    def _hear(self, name: str, text: str, timed: bool = True) -> None:
        line = StoryLine(name, text, (perf_counter() - self._since) * 1000 if timed else None)
        self.lines.append(line)
        self.say(line)
        self._printed, printed = anyio.Event(), self._printed
        printed.set()
