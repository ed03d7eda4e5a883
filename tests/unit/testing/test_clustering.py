"""polybus.testing.cluster: the buses of a test as nodes of one cluster."""

import anyio
import pytest

from polybus import Bus, Cluster, Identity, LocalProtocolError, connect
from polybus.testing import cluster
from polybus.testing.nats_engine import met
from tests.loops import virtual_time  # noqa: F401


async def test_each_knows_all_others_and_they_are_one_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYBUS_CLUSTER", "nats+tcp://127.0.0.1:1/of-production")
    buses = [Bus(cluster="auto") for _ in range(4)]
    heard = []

    @buses[3].handle("double")
    async def double(n: int) -> int:
        return 2 * n

    async with cluster(*buses):
        assert [len(await bus.nodes()) for bus in buses] == [4, 4, 4, 4]
        assert [await bus.request("double", n) for n, bus in enumerate(buses)] == [0, 2, 4, 6]
        async with buses[1].subscribe("news.*") as news:
            await buses[0].publish("news.today", 1)
            heard.append((await anext(news)).body)
    assert heard == [1]
    assert not any(bus.stats().links for bus in buses)


async def test_whatever_cluster_a_bus_is_made_for_it_is_this_one_for_the_test() -> None:
    one = Bus(cluster=Cluster("nats+tls://nats.example/shop", name="shop", gap="disconnect"))
    two = Bus(
        cluster=Cluster("nats+tcp://127.0.0.1:1/other", name="other"), authenticate=lambda handshake: Identity(1, key="ann")
    )
    for _ in range(2):  # and again
        async with cluster(one, two), two.serve("ubre+memory://of-two"), connect("ubre+memory://of-two"):
            assert len(await one.nodes()) == 2
            assert [peer.identity_key for peer in await one.user("ann").peers()] == ["ann"]
    assert one.cluster == Cluster("nats+tls://nats.example/shop", name="shop", gap="disconnect")


async def test_a_bus_that_can_be_no_node_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(LocalProtocolError, match=r"create it with Bus\(cluster='auto'\)"):
        async with cluster(Bus(cluster="auto"), Bus()):
            raise AssertionError
    async with Bus(cluster="auto") as entered:
        with pytest.raises(LocalProtocolError, match="has already been entered"):
            async with cluster(entered):
                raise AssertionError


async def test_nodes_that_do_not_meet_are_an_error_and_no_wait_for_ever() -> None:
    one, stranger = Bus(cluster="auto"), Bus(cluster="auto")
    async with cluster(one), stranger:
        began = anyio.current_time()
        with pytest.raises(TimeoutError, match="did not find 1 of 1 nodes within 30 s"):
            await met(one, stranger)
        assert anyio.current_time() - began >= 30
