"""What is measured: the names, sizes and numbers of the workloads."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import frozen

__all__ = ["WORKLOADS", "Workload"]

Kind: TypeAlias = Literal["request", "publish", "fanout", "memory", "startup"]


@frozen(kw_only=True)
class Workload:
    """One kind of load.

    ``awake`` keeps every core busy with a process of the lowest priority: on a quiet machine each hop of a serial round trip
    wakes an idle core, which hides what the software costs.
    """

    name: str
    kind: Kind
    title: str
    size: int = 64
    in_flight: int = 1
    connections: int = 1
    awake: bool = False
    full_only: bool = False


def _table(*workloads: Workload) -> dict[str, Workload]:
    return {workload.name: workload for workload in workloads}


WORKLOADS = _table(
    Workload(name="W1", kind="request", title="serial request/response, 64 B, cores asleep"),
    Workload(name="W1_awake", kind="request", title="serial request/response, 64 B, cores kept awake", awake=True),
    Workload(name="W2_64", kind="request", title="request/response, 64 B, 64 in flight", in_flight=64),
    Workload(name="W2_256", kind="request", title="request/response, 64 B, 256 in flight", in_flight=256),
    Workload(name="W3_64", kind="publish", title="one-way, 64 B, counted at the receiver"),
    Workload(name="W3_4k", kind="publish", title="one-way, 4 KiB, counted at the receiver", size=4096),
    Workload(name="W4_100", kind="fanout", title="one publisher, 100 subscribed connections", connections=100),
    Workload(name="W4_1000", kind="fanout", title="one publisher, 1,000 subscribed connections", connections=1000),
    Workload(name="W5", kind="memory", title="memory per idle connection, 1,000 of them", connections=1000),
    Workload(
        name="W5_5000",
        kind="memory",
        title="memory per idle connection, 5,000 of them",
        connections=5000,
        full_only=True,
    ),
    Workload(name="W6", kind="request", title="1 MiB echo, serial", size=1024 * 1024),
    Workload(name="W7", kind="startup", title="import, and process start to the first reply"),
)
