"""Decoding beside a recording: one process at a time, of the lowest priority, for what was sealed before it began."""

from __future__ import annotations

import logging
import subprocess
from contextlib import suppress
from typing import Final

from ..._util.log_fields import log_fields
from ..interpreter import begin_interpreter

logger: logging.Logger = logging.getLogger("polybus.capture")

_PATIENCE: Final = 1.0
"""Seconds in which it removes what it has not finished, before it is killed."""
_LONGEST: Final = 1000
"""Characters of why it could not go on."""


class DecodingProcess:
    """Has the sealed segments of a folder decoded by another process, which ends when it has no more of them.

    What it does not come to is decoded by those who read it. Nothing here waits for it, but `stop`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._due = self._failing = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def ask(self) -> None:
        """There is something to decode: `turn` sees to it."""
        self._due = True

    def turn(self) -> None:
        """Begin a process, where that is asked for and the one before has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._reap(self._process)
        if self._due and self._process is None:
            self._due = False
            try:
                self._process = begin_interpreter(
                    "polybus.capture.columns.main", self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
                )
            except OSError as error:
                self._failed(error.strerror or str(error))

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        with process:
            said = b"" if process.stdout is None else process.stdout.read(_LONGEST)
        if process.returncode:
            self._failed(said.decode(errors="replace").strip() or f"it has ended with {process.returncode}")
        else:
            self._failing = False

    def _failed(self, why: str) -> None:
        if not self._failing:
            logger.warning(
                "segments of %s are not decoded: %s; it is tried again with the next one",
                self._folder,
                why,
                extra=log_fields(path=self._folder),
            )
        self._failing = True

    def stop(self) -> None:
        """End the process, within a second or two."""
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
