"""The parts of a peer: each is made when it is first needed."""

from polybus import Bus
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.unit.answering import answering

PARTS = ("_budget", "inbound_if_any", "_negotiation", "streams_if_any", "_subscriptions", "undecided", "undelivered")


def parts(bus: Bus) -> set[str]:
    return {name for name in PARTS if getattr(core_of(bus.peers[0]), name) is not None}


async def test_a_peer_has_the_parts_that_it_has_needed_and_no_others() -> None:
    async with pair(bus := answering()) as client:
        assert parts(bus) == parts(client) == set()
        await client.request("echo", 1)
        assert parts(client) == set()
        assert parts(bus) == {"_budget", "inbound_if_any"}
        async with client.subscribe("news"):
            assert parts(bus) == {"_budget", "inbound_if_any", "_negotiation", "_subscriptions"}
        assert parts(client) == {"_negotiation"}
