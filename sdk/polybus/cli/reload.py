"""`polybus serve --reload`: the command again, in a process of its own, whenever a Python file of the folder changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from .problems import say

_PACE: Final = 0.4
"""Seconds between two looks at the files."""
_PATIENCE: Final = 10.0
"""Seconds for a process to end, after what it was given to drain."""
_MOST: Final = 10_000
"""Files that are looked at."""
_SKIPPED: Final = ("__pycache__", "node_modules", "site-packages")


def python_files(folder: Path) -> Iterator[str]:
    """The Python files below a folder, but for those of environments, caches and hidden folders."""
    count = 0
    for where, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not (name.startswith(".") or name in _SKIPPED or os.path.exists(os.path.join(where, name, "pyvenv.cfg")))
        ]
        for name in names:
            if name.endswith(".py"):
                count += 1
                if count > _MOST:
                    return
                yield os.path.join(where, name)


def look(folder: Path) -> dict[str, tuple[int, int]]:
    """Time and size of each Python file."""
    seen: dict[str, tuple[int, int]] = {}
    for path in python_files(folder):
        try:
            status = os.stat(path)
        except OSError:  # gone meanwhile: an editor replaces it
            continue
        seen[path] = status.st_mtime_ns, status.st_size
    return seen


def changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str | None:
    """A file that has changed, come or gone; None where all is as it was."""
    return next((path for path in {**before, **after} if before.get(path) != after.get(path)), None)


class Reloader:
    """Runs a command, and again after each change, until SIGINT or SIGTERM.

    Args:
        command: The command line of the process.
        folder: Where the files are.
        drain: Seconds that the process may take to end.
    """

    def __init__(self, command: list[str], folder: Path, drain: float) -> None:
        self._command = command
        self._folder = folder
        self._drain = drain
        self._signalled = threading.Event()

    def run(self) -> int:
        """The exit status of the last process."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heed)
        while True:
            seen = look(self._folder)
            process = subprocess.Popen(self._command, start_new_session=True)  # Ctrl-C is ours alone, and handed on once
            path = self._until_change(process, seen)
            status = self._end(process)
            if path is None:
                return status
            say(f"{os.path.relpath(path, self._folder)} has changed: starting again")

    def _until_change(self, process: subprocess.Popen[bytes], seen: dict[str, tuple[int, int]]) -> str | None:
        """A file that has changed; None after a signal."""
        ended = False
        while not self._signalled.wait(_PACE):
            if not ended and process.poll() is not None:
                ended = True
                say(f"the server has ended with status {process.returncode}: it is started again when a file changes")
            if (path := changed(seen, look(self._folder))) is not None:
                return path
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(self._drain + _PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _heed(self, number: int, frame: FrameType | None) -> None:
        self._signalled.set()


def reloading(arguments: list[str], drain: float) -> int:
    """Run this command line without its ``--reload``, and again after each change. The exit status."""
    command = [sys.executable, "-m", "polybus", *(argument for argument in arguments if argument != "--reload")]
    return Reloader(command, Path.cwd(), drain).run()
