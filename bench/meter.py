"""Reads the clocks of a client, of its server and of the machine around one measurement."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter, process_time

import psutil

from .processes import cpu_seconds, machine_seconds

__all__ = ["Meter"]


class Meter:
    """Runs from its creation on; made in the client's process."""

    def __init__(self, server: int) -> None:
        self.server = server
        # What it has started stands between the two ends: a broker, or an engine. Part of the cost, and none of the ends.
        self.between = _started_by(server)
        # A client that is no Python is a process of its own, with this one to start it.
        self.clients = _started_by(os.getpid())
        self.machine_seconds = machine_seconds()
        self.server_cpu = cpu_seconds(server)
        self.between_cpu = _seconds(self.between)
        self.client_cpu = self._client_seconds()
        self.started = perf_counter()

    def _client_seconds(self) -> float:
        return process_time() + _seconds(self.clients)

    def read(self, count: int) -> dict[str, float]:
        """What passed, for `count` messages; ``others`` is how many cores were busy with something else meanwhile."""
        seconds = perf_counter() - self.started
        client = self._client_seconds() - self.client_cpu
        server = cpu_seconds(self.server) - self.server_cpu
        between = _seconds(self.between) - self.between_cpu
        others = machine_seconds() - self.machine_seconds - client - server - between
        return {
            "count": count,
            "seconds": seconds,
            "client_cpu": client,
            "server_cpu": server,
            "between_cpu": between,
            "others": max(0.0, others / seconds),
        }


def _started_by(pid: int) -> list[int]:
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def _seconds(pids: Sequence[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)
