"""Processes that a server needs beside itself; they end with it, and their processor time counts as the server's."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["free_port", "has_nats", "nats_server", "start", "started_nats"]

_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(*command: str) -> subprocess.Popen[bytes]:
    """A process that ends when this one does, however that happens (Linux)."""
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent
    )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def nats_server() -> str | None:
    """Debian's package installs it here; or wherever BENCH_NATS_SERVER says."""
    return os.environ.get("BENCH_NATS_SERVER") or shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def started_nats() -> Iterator[str]:
    """A NATS server of its own, on its way; its address."""
    path, port = nats_server(), free_port()
    assert path is not None
    with start(path, "-a", "127.0.0.1", "-p", str(port)) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def has_nats() -> bool:
    """Whether the server and ``nats-py`` are here."""
    return nats_server() is not None and find_spec("nats") is not None
