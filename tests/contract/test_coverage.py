"""The daily tier of the contract leaves no pair out: protocol and transport, protocol and loop, transport and loop."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import anyio
import pytest
from attrs import frozen

from tests.loops import FULL, LOOPS, TRIO, on
from tests.shares import classes_of, left_to, traits_of

from . import test_csb, test_jrep, test_nats, test_protocols, test_tunnels, test_up

PROTOCOLS = {"csb", "jrep", "up", "ubre", "uprotocol"}
WITH_TUNNELS = PROTOCOLS - {"up"}


@frozen
class Place:
    """One class of the contract."""

    name: str
    protocol: str
    outside: str | None
    """The protocol around it, in a tunnel."""
    transport: str
    loops: tuple[str, ...]


async def _transport_of(cls: Any) -> str:
    async with cls.ground() as address:
        return str(address.partition(":")[0])


def places(*modules: ModuleType) -> Iterator[Place]:
    for module in modules:
        for name, value in vars(module).items():
            if inspect.isclass(value) and name.startswith("Test"):
                cls: Any = value
                transport = getattr(cls, "over", None) or anyio.run(_transport_of, cls)
                outside = cls.outside().name if hasattr(cls, "outside") else None
                yield Place(name, cls().adapter.name, outside, transport, getattr(cls, "loops", LOOPS))


ON_TRANSPORTS = [*places(test_csb, test_jrep, test_protocols, test_up)]
AT_NETWORKS = [*places(test_nats)]
IN_TUNNELS = [*places(test_tunnels)]


def test_every_form_of_a_protocol_on_every_transport_runs() -> None:
    # One class each; what `make test-all` multiplies are the loops alone.
    assert len(ON_TRANSPORTS) == 29
    assert all(place.loops for place in [*ON_TRANSPORTS, *IN_TUNNELS])
    tunnels = {(place.protocol, place.outside, place.transport) for place in IN_TUNNELS}
    assert tunnels >= {*itertools.product(WITH_TUNNELS, WITH_TUNNELS, ["tcp", "ws"])}


def test_every_protocol_runs_on_every_loop() -> None:
    # Each test of the suite is in classes that have met each loop of the protocol, and in each class there are some of them.
    met = {(place.protocol, loop) for place in ON_TRANSPORTS for loop in place.loops}
    assert met == {*itertools.product(PROTOCOLS, LOOPS)}


CORES = test_tunnels.CORES
WHOLE = [classes_of(vars(module)) for module in (test_csb, test_jrep, test_protocols, test_up)]
GROUPS = {
    f"{protocol}{' in tunnels' if classes is CORES else ''}": group
    for classes in (*WHOLE, CORES)
    for protocol in sorted({cls.make().name for cls in classes.values()})
    if (group := {name: cls for name, cls in classes.items() if cls.make().name == protocol})
}


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_each_test_meets_each_form_of_a_protocol_and_each_of_its_transports_and_loops(group: dict[str, Any]) -> None:
    every = frozenset[Any]().union(*(traits_of(name, cls) for name, cls in group.items()))
    met: defaultdict[str, set[Any]] = defaultdict(set)
    for name, cls in group.items():
        assert left_to(cls)  # so no pair of a form and a transport is left out by all tests
        for test in left_to(cls):
            met[test] |= traits_of(name, cls)
    unlike = {f"test_{name}": {"transport zenoh"} for name in test_up.ENDS_APART}
    missing = {
        test: every - traits - unlike.get(test, set()) for test, traits in met.items() if test not in test_protocols.BASE64
    }
    assert {test: traits for test, traits in missing.items() if traits} == {}


def test_every_transport_runs_on_every_loop() -> None:
    met = {(place.transport, loop) for place in ON_TRANSPORTS for loop in place.loops}
    assert met == {*itertools.product(["memory", "tcp", "unix", "ws", "zenoh"], LOOPS)}


def test_a_network_runs_on_every_loop_and_every_transport_that_it_has() -> None:
    assert {loop for place in AT_NETWORKS for loop in place.loops} == {*LOOPS}
    assert {place.transport for place in AT_NETWORKS} == {"memory", "tcp", "ws"}


@pytest.mark.parametrize("part", ["protocol", "outside", "transport"])
def test_every_part_of_a_tunnel_runs_on_every_loop(part: str) -> None:
    met = {(getattr(place, part), loop) for place in IN_TUNNELS for loop in place.loops}
    assert met == {*itertools.product({getattr(place, part) for place in IN_TUNNELS}, LOOPS)}


class Two:
    async def test_a_class_runs_on_the_loops_that_it_names(self, anyio_backend: Any) -> None:
        assert FULL or anyio_backend[0] == "trio"

    async def test_and_its_other_tests_too(self) -> None:
        pass


TestTwo = pytest.mark.anyio(on(TRIO, Two))


def test_a_class_that_names_its_loops_was_collected_on_these_alone(request: pytest.FixtureRequest) -> None:
    ids = [
        item.name
        for item in request.session.items
        if item.nodeid.partition("[")[0].endswith("TestTwo::test_and_its_other_tests_too")
    ]
    assert FULL or ids in ([], ["test_and_its_other_tests_too[trio]"])
