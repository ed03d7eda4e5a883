"""The signals that end a process, and its exit."""

from __future__ import annotations

import os
import signal
import threading


def exit_at_once(status: int) -> None:
    """Exit immediately, without clean-up."""
    os._exit(status)


def end_by_sigterm() -> None:
    """Let SIGTERM end this process even in a container, where the kernel ignores signals to process 1 without a handler."""
    if (
        os.getpid() == 1
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, lambda number, _: exit_at_once(128 + number))


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to end. Under `nohup`, SIGHUP isn't one of them."""
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return (signal.SIGINT, signal.SIGTERM)
    return (signal.SIGINT, signal.SIGTERM, hang_up)
