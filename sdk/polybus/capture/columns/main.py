"""The main function of a process that decodes beside a recording: what is sealed now, and then it ends."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import pyarrow as pa

from ..errors import CaptureError
from .writer import write_columns


def main() -> None:
    """Decode until nothing is left, this process is told to end, or the one that has begun it is gone."""
    owner, folder = int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())  # and what is not finished is removed on the way
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _step_back()

    def go_on(frames: int) -> None:
        if os.getppid() != owner:
            sys.exit()

    try:
        write_columns(folder, go_on)
    except (CaptureError, OSError) as error:
        print(error, flush=True)
        sys.exit(1)


def _step_back() -> None:
    """Take only what nobody else wants: one processor at most, where no other process asks for it."""
    pa.set_cpu_count(1)
    os.nice(19)
    with suppress(AttributeError, OSError):  # Linux has it; reading and writing wait for others then, too
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
