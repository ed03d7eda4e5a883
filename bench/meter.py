"""Reads the clocks of a client, of its server and of the machine around one measurement."""

from __future__ import annotations

from time import perf_counter, process_time

import psutil

from .processes import cpu_seconds, machine_seconds

__all__ = ["Meter"]


class Meter:
    """Runs from its creation on; made in the client's process."""

    def __init__(self, server: int) -> None:
        # With what it has started: a broker is part of the cost.
        self.servers = [server, *(process.pid for process in psutil.Process(server).children(recursive=True))]
        self.machine_seconds = machine_seconds()
        self.server_cpu = self._server_seconds()
        self.client_cpu = process_time()
        self.started = perf_counter()

    def _server_seconds(self) -> float:
        return sum(cpu_seconds(pid) for pid in self.servers)

    def read(self, count: int) -> dict[str, float]:
        """What passed, for `count` messages; ``others`` is how many cores were busy with something else meanwhile."""
        seconds = perf_counter() - self.started
        client = process_time() - self.client_cpu
        server = self._server_seconds() - self.server_cpu
        others = machine_seconds() - self.machine_seconds - client - server
        return {
            "count": count,
            "seconds": seconds,
            "client_cpu": client,
            "server_cpu": server,
            "others": max(0.0, others / seconds),
        }
