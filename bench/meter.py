"""Reads the clocks of a client, of its server and of the machine around one measurement."""

from __future__ import annotations

from time import perf_counter, process_time

from .processes import cpu_seconds, machine_seconds

__all__ = ["Meter"]


class Meter:
    """Runs from its creation on; made in the client's process."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.machine_seconds = machine_seconds()
        self.server_cpu = cpu_seconds(server)
        self.client_cpu = process_time()
        self.started = perf_counter()

    def read(self, count: int) -> dict[str, float]:
        """What passed, for `count` messages; ``others`` is how many cores were busy with something else meanwhile."""
        seconds = perf_counter() - self.started
        client = process_time() - self.client_cpu
        server = cpu_seconds(self.server) - self.server_cpu
        others = machine_seconds() - self.machine_seconds - client - server
        return {
            "count": count,
            "seconds": seconds,
            "client_cpu": client,
            "server_cpu": server,
            "others": max(0.0, others / seconds),
        }
