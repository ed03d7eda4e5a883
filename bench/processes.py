"""Processes of the benchmark: started with a pipe, stopped by their own id, and their processor time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import Any

import psutil

__all__ = ["Child", "ChildFailed", "Meter", "available_cores", "child", "memory", "spinners"]

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 5.0

_SPIN = """
import os, sys
os.nice(19)
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


class ChildFailed(Exception):
    """A child process ended, or did not answer in time."""


class Child:
    """A running child, which answers with one line of JSON at a time."""

    def __init__(self, command: Sequence[str], what: str) -> None:
        self.what = what
        # A file: a pipe without a reader would fill and stop the child.
        self._errors = TemporaryFile()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def answer(self, timeout: float = _START_TIMEOUT) -> dict[str, Any]:
        """The next line.

        Raises:
            ChildFailed: No line in time.
        """
        assert self.process.stdout is not None
        descriptor, end = self.process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                raise ChildFailed(f"{self.what} said nothing for {timeout:.0f} s; {self.last_words()}")
            chunk = os.read(descriptor, 65536)
            if not chunk:
                status = self.process.wait(_STOP_TIMEOUT)
                raise ChildFailed(f"{self.what} ended with status {status}: {self.last_words()}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ChildFailed(f"{self.what}: {answer['error']}")
        return answer

    def last_words(self) -> str:
        """End of its stderr, with each of several exceptions."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-1500:]

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Stop this process, and no other, within a few seconds."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_TIMEOUT)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()


@contextmanager
def child(role: str, *arguments: str) -> Iterator[Child]:
    """Run a process with `role` in `bench.child` during the block."""
    running = Child([sys.executable, "-m", "bench.child", role, *arguments], " ".join([role, *arguments[:1]]))
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def spinners() -> Iterator[None]:
    """Keep every core awake with a process of lowest priority."""
    with ExitStack() as stack:
        for core in available_cores():
            spinner = Child([sys.executable, "-c", _SPIN, str(core)], "spinner")
            stack.callback(spinner.stop)
        time.sleep(0.2)
        yield


def available_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process, in nanoseconds if the system supports it."""
    if sys.platform == "linux":
        # clock_getcpuclockid(3), which Python has for threads only: the complement of the id, and 2 for "scheduler time".
        return time.clock_gettime((~pid << 3) | 2)
    else:
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system


def machine_seconds() -> float:
    """Processor time of the whole machine, except low priority such as the spinners'."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return float(sum(times) - idle - times.nice - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))


def memory(pid: int) -> tuple[float, float]:
    """Memory of a process in bytes: with its share of shared pages (0 if unknown), and without."""
    info = psutil.Process(pid).memory_full_info()
    return float(getattr(info, "pss", 0)), float(info.uss)


class Meter:
    """Reads the clocks of a client, its server and the machine around a measurement; created in the client's process."""

    def __init__(self, server: int) -> None:
        self.server = server
        # Children of the server are between the ends: a broker, or an engine. They count separately.
        self.between = [process.pid for process in psutil.Process(server).children(recursive=True)]
        self.began = self._clocks()

    def _clocks(self) -> tuple[float, ...]:
        between = sum(cpu_seconds(pid) for pid in self.between)
        return machine_seconds(), cpu_seconds(self.server), between, time.process_time(), time.perf_counter()

    def read(self, count: int) -> dict[str, float]:
        """Differences, per message for `count` messages; ``others`` is the number of cores busy with other work."""
        passed = [now - then for now, then in zip(self._clocks(), self.began, strict=True)]
        machine, server, between, client, seconds = passed
        return {
            "count": count,
            "seconds": seconds,
            "client_cpu": client,
            "server_cpu": server,
            "between_cpu": between,
            "others": max(0.0, (machine - client - server - between) / seconds),
        }
