"""Decodes sealed segments while a recording is running: one process at a time, at lowest priority."""

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
_LOOK: Final = 0.2
_LONGEST: Final = 1000
_PROGRAM: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main()"


def possible() -> bool:
    """Return True if this platform and program can start a process. A frozen program cannot, because it has no interpreter."""
    return os.name == "posix" and sys.platform != "emscripten" and bool(sys.executable) and not getattr(sys, "frozen", False)


class DecodingProcess:
    """Decodes the sealed segments of a folder in another process. Readers decode the remaining segments themselves."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._due = self._failing = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def ask(self) -> None:
        self._due = True

    def turn(self) -> None:
        """Start a process if one was requested and the previous one has exited."""
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
            self._failed(said.decode(errors="replace").strip() or f"it exited with status {process.returncode}")
        else:
            self._failing = False

    def _failed(self, why: str) -> None:
        if not self._failing:
            what = "segments of %s are not decoded: %s; it is tried again with the next one"
            logger.warning(what, self._folder, why, extra=log_fields(path=self._folder))
        self._failing = True

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()


def _begin_interpreter(folder: str) -> subprocess.Popen[bytes]:
    """Start a process with the same modules, outside the terminal's process group."""
    arguments = json.dumps([str(one) for one in sys.path]), str(os.getpid()), folder
    command = [sys.executable, "-I", "-c", _PROGRAM.format(__name__), *arguments]
    errors = None
    try:
        os.fstat(2)
    except OSError:  # without standard error, the first file opened there would take its place
        errors = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)


def main() -> None:
    from .writer import write_columns

    owner, folder = int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # removes unfinished files on the way
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
    """Exit this process when its parent exits, even while it waits for a disk."""
    while os.getppid() == owner:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)


def _step_back() -> None:
    import pyarrow as pa

    pa.set_cpu_count(1)
    os.nice(19)
    with suppress(AttributeError, OSError):  # only on Linux; lowers the priority of reading and writing, too
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
