"""Contract tests for pytest, which every protocol and transport must pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...plugins import ProtocolAdapter
from ._base import Ground, ground_of, suite
from .channels import ChannelContract, DeadlineContract
from .links import AuthorizationContract, LinkContract
from .publications import PeerSubscriptionContract, PublicationContract
from .requests import ClientContract, FailureContract, RequestContract
from .transport import transport_suite

__all__ = ["protocol_suite", "transport_suite"]

_PARTS = (
    RequestContract,
    FailureContract,
    DeadlineContract,
    PublicationContract,
    PeerSubscriptionContract,
    ChannelContract,
    ClientContract,
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

    They are marked ``anyio``, so pytest's fixture ``anyio_backend`` chooses the event loops. Tests for capabilities that the
    protocol lacks are left out. Each test has a time limit.

    Args:
        make: The protocol's class, or a function that returns the adapter.
        transport: ``memory``, ``tcp``, ``unix``, ``ws``, an address to serve at, or an async context manager function that
            yields an address.
        subject: Converts the dotted subjects of the tests, if the protocol has its own.
        skip: Names of tests that the protocol cannot pass, with the reasons.

    Raises:
        ValueError: If `skip` has a name that is not a test of the suite.
    """
    adapter = make()
    capabilities = adapter.session("client").capabilities
    ground = ground_of(transport) if isinstance(transport, str) else transport
    members = {"make": staticmethod(make), "ground": staticmethod(ground), "subject": staticmethod(subject)}
    return suite("ProtocolSuite", _PARTS, members, capabilities, skip or {})
