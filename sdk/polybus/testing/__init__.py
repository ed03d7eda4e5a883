"""Tools for testing programs that use polybus, as well as third-party protocols and transports.

`pair` connects two buses in one process, using the real codec. `Faults` makes their connection unreliable, but reproducibly so.
Use `context` to call a handler as a plain function. `cluster` joins buses to a cluster over a `NatsEngine`, an in-process NATS
server. `simulated` runs a test in virtual time. `protocol_suite` and `transport_suite` are contract tests for plugins and
require pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..plugins.tools import lazy_names
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


_lazy = lazy_names(__name__, {".contract": ["protocol_suite", "transport_suite"], ".nats_engine": ["NatsEngine", "cluster"]})


def __getattr__(name: str) -> Any:
    """Import the suites and the cluster on first use, because an application's tests may not run under pytest."""
    if name.endswith("_suite"):
        import pytest

        pytest.register_assert_rewrite(f"{__name__}.contract")  # so that failures show both sides
    return _lazy(name)
