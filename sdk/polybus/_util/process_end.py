"""Immediate end of this process."""

from __future__ import annotations

import os
import signal
import threading


def exit_at_once(status: int) -> None:
    """Exit without any clean-up, regardless of other threads."""
    os._exit(status)


def end_by_sigterm() -> None:
    """Let SIGTERM end this process at once if it has no handler, as in any other process.

    For process 1, as in a container, the kernel drops signals without a handler.
    """
    if (
        os.getpid() == 1
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda number, _: exit_at_once(128 + number))


def ending_signals() -> tuple[signal.Signals, ...]:
    """Signals that ask this process to end; under `nohup` without the one for a closed terminal."""
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return (signal.SIGINT, signal.SIGTERM)
    return (signal.SIGINT, signal.SIGTERM, hang_up)
