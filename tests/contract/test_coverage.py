"""The contract leaves no pair out: protocol and loop, transport and loop, protocol within protocol."""

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import anyio
import pytest
from attrs import frozen

from tests.loops import LOOPS

from . import test_csb, test_jrep, test_nats, test_protocols, test_tunnels, test_up

PROTOCOLS = {"csb", "jrep", "up", "ubre", "uprotocol"}


@frozen
class Place:
    protocol: str
    outside: str | None
    """The protocol around it, in a tunnel."""
    transport: str
    loop: str


async def transport_of(suite: Any) -> str:
    async with suite.ground() as address:
        return str(address.partition(":")[0])


def places(*modules: ModuleType) -> Iterator[Place]:
    for module in modules:
        for suite in (value for name, value in vars(module).items() if name.startswith("Test")):
            transport = getattr(suite, "over", None) or anyio.run(transport_of, suite)
            outside = suite.outside().name if hasattr(suite, "outside") else None
            (loops,) = (mark.args[1] for mark in suite.pytestmark if mark.name == "parametrize")
            for loop in loops:
                yield Place(suite().adapter.name, outside, transport, loop.id)


ON_TRANSPORTS = {*places(test_csb, test_jrep, test_protocols, test_up)}
AT_NETWORKS = {*places(test_nats)}
IN_TUNNELS = {*places(test_tunnels)}


def test_every_protocol_and_every_transport_run_on_every_loop() -> None:
    assert {(place.protocol, place.loop) for place in ON_TRANSPORTS} == {*itertools.product(PROTOCOLS, LOOPS)}
    met = {(place.transport, place.loop) for place in ON_TRANSPORTS}
    assert met >= {*itertools.product(["memory", "tcp", "ws"], LOOPS)}
    assert {transport for transport, _ in met} == {"memory", "tcp", "unix", "ws", "zenoh"}


def test_a_network_runs_on_every_loop_and_every_transport_that_it_has() -> None:
    assert {place.loop for place in AT_NETWORKS} == {*LOOPS}
    assert {place.transport for place in AT_NETWORKS} == {"memory", "tcp", "ws"}


def test_every_protocol_runs_in_a_tunnel_of_every_protocol() -> None:
    inside = PROTOCOLS - {"up"}
    over_sockets = [place for place in IN_TUNNELS if place.transport in {"tcp", "ws"}]
    assert {(place.protocol, place.outside) for place in over_sockets} == {*itertools.product(inside, inside)}


@pytest.mark.parametrize("part", ["protocol", "outside", "transport"])
def test_every_part_of_a_tunnel_runs_on_every_loop(part: str) -> None:
    met = {(getattr(place, part), place.loop) for place in IN_TUNNELS}
    assert met >= {*itertools.product({getattr(place, part) for place in IN_TUNNELS if place.transport != "memory"}, LOOPS)}
