"""Our contract suite: what every protocol and every transport has to do, as tests that pytest collects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...plugins import ProtocolAdapter
from ._base import Ground, ground_of, suite
from .channels import ChannelContract, DeadlineContract
from .links import AuthorityContract, LinkContract
from .publications import AskedContract, PublicationContract
from .requests import ClientContract, FailureContract, RequestContract
from .transport import transport_suite

__all__ = ["protocol_suite", "transport_suite"]

_PARTS = (
    RequestContract,
    FailureContract,
    DeadlineContract,
    PublicationContract,
    AskedContract,
    ChannelContract,
    ClientContract,
    AuthorityContract,
    LinkContract,
)


def protocol_suite(
    make: Callable[[], ProtocolAdapter],
    *,
    transport: str | Ground = "memory",
    subject: Callable[[str], Any] = str,
    skip: Mapping[str, str] | None = None,
) -> type[Any]:
    """Tests for a protocol: ``TestMine = protocol_suite(MyProtocol)`` in a test module.

    They are marked ``anyio``: pytest's fixture ``anyio_backend`` chooses the event loops. What the protocol's capabilities rule
    out is left out. Each test is bounded in time.

    Args:
        make: The protocol's class, or a function that gives the adapter.
        transport: ``memory``, ``tcp``, ``unix``, ``ws``, or an address to serve at; or an async context manager function that
            yields one.
        subject: From the dotted subjects of the tests to those of the protocol, where it has others.
        skip: Names of tests that the protocol cannot pass, with the reason.

    Raises:
        ValueError: `skip` names something that is no test of the suite.
    """
    adapter = make()
    capabilities = adapter.session("client").capabilities
    ground = ground_of(transport) if isinstance(transport, str) else transport
    members = {"make": staticmethod(make), "ground": staticmethod(ground), "subject": staticmethod(subject)}
    return suite("ProtocolSuite", _PARTS, members, capabilities, skip or {})
