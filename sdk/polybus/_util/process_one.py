"""SIGTERM for process 1 of a container, for which the kernel drops each signal that has no handler."""

from __future__ import annotations

import os
import signal
import threading


def end_by_sigterm() -> None:
    """Have SIGTERM end this process at once where nothing handles it, as it ends any other process."""
    if (
        os.getpid() == 1
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
