"""Threads for blocking work, small files, and the end of this process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


async def in_own_thread(function: Callable[[*Arguments], T], *args: *Arguments, abandon_on_cancel: bool = False) -> T:
    """Call a function in a thread outside anyio's limit: all of anyio's threads may be waiting for its result, for example in
    `def` endpoints of FastAPI."""
    limiter = anyio.CapacityLimiter(1)
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)


_MOST: Final = 64 * 1024
"""Bytes of a file; the expected files have some hundreds."""


async def read_text_files(files: Mapping[str, str]) -> Mapping[str, str]:
    """Read files; returns their texts by path.

    Args:
        files: Names for people by path: errors do not show the paths.

    Raises:
        ValueError: A file cannot be read, is not text, or is too large.
    """
    if sys.platform == "emscripten":  # no threads; files are in memory
        return _read_all(files)
    return await in_own_thread(_read_all, files, abandon_on_cancel=True)


def _read_all(files: Mapping[str, str]) -> Mapping[str, str]:
    return {path: _read(path, name) for path, name in files.items()}


def _read(path: str, name: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror or error}") from None
    except ValueError:  # a NUL in the path
        raise ValueError(f"{name} is not the path of a file") from None
    if len(data) > _MOST:
        raise ValueError(f"{name} is larger than {_MOST} bytes, so it is something else")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not text") from None


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
