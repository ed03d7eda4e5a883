"""Decoding beside a recording: one process at a time, of the lowest priority, for what was sealed before it began."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from ...plugins.tools import log_fields
from ..errors import CaptureError

logger: logging.Logger = logging.getLogger("polybus.capture")

_PATIENCE: Final = 1.0
"""Seconds in which it removes what it has not finished, before it is killed."""
_LOOK: Final = 0.2
"""Seconds between two looks at whether the process that has begun it is still there."""
_LONGEST: Final = 1000
"""Characters of why it could not go on."""
_PROGRAM: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main()"


def possible() -> bool:
    """True where a process can be begun, on this platform and from this program: one frozen file has no interpreter."""
    return os.name == "posix" and sys.platform != "emscripten" and bool(sys.executable) and not getattr(sys, "frozen", False)


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
                self._process = _begin_interpreter(self._folder)
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


def _begin_interpreter(folder: str) -> subprocess.Popen[bytes]:
    """Begin a process that calls `main`: it finds the same modules, and its work is not known to a terminal.

    There `sys.argv` has this process's number and the folder, from the second on. Ctrl-C is not for it: it ends when this
    one does.

    Raises:
        OSError: It cannot be begun.
    """
    arguments = json.dumps([str(one) for one in sys.path]), str(os.getpid()), folder
    command = [sys.executable, "-I", "-c", _PROGRAM.format(__name__), *arguments]
    # Where there is no standard error, the first file that is opened there would be taken for it.
    errors = None if _is_open(2) else subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)


def _is_open(file: int) -> bool:
    with suppress(OSError):
        os.fstat(file)
        return True
    return False


def main() -> None:
    """Decode until nothing is left, this process is told to end, or the one that has begun it is gone."""
    from .writer import write_columns

    owner, folder = int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # and what is not finished is removed on the way
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _step_back()
    threading.Thread(target=_leave_with, args=(owner,), daemon=True).start()
    try:
        write_columns(folder)
    except (CaptureError, OSError) as error:
        print(error, flush=True)
        sys.exit(1)


def _leave_with(owner: int) -> None:
    """End this process when the one that has begun it is gone, whatever it is at: a disk may keep it waiting."""
    while os.getppid() == owner:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


def _step_back() -> None:
    """Take only what nobody else wants: one processor at most, where no other process asks for it."""
    import pyarrow as pa

    pa.set_cpu_count(1)
    os.nice(19)
    with suppress(AttributeError, OSError):  # Linux has it; reading and writing wait for others then, too
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
