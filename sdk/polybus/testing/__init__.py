"""For the tests of programs that use polybus, and of protocols and transports made for it.

`pair` joins two buses in one process through the real codec; `Faults` makes the connection between them bad in a way that a
seed repeats. `context` is what a handler is given that a test calls as a function. `cluster` makes buses the nodes of one
cluster, over `NatsEngine`, a NATS server within the process. `protocol_suite` and `transport_suite` are our own contract suite,
for the plugins of others; they need pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .faults import Faults
from .pairing import context, pair
from .simulation import FaultRates, Process, SimulatedConnection, World, simulated

if TYPE_CHECKING:
    from .contract import protocol_suite as protocol_suite
    from .contract import transport_suite as transport_suite
    from .nats_engine import NatsEngine as NatsEngine
    from .nats_engine import cluster as cluster

__all__ = [
    "FaultRates",
    "Faults",
    "NatsEngine",
    "Process",
    "SimulatedConnection",
    "World",
    "cluster",
    "context",
    "pair",
    "protocol_suite",
    "simulated",
    "transport_suite",
]


def __getattr__(name: str) -> Any:
    """Loads the suites when they are first asked for: an application's tests may not run under pytest; and the cluster."""
    if name == "NatsEngine":
        from .nats_engine import NatsEngine

        return NatsEngine
    if name == "cluster":
        from .nats_engine import cluster

        return cluster
    if name not in ("protocol_suite", "transport_suite"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    pytest.register_assert_rewrite(f"{__name__}.contract")  # failures that show both sides
    from . import contract

    return getattr(contract, name)
