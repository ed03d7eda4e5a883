"""The addresses that a server has named: which are remembered, and which is next."""

import pytest

from polybus.plugins import EndpointFeatures
from polybus.transports._stream.dial import ServerAddresses
from polybus.transports.tcp import TcpConnector, UnixConnector

OWN = ("one", 1)


@pytest.mark.parametrize(
    ("named", "leaving", "expected"),
    [
        (["two:2", "one:1", "two:2", "[::1]:3"], False, [OWN, ("two", 2), ("::1", 3), OWN]),
        (["two:2"], True, [("two", 2), OWN]),
        (["", "two", ":2", "two:x", "two:0", "[::1"], True, [OWN, OWN]),
        ([f"n{number}:4" for number in range(100)], False, [OWN, *((f"n{number}", 4) for number in range(64)), OWN]),
    ],
    ids=["all in turn", "the next one at once", "malformed", "many"],
)
def test_named_addresses_come_after_the_applications_own_one_and_in_a_circle(
    named: list[str], leaving: bool, expected: list[tuple[str, int]]
) -> None:
    addresses = ServerAddresses(*OWN)
    addresses.learn(named, leaving)
    seen = []
    for _ in expected:
        seen.append(addresses.current)
        addresses.failed()
    assert seen == expected


def test_an_address_in_use_stays_so_while_it_is_named() -> None:
    addresses = ServerAddresses(*OWN)
    addresses.learn(["two:2", "three:3"], leaving=True)
    addresses.learn(["three:3", "two:2"], leaving=False)
    assert (addresses.current, addresses.url("tcp://one:1")) == (("two", 2), "tcp://two:2")
    addresses.learn(["three:3"], leaving=False)
    assert (addresses.current, addresses.url("tcp://one:1")) == (OWN, "tcp://one:1")


def test_a_connector_takes_the_other_servers_that_a_server_names_and_a_socket_file_has_none() -> None:
    connector = TcpConnector("tcp://one:1")
    EndpointFeatures.of(connector).other_servers(["two:2"], True)
    assert connector.addresses.current == ("two", 2)
    EndpointFeatures.of(UnixConnector("unix:///run/one")).other_servers(["two:2"], True)
