"""The end of this process, at once."""

from __future__ import annotations

import os
import signal
import threading


def exit_at_once(status: int) -> None:
    """End without any clean-up, whatever runs in other threads."""
    os._exit(status)


def end_by_sigterm() -> None:
    """Have SIGTERM end this process at once where nothing handles it, as it ends any other process.

    For process 1, as in a container, the kernel drops each signal that has no handler.
    """
    if (
        os.getpid() == 1
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda number, _: exit_at_once(128 + number))
