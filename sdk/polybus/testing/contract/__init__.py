"""Contract tests that every protocol and transport must pass. They run under pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...plugins import ProtocolAdapter
from ._base import Ground, ground_of, suite
from .channels import ChannelContract, DeadlineContract
from .links import AuthorizationContract, LinkContract
from .publications import PeerSubscriptionContract, PublicationContract
from .requests import FailureContract, RequestContract
from .transport import transport_suite

__all__ = ["protocol_suite", "transport_suite"]

_PARTS = (
    RequestContract,
    FailureContract,
    DeadlineContract,
    PublicationContract,
    PeerSubscriptionContract,
    ChannelContract,
    AuthorizationContract,
    LinkContract,
)


def protocol_suite(
    make: Callable[[], ProtocolAdapter],
    *,
    transport: str | Ground = "memory",
    subject: Callable[[str], Any] = str,
    skip: Mapping[str, str] | None = None,
) -> type[Any]:
    """Return the tests for a protocol: ``TestMine = protocol_suite(MyProtocol)`` in a test module.

    They are marked ``anyio``, so the ``anyio_backend`` fixture chooses the event loops. Tests for capabilities that the
    protocol lacks are left out. Each test has a time limit.

    Args:
        make: The protocol's class, or a function that returns the adapter.
        transport: ``memory``, ``tcp``, ``unix``, ``ws``, an address to serve at, or a function that returns an async context
            manager yielding an address.
        subject: Converts the tests' dotted subjects if the protocol uses a different form.
        skip: Maps names of tests that the protocol cannot pass to the reasons.

    Raises:
        ValueError: If `skip` contains an unknown test name.
    """
    adapter = make()
    capabilities = adapter.session("client").capabilities
    ground = ground_of(transport) if isinstance(transport, str) else transport
    members = {"make": staticmethod(make), "ground": staticmethod(ground), "subject": staticmethod(subject)}
    return suite("ProtocolSuite", _PARTS, members, capabilities, skip or {})
