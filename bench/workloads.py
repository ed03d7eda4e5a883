"""Sizes and numbers of the workloads."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

__all__ = ["WORKLOADS", "Workload"]

Kind: TypeAlias = Literal["request", "publish", "fanout", "memory"]


@frozen(kw_only=True)
class Workload:
    """A kind of load.

    ``awake`` keeps every core busy with a process of the lowest priority: on a quiet machine each hop of a serial round trip
    wakes an idle core, which hides the cost of the software.
    """

    name: str
    kind: Kind
    title: str
    size: int = 64
    in_flight: int = 1
    connections: int = 1
    awake: bool = False


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="serial", kind="request", title="one request at a time, 64 B, cores kept awake", awake=True),
        Workload(name="asleep", kind="request", title="one request at a time, 64 B, cores asleep in between"),
        Workload(name="64", kind="request", title="64 requests in flight, 64 B", in_flight=64),
        Workload(name="256", kind="request", title="256 requests in flight, 64 B", in_flight=256),
        Workload(name="one-way", kind="publish", title="publications, 64 B, counted at the receiver"),
        Workload(name="one-way-4k", kind="publish", title="publications, 4 KiB, counted at the receiver", size=4096),
        Workload(name="fan-out", kind="fanout", title="one publisher, 1,000 subscribed connections", connections=1000),
        Workload(name="large", kind="request", title="echo of 1 MiB, one at a time", size=1024 * 1024),
        Workload(name="idle", kind="memory", title="memory of an idle connection, 1,000 of them", connections=1000),
    )
}
