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


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that tell this process to end; a terminal that closes is none under `nohup`."""
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return (signal.SIGINT, signal.SIGTERM)
    return (signal.SIGINT, signal.SIGTERM, hang_up)
