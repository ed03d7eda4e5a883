"""polybus.sync.cluster: a script is a node of a cluster."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from anyio.from_thread import start_blocking_portal

import polybus
from polybus import Bus, Cluster, ConnectFailed, Disconnected, LocalProtocolError, NoHandler, Store, Unauthorized, sync
from polybus.sync import BlockingPeer, BlockingRemotePeer
from polybus.testing import NatsEngine, pair
from tests.support import BOUND, free_port, until
from tests.unit.cluster.in_a_thread import TOKEN, RunningCluster, running_cluster

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def running() -> Iterator[RunningCluster]:
    with running_cluster() as running:
        yield running


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_script_reaches_all_clients_and_any_worker(running: RunningCluster, backend: Literal["asyncio", "trio"]) -> None:
    with sync.cluster(running.url, backend=backend) as bus:
        bus.publish("news.today", {"title": "Night build"})
        assert running.next_heard(2) == [(key, "news.today", {"title": "Night build"}) for key in ("ann", "bob")]
        assert bus.request("thumbnail.make", "cat", returns=str) == "cat.small"
        assert [bus.request(f"name.{name}") for name in ("one", "two")] == ["one", "two"]
        with pytest.raises(NoHandler, match="no node of the cluster"):
            bus.request("nobody.does")


def test_what_is_published_last_has_left_when_the_script_ends(running: RunningCluster) -> None:
    with sync.cluster(running.url) as bus:
        for n in range(200):
            bus.publish("news.today", n)
    assert [body for key, _, body in running.next_heard(400) if key == "ann"] == list(range(200))


def test_a_user_is_told_asked_and_found_at_whatever_worker(running: RunningCluster) -> None:
    with sync.cluster(Cluster(running.url)) as bus:
        bob = bus.user("bob")
        bob.publish("build.done", {"ok": True})
        assert running.next_heard(1) == [("bob", "build.done", {"ok": True})]
        assert bob.request("payment.confirm", {"sum": 12}, returns=dict[str, Any]) == {"by": "bob", "ok": True}
        with bob.stream("pages") as pages:
            assert list(pages) == ["bob", "again"]
        assert (bob.key, bob.online(), bus.user("cid").online()) == ("bob", True, False)
        (peer,) = bob.peers()
        assert isinstance(peer, BlockingRemotePeer)
        assert peer.identity_key == "bob"
        assert peer.request("payment.confirm", {"sum": 200}) == {"by": "bob", "ok": False}
        anybody: Any = peer
        assert bus.request("payment.confirm", {"sum": 1}, to=anybody)["by"] == "bob"
        peer.publish("build.done", 1)
        assert running.next_heard(1) == [("bob", "build.done", 1)]
        present = bus.present("news.*")
        assert present.complete
        assert sorted(str(peer.identity_key) for peer in present) == ["ann", "bob"]
        with pytest.raises(Disconnected) as caught:
            bus.user("cid").request("payment.confirm", {"sum": 12})
        assert not caught.value.sent
        until(lambda: len(bus.nodes()) == 3)


def test_a_user_of_a_bus_that_is_alone_is_one_of_its_own_clients() -> None:
    server = Bus()
    with sync.Bus(server) as bus, bus.serve("ubre+memory://alone") as listener:
        assert listener.peers == []
        assert list(bus.user("ann").peers()) == []
        assert [node.here for node in bus.nodes()] == [True]


async def test_a_plain_handler_reaches_users_too() -> None:
    server, page = Bus(), Bus()

    @server.handle("pay")
    def pay(amount: int, ctx: sync.Context) -> Any:
        (peer,) = ctx.bus.user("ann").peers()
        assert isinstance(peer, BlockingPeer)
        return ctx.bus.user("ann").request("payment.confirm", amount)

    page.handle("payment.confirm")(lambda amount: f"yes, {amount}")
    async with pair(server, identity=polybus.Identity("Ann", key="ann"), client=page):
        assert await page.request("pay", 3) == "yes, 3"


@pytest.fixture
def keeping() -> Iterator[str]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(NatsEngine("tcp://127.0.0.1:0")) as engine:
        yield engine.url


def test_a_thread_settles_what_it_reads_of_a_store(keeping: str) -> None:
    with sync.cluster(Cluster(keeping, stores=[Store("sold", "sold.>")])) as bus:
        for number in range(3):
            bus.publish("sold.book", number, id=f"sale-{number}")
        with bus.subscribe("sold.>", durable="audit", returns=int) as sold:
            first = sold.receive(timeout=BOUND)
            first.retry(0)
            with pytest.raises(LocalProtocolError, match="is to be retried already"):
                first.ack()
            read = list[tuple[int, int]]()
            while len(read) < 3:
                message = next(sold)
                read.append((message.body, message.attempt))
                message.ack()
            assert sorted(read) == [(0, 2), (1, 1), (2, 1)]
        with bus.subscribe("sold.>", start="all") as history:
            assert [history.receive(timeout=BOUND).body for _ in range(3)] == [0, 1, 2]


def test_without_a_cluster_to_join_a_script_is_told_so(monkeypatch: pytest.MonkeyPatch, running: RunningCluster) -> None:
    monkeypatch.delenv("POLYBUS_CLUSTER", raising=False)
    with pytest.raises(LocalProtocolError, match="POLYBUS_CLUSTER is not set"):
        sync.cluster()
    monkeypatch.setenv("POLYBUS_CLUSTER", running.url)
    with sync.cluster() as bus:
        assert bus.request("thumbnail.make", "dog") == "dog.small"


def test_an_engine_that_is_not_there_or_does_not_know_us_is_an_error_at_once(running: RunningCluster) -> None:
    with pytest.raises(ConnectFailed):
        sync.cluster(Cluster(f"nats+tcp://127.0.0.1:{free_port()}/shop", wait=0))
    with pytest.raises(Unauthorized):
        sync.cluster(running.url.replace(TOKEN, "guessed"))
    with pytest.raises(ValueError, match="^cluster='ubre.tcp://127.0.0.1:1' must be the URL of a NATS server"):
        sync.cluster("ubre+tcp://127.0.0.1:1")
