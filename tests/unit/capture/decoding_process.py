"""Processes that write the columns of a capture and kill themselves at one of the moments in which files change.

``python -m tests.unit.capture.decoding_process STEP FOLDER ...``: a process for each folder. The first one dies at once, each
further one STEP moments later; with -1 they all live, and print the number of moments.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polybus.capture.columns.writer import write_columns


class _Life:
    """So many moments."""

    def __init__(self, moments: int) -> None:
        self.moments = moments
        self.lived = 0

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, before which the process may die."""

        def calling(*given: Any, **more: Any) -> Any:
            if self.lived >= self.moments:
                os.kill(os.getpid(), signal.SIGKILL)
            self.lived += 1
            return call(*given, **more)

        return calling


class _File:
    """A file whose writes are moments, and reach the disk."""

    def __init__(self, life: _Life, file: Any) -> None:
        self._file = file
        self.write = life.counted(self._write)

    def _write(self, data: Any) -> Any:
        count = self._file.write(data)
        self._file.flush()
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def decode(folder: str, moments: int) -> int:
    """Write the columns of a capture, and die on the way if there are more moments than these; how many there were."""
    life = _Life(moments)
    opened = os.fdopen
    # mypy: functions stand in for those of the library, which have overloads and `self`
    os.fdopen = lambda *given: _File(life, opened(*given))  # type: ignore[assignment]
    os.fsync = life.counted(os.fsync)
    Path.rename = life.counted(Path.rename)  # type: ignore[method-assign]
    write_columns(folder)
    return life.lived


def main(step: int, *folders: str) -> None:
    """The program."""
    for number, folder in enumerate(folders):
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        print(decode(folder, number * step if step >= 0 else sys.maxsize), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
