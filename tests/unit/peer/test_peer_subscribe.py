"""`Peer.subscribe`: one peer is asked, and no other. What holds for every protocol is in the contract suite."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from polybus import Backoff, Bus, Context, Peer, Subscription, connect
from polybus.errors import Disconnected, Unauthorized, Unsupported
from polybus.events import LinkDown
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.raw import RawPeer
from tests.refusal import refused
from tests.support import eventually
from tests.unit.broker.raw import raw_peer as csb_peer
from tests.unit.protocols.jrep.raw import raw as errai_peer

BACKOFF = Backoff(initial=0.001, maximum=0.02)


async def bodies(subscription: Subscription[Any], count: int) -> list[Any]:
    return [(await anext(subscription)).body for _ in range(count)]


@asynccontextmanager
async def bare_client(bus: Bus, url: str) -> AsyncIterator[tuple[RawPeer, Peer]]:
    """A client that is no polybus, of a bus that serves the URL; and how the bus sees it."""
    async with bus.serve(url) as listener:
        port = urlsplit(listener.url).port
        assert port is not None
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await eventually(lambda: listener.peers)
            yield RawPeer(stream), listener.peers[0]


async def test_a_bare_ubre_client_is_told_of_a_subscription_and_of_its_end() -> None:
    bus = Bus()
    async with bare_client(bus, "ubre+tcp://127.0.0.1:0") as (bare, peer), anyio.create_task_group() as group:

        async def say_who() -> None:
            assert await bare.receive() == {"subscribe": "alarm"}
            hello = await bare.receive()
            await bare.send({"fail": hello["id"], "body": "NotFound"})

        group.start_soon(say_who)
        async with peer.subscribe("alarm") as alarms, bus.subscribe("alarm") as everybodys:
            async with peer.subscribe("alarm") as again:
                assert await bare.receive() == {"subscribe": "alarm"}
                await bare.send({"publish": "alarm", "body": 3})
                assert await bodies(alarms, 1) == await bodies(again, 1) == await bodies(everybodys, 1) == [3]
        assert await bare.receive() == {"unsubscribe": "alarm"}  # the bus's own interest was never told
        await refused(peer.subscribe("alarm.*"), Unsupported, "exact subjects only")
        assert not bus._pubsub.to_peers.indices


async def test_a_bare_jrep_client_is_told_of_a_subscription_and_of_its_end() -> None:
    """An Errai client sends only to subjects that it was told of."""
    bus = Bus()
    async with bus.serve("jrep+tcp://127.0.0.1:0") as listener, errai_peer(listener.url) as bare:
        await bare.associate()
        (peer,) = listener.peers
        async with peer.subscribe("alarm") as alarms:
            told = await bare.hear("RemoteSubscribe")
            assert told["Subject"] == "alarm"
            await bare.say({"ToSubject": "alarm", "Value": "level 3"})
            assert await bodies(alarms, 1) == ["level 3"]
            async with bus.subscribe("alarm"):
                pass
            async with bus.subscribe("other"):
                assert (await bare.hear("RemoteSubscribe"))["Subject"] == "other"  # nothing was said of alarm meanwhile
            assert (await bare.hear())["Subject"] == "other"
        told = await bare.hear()
        assert (told["CommandType"], told["Subject"]) == ("RemoteUnsubscribe", "alarm")
        await refused(peer.subscribe("alarm.*"), Unsupported, "exact subjects only")


@pytest.mark.usefixtures("impatient")
async def test_a_bare_csb_client_cannot_be_subscribed_to() -> None:
    async with Bus() as bus, bus.serve("csb+tcp://127.0.0.1:0") as listener, csb_peer(listener.url):
        await eventually(lambda: listener.peers)
        await refused(listener.peers[0].subscribe("alarm"), Unsupported, "no subscriptions")
        assert not bus._pubsub.to_peers.indices


@pytest.mark.usefixtures("impatient")
async def test_a_bare_uprotocol_client_sends_all_that_it_publishes_and_need_not_be_asked() -> None:
    """The wire has no subscriptions, so the subscription chooses here."""
    bus = Bus()
    async with bare_client(bus, "uprotocol+tcp://127.0.0.1:0") as (bare, peer):
        async with peer.subscribe("//far/app/1/door.*#Door") as doors:
            id = "01890a5d-ac96-8000-8000-000000000001"
            for name in ("window.left", "door.front"):
                event = {"specversion": "1.0", "type": "pub.v1", "id": id, "source": f"//far/app/1/{name}#Door"}
                await bare.send(event)
            message = await anext(doors)
            assert (message.subject, message.peer) == ("//far/app/1/door.front#Door", peer)
            assert len(doors) == 0


async def test_a_server_that_only_answers_cannot_ask_who_posts() -> None:
    bus, seen = Bus(), list[Peer]()

    @bus.handle("hello")
    async def hello(ctx: Context) -> None:
        assert ctx.peer is not None
        seen.append(ctx.peer)

    async with bus.serve("uprotocol+http://127.0.0.1:0/events") as listener, connect(listener.url) as client:
        await client.request("hello")
        for entering in (seen[0].subscribe("news"), seen[0].stream("news"), seen[0].channel("news")):
            await refused(entering, Unsupported, "its server cannot send first")
        async with bus.subscribe("news") as news:
            await client.publish("news", 1)
            assert await bodies(news, 1) == [1]


async def test_a_number_that_the_wire_of_that_peer_cannot_carry_is_unsupported() -> None:
    async with pair(Bus()) as client:
        await refused(client.peers[0].subscribe(0x10001), Unsupported, "65537")
        assert not client._pubsub.to_peers.indices


async def test_a_full_queue_drops_the_oldest_and_the_others_miss_nothing() -> None:
    async with pair(bus := Bus()) as client, client.subscribe("news", queue=10) as others:
        async with client.peers[0].subscribe("news", queue=2) as small:
            for number in range(5):
                await bus.publish("news", number)
            assert await bodies(others, 5) == [0, 1, 2, 3, 4]
            assert await bodies(small, 2) == [3, 4]
            assert small.dropped == 3


async def test_over_two_links_between_two_buses_each_link_has_its_own() -> None:
    left, right = Bus(), Bus()
    async with pair(left, client=right), pair(right, client=left):
        accepted, opened = sorted(left.peers, key=lambda peer: core_of(peer).link.opened)
        async with accepted.subscribe("news") as by_their_link, opened.subscribe("news") as by_our_link:
            for number in range(3):
                await right.publish("news", number)
            first, second = await bodies(by_their_link, 3), await bodies(by_our_link, 3)
            assert first == second == [0, 1, 2]
            assert len(by_our_link) == len(by_their_link) == 0


async def test_what_a_server_relays_comes_from_that_server() -> None:
    server = Bus()
    server.relay("chat.>")
    async with pair(server) as ann, pair(server) as bob, bob.peers[0].subscribe("chat.room") as room:
        await ann.publish("chat.room", "hello")
        message = await anext(room)
        assert (message.body, message.peer) == ("hello", bob.peers[0])


async def test_what_a_bus_has_published_and_a_relay_brings_back_is_not_of_the_peer() -> None:
    left, right = Bus(), Bus()
    right.relay("chat.>")
    right.handle("barrier", inline=True)(lambda: None)
    async with pair(right, client=left), pair(right, client=left):
        first, second = left.peers
        async with first.subscribe("chat.room") as one, second.subscribe("chat.room") as two:
            await left.publish("chat.room", "of this bus")
            for peer in (first, second):
                await peer.request("barrier")
            await right.publish("chat.room", "of the other")
            assert await bodies(one, 1) == await bodies(two, 1) == ["of the other"]


async def test_a_server_whose_link_is_down_is_asked_when_it_is_back() -> None:
    bus = Bus()
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url, backoff=BACKOFF) as client:
        events = client.events()
        await eventually(lambda: listener.peers)
        (peer,) = client.peers
        await listener.peers[0].aclose()
        while not isinstance(await anext(events), LinkDown):
            pass
        async with peer.subscribe("news.*") as news:
            await eventually(lambda: listener.peers and core_of(listener.peers[0]).patterns)
            await bus.publish("news.today", 1)
            assert await bodies(news, 1) == [1]


async def test_a_refusal_when_the_link_comes_back_ends_what_asked_its_peer() -> None:
    welcome = True
    bus = Bus(authenticate=lambda handshake: "ann" if welcome else None)
    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as listener, connect(listener.url, backoff=BACKOFF) as client:
        async with client.peers[0].subscribe("news") as news:
            welcome = False
            await eventually(lambda: listener.peers)
            await listener.peers[0].aclose()
            with pytest.raises(Unauthorized):
                await anext(news)


@pytest.mark.parametrize("end", [Bus.aclose, Bus.drain])
async def test_a_bus_that_is_left_ends_its_subscriptions_without_an_error(end: Any) -> None:
    async with pair(Bus()) as client, client.peers[0].subscribe("news") as news, anyio.create_task_group() as group:
        group.start_soon(end, client)
        assert [message async for message in news] == []


async def test_the_end_of_a_client_does_not_end_what_others_were_asked_for() -> None:
    bus = Bus()
    async with bus.serve("ubre+tcp://127.0.0.1:0") as listener:
        async with connect(listener.url) as ann:
            await eventually(lambda: len(listener.peers) == 1)
            (first,) = listener.peers
            async with connect(listener.url) as bob:
                await eventually(lambda: len(listener.peers) == 2)
                second = next(peer for peer in listener.peers if peer is not first)
                async with first.subscribe("news") as hers, second.subscribe("news") as his:
                    await bob.aclose()
                    with pytest.raises(Disconnected):
                        await anext(his)
                    await ann.publish("news", 1)
                    assert await bodies(hers, 1) == [1]
        assert not bus._pubsub.to_peers.indices
