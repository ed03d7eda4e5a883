"""A process that writes the columns of a capture until it kills itself: at one of the moments in which files change.

``python -m tests.unit.capture.decoding_process FOLDER MOMENT``; it says how many moments there were, when it lives that long.
"""

from __future__ import annotations

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


def main(folder: str, moments: int) -> None:
    """The program."""
    life = _Life(moments)
    opened = os.fdopen
    # mypy: functions stand in for those of the library, which have overloads and `self`
    os.fdopen = lambda *given: _File(life, opened(*given))  # type: ignore[assignment]
    os.fsync = life.counted(os.fsync)
    Path.rename = life.counted(Path.rename)  # type: ignore[method-assign]
    write_columns(folder)
    print(life.lived)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
