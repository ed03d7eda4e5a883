"""Processes of the demo: started, asked, stopped and killed by their own pid."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from .._util.process_end import exit_at_once

_START = 40.0
_END = 5.0
_LINE = 4096


class DemoError(Exception):
    """Something could not be set up: not the fault of the step that is shown."""


class Child:
    """One process: ``python -m polybus.demo.<role> ...``. Its first line says that it is ready. It ends with its parent, whose
    pipe to it is closed then: by `leave_with_parent`, or because it reads stdin to the end.
    """

    def __init__(self, role: str, *arguments: str, log: Path) -> None:
        self.role: str = role
        self._arguments = arguments
        self._log = log
        self._process: anyio.abc.Process | None = None
        self._output: BufferedByteReceiveStream | None = None

    async def start(self) -> str:
        """Start it, and give its first line, when it is ready. DemoError has the end of what it wrote, where it ended."""
        command = [sys.executable, "-m", f"polybus.demo.{self.role}", *self._arguments]
        with self._log.open("ab") as log:
            self._process = await anyio.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=os.name == "posix",
            )
        assert self._process.stdout is not None
        self._output = BufferedByteReceiveStream(self._process.stdout)
        with anyio.move_on_after(_START):
            async for line in self.lines():
                return line
        log_tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
        raise DemoError(f"the {self.role} process did not start: {' | '.join(log_tail) or 'it said nothing'}")

    async def lines(self) -> AsyncIterator[str]:
        """Further lines that it prints, until it ends."""
        assert self._output is not None
        while True:
            try:
                line = await self._output.receive_until(b"\n", _LINE)
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound):
                return
            yield line.decode(errors="replace").rstrip()

    async def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process is not None and self._process.stdin is not None
        await self._process.stdin.send(f"{line}\n".encode())

    async def end_input(self) -> None:
        """Close its stdin, for a program that then leaves."""
        assert self._process is not None and self._process.stdin is not None
        await self._process.stdin.aclose()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send(self, number: int) -> None:
        """Send a signal to this process and to no other."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.Signals(number))

    async def ended(self) -> int:
        """Wait for its end, and give the exit status; negative after a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        if self._process is not None:
            self.send(getattr(signal, "SIGKILL", signal.SIGTERM))
            await self.ended()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_END):
            await self.kill()
            if self._process is not None:
                await self._process.aclose()


def leave_with_parent() -> None:
    """End this process when the parent's end of stdin is closed, however the parent ended."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held by a daemon thread, would abort the interpreter's shutdown.
        while os.read(0, _LINE):
            pass
        exit_at_once(3)

    threading.Thread(target=watch, daemon=True, name="leave with parent").start()


def main() -> None:
    """Run a program that does not know of its parent: ``python -m polybus.demo.children ROLE ...``"""
    leave_with_parent()
    role = sys.argv.pop(1)
    runpy.run_module(f"polybus.demo.{role}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
