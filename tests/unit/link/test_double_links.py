"""Several links between two buses: each publication reaches each subscription once, whoever has dialled whom, and no peer can
make another miss one."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketListener

from polybus import Backoff, Broker, Bus, Identity, Kind, Limits, Message, Peer, connect
from polybus._core.peer.peer_core import PeerCore
from polybus._core.runtime.loop_prevention import BusIdentities
from polybus.plugins import Closed, SessionOutput
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.raw import RawPeer
from tests.support import BOUND, eventually

PROTOCOLS = ("ubre", "csb", "jrep", "uprotocol")
SOON = Backoff(initial=0.01, maximum=0.05)
COUNTER = itertools.count()


def place(protocol: str) -> str:
    return f"{protocol}+memory://double-{next(COUNTER)}"


async def _note(into: list[Any], body: Any, message: Message) -> None:
    into.append((body, message.headers))


class Hearing:
    """What a bus has heard, by an `on` handler and by a subscription."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.handled: list[Any] = []
        self.read: list[Any] = []
        bus.on("news.x")(partial(_note, self.handled))

    async def read_all(self, *, task_status: Any) -> None:
        async with self.bus.subscribe("news.x") as news:
            task_status.started()
            async for message in news:
                self.read.append((message.body, message.headers))

    def has(self, *bodies: Any) -> bool:
        return all((body, None) in heard for body in bodies for heard in (self.handled, self.read))

    def check(self, *bodies: Any) -> None:
        expected = [(body, None) for body in bodies]
        assert self.handled == self.read == expected, (self.handled, self.read)


def barrier(bus: Bus) -> Bus:
    @bus.handle("barrier")
    async def answer() -> None:
        pass

    return bus


async def all_is_there(*buses: Bus) -> None:
    """Wait until what was sent on all links of these has been handled."""
    for _ in range(3):
        for bus in buses:
            for peer in bus.peers:
                await peer.request("barrier")
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def reading(*hearing: Hearing) -> AsyncIterator[None]:
    """Their subscriptions are read for as long as the block runs."""
    async with anyio.create_task_group() as group:
        for each in hearing:
            await group.start(each.read_all)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def each_other(here: str, there: str, *, relay: bool = False) -> AsyncIterator[tuple[Hearing, Hearing]]:
    """Two buses that have dialled each other."""
    a, b = barrier(Bus()), barrier(Bus())
    for bus in (a, b):
        if relay:
            bus.relay("news.>")
    at_a, at_b = Hearing(a), Hearing(b)
    async with a.serve(here) as to_a, b.serve(there) as to_b:
        async with a.connect(to_b.url, backoff=SOON), b.connect(to_a.url, backoff=SOON), reading(at_a, at_b):
            yield at_a, at_b


async def check_both_ways(at_a: Hearing, at_b: Hearing) -> None:
    a, b = at_a.bus, at_b.bus
    await a.publish("news.x", 1)
    a.publish_nowait("news.x", 2)
    await b.publish("news.x", 3)
    b.publish_nowait("news.x", 4)
    await eventually(lambda: at_a.has(1, 2, 3, 4) and at_b.has(1, 2, 3, 4))
    await all_is_there(a, b)
    for hearing in (at_a, at_b):
        for heard in (hearing.handled, hearing.read):
            assert sorted(heard) == [(number, None) for number in (1, 2, 3, 4)], "each once, without our header"
            for own in ((1, 2), (3, 4)):
                assert [body for body, _ in heard if body in own] == [*own], "in order"


# -- both have dialled ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relay", [False, True], ids=["alone", "relay"])
@pytest.mark.parametrize("protocols", [*itertools.product(PROTOCOLS, PROTOCOLS)], ids="-".join)
async def test_buses_that_have_dialled_each_other_hear_each_publication_once(protocols: tuple[str, str], relay: bool) -> None:
    async with each_other(place(protocols[0]), place(protocols[1]), relay=relay) as (at_a, at_b):
        await check_both_ways(at_a, at_b)


TCP = "ubre+tcp://127.0.0.1:0"


async def test_two_that_dial_each_other_at_the_same_time_lose_nothing_and_hear_nothing_twice() -> None:
    for _ in range(6):
        async with AsyncExitStack() as stack:
            a, b = barrier(Bus()), barrier(Bus())
            hearing = [Hearing(a), Hearing(b)]
            to_a, to_b = [await stack.enter_async_context(bus.serve(place("ubre"))) for bus in (a, b)]
            async with anyio.create_task_group() as group:
                group.start_soon(stack.enter_async_context, a.connect(to_b.url))
                group.start_soon(stack.enter_async_context, b.connect(to_a.url))
            for number in range(3):
                await a.publish("news.x", number)
                await b.publish("news.x", 10 + number)
            await all_is_there(a, b)
            for each in hearing:
                assert sorted(body for body, _ in each.handled) == [0, 1, 2, 10, 11, 12]


# -- one has dialled twice -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serves", [False, True], ids=["client", "serves too"])
@pytest.mark.parametrize("protocols", [("ubre", "ubre"), ("csb", "ubre"), ("jrep", "uprotocol"), ("csb", "jrep")], ids="-".join)
@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_a_bus_that_has_dialled_another_twice_hears_each_publication_once(
    when: str, protocols: tuple[str, str], serves: bool
) -> None:
    a, b = barrier(Bus()), barrier(Bus())
    at_a, at_b = Hearing(a), Hearing(b) if when == "before" else None
    async with AsyncExitStack() as stack:
        if serves:
            await stack.enter_async_context(b.serve(place("ubre")))
        urls = [(await stack.enter_async_context(a.serve(place(protocol)))).url for protocol in protocols]
        await stack.enter_async_context(b.connect(urls[0]))
        if when == "between":
            at_b = Hearing(b)
            await all_is_there(b)
        await stack.enter_async_context(b.connect(urls[1]))
        at_b = at_b or Hearing(b)
        await all_is_there(b)
        async with reading(at_a, at_b):
            await check_both_ways(at_a, at_b)


async def test_a_client_that_has_dialled_a_broker_twice_hears_each_publication_once() -> None:
    server, client = barrier(Bus()), barrier(Bus())
    at_server, at_client = Hearing(server), Hearing(client)
    urls = place("csb"), place("csb")
    async with Broker(clients=urls[0], servers=urls[1]) as broker, connect(broker.server_urls[0], bus=server):
        async with client.connect(urls[0]), client.connect(urls[0]), reading(at_server, at_client):
            await check_both_ways(at_server, at_client)


# -- links that break ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocols", [("ubre", "ubre"), ("csb", "ubre"), ("uprotocol", "jrep")], ids="-".join)
@pytest.mark.parametrize("broken", [0, 1], ids=["opened by the publisher", "opened by the other"])
async def test_nothing_is_lost_or_comes_twice_while_one_of_two_links_breaks_and_comes_back(
    broken: int, protocols: tuple[str, str]
) -> None:
    async with each_other(place(protocols[0]), place(protocols[1])) as (at_a, at_b):
        a, b = at_a.bus, at_b.bus
        link = (a, b)[broken]._links.opened[0]
        sent = 0

        async def publish(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                await a.publish("news.x", sent)
                sent += 1
                if sent % 10 == 0:
                    await anyio.lowlevel.checkpoint()

        for _ in range(3):
            await publish(20)
            link.abort(Closed(1006, "cut"), comes_back=True)
            await publish(50)
            await eventually(lambda: link.state.value == "up" and len(a.peers) == len(b.peers) == 2)
            await publish(20)
        await eventually(lambda: at_b.has(sent - 1))
        await all_is_there(a, b)
        for heard in (at_b.handled, at_b.read):
            assert sorted(body for body, _ in heard) == list(range(sent))


# -- who is somebody else ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stranger(url: str, *said: str, claim: str | None = None) -> AsyncIterator[tuple[Bus, list[dict[str, Any]]]]:
    """Somebody who dials a bus and has not its interest at heart: a bus whose frames a test reads, and can make up."""
    frames: list[dict[str, Any]] = []
    async with connect(url, bus=barrier(Bus())) as client:
        link = core_of(client.peers[0]).link
        receive: Any = link.session.receive

        class Spy:
            usual = None

            def __getattr__(self, name: str) -> Any:
                return getattr(session, name)

            def receive(self, frame: bytes, now: float) -> SessionOutput:
                frames.append(json.loads(frame))
                output: SessionOutput = receive(frame, now)
                return output

        session = link.session
        link.session, link.usual = Spy(), None
        if claim is not None:
            link.runtime.bus_identities._secret = claim
            assert await client.peers[0].extended()
        yield client, frames


def headers_of(frames: list[dict[str, Any]]) -> list[str | None]:
    return [frame.get("headers", {}).get("polybus-via") for frame in frames if "publish" in frame]


async def test_publications_to_different_buses_carry_nothing_of_it() -> None:
    a, c = Bus(), barrier(Bus())
    heard: list[Any] = []
    c.on("news.x")(partial(_note, heard))
    async with a.serve(place("ubre")) as to_a, c.serve(place("ubre")) as to_c, a.connect(to_c.url):
        async with stranger(to_a.url, claim="s" * 32) as (client, frames), client.subscribe("news.x") as news:
            seen: list[Any] = []

            def deliver(message: Message, peer: PeerCore) -> None:
                seen.append(message.headers)
                c._pubsub.receiver.deliver(message, peer)

            setattr(c._links, "deliver", deliver)  # noqa: B010
            await a.publish("news.x", 1)
            assert (await anext(news)).body == 1
            await eventually(lambda: heard)
            assert headers_of(frames) == seen == [None]


async def test_a_stranger_is_told_nothing_with_which_it_could_pass_for_another_bus() -> None:
    async with each_other(place("ubre"), place("ubre")) as (at_a, at_b):
        a, b = at_a.bus, at_b.bus
        (to_a,) = a._links.gates
        (to_b,) = b._links.gates
        secrets = {a._services.running.bus_identities._secret, b._services.running.bus_identities._secret}
        async with stranger(to_b.url) as (asks, said_by_b):
            assert await asks.peers[0].extended()
            answers = [frame["body"]["proof"] for frame in said_by_b if "success" in frame]
            assert answers and all(secret not in json.dumps(frame) for secret in secrets for frame in said_by_b)
            for claim in (answers[0], b._services.id, a._services.id, "x" * 32):
                async with stranger(to_a.url, claim=claim) as (liar, frames), liar.subscribe("news.x") as news:
                    await a.publish("news.x", claim)
                    assert (await anext(news)).body == claim
                    assert headers_of(frames) == [None], "it learns no id"
        await eventually(lambda: len(at_b.read) == 4)
        await all_is_there(a, b)
        at_b.check(answers[0], b._services.id, a._services.id, "x" * 32)


async def test_who_dials_twice_learns_only_its_own_ids_and_nobody_misses_anything_for_what_it_says() -> None:
    async with each_other(place("ubre"), place("ubre")) as (at_a, at_b):
        a, b = at_a.bus, at_b.bus
        (to_a,), (to_b,) = a._links.gates, b._links.gates
        async with (
            stranger(to_a.url, claim="x" * 32) as (one, first),
            stranger(to_a.url, claim="x" * 32) as (two, second),
            stranger(to_b.url) as (forger, _),
            one.subscribe("news.x") as news,
            two.subscribe("news.x") as again,
        ):
            await a.publish("news.x", "a first one")
            await anext(news)
            await anext(again)
            (learned,) = set(headers_of([*first, *second]))
            assert learned is not None
            await eventually(lambda: at_b.has("a first one"))
            # It says what it has learned, and what it might guess, to the other bus before that hears of the next one.
            peer = forger.peers[0]
            id = a._services.id
            for via in (learned, learned.replace(id, "y"), f"-.0..0,{id}", f"{id}.0.{id}.999,z"):
                forged = Message(Kind.PUBLISH, "news.x", None, b'"forged"', headers={"polybus-via": via})
                core_of(peer).link.write(forged, core_of(peer))
            await peer.request("barrier")
            for number in range(5):
                await a.publish("news.x", number)
            await eventually(lambda: at_b.has(*range(5)))
            await all_is_there(a, b)
            assert [body for body, _ in at_b.read if body != "forged"] == ["a first one", *range(5)]


@asynccontextmanager
async def imitated(third: Bus) -> AsyncIterator[tuple[Hearing, Bus, list[dict[str, Any]]]]:
    """A bus has dialled a third one and a server, which dials the third too and says there what it was told."""
    b, server = barrier(Bus()), Bus()
    at_b = Hearing(b)
    async with third.serve(place("ubre")) as for_b, third.serve(place("ubre")) as for_all, server.serve(place("ubre")) as bait:
        async with b.connect(for_b.url), b.connect(bait.url), reading(at_b):
            told = server._services.running.bus_identities._names
            await eventually(lambda: told)
            assert set(told.values()) == {b._services.running.bus_identities._secret}
            async with stranger(for_all.url, claim=next(iter(told.values()))) as (liar, frames):
                yield at_b, liar, frames


@pytest.mark.parametrize("identity", [lambda url: url, lambda url: Identity(object(), key=url)], ids=["value", "key"])
async def test_a_server_cannot_pass_for_a_bus_that_has_dialled_it_where_its_identity_is_another(identity: Any) -> None:
    third = barrier(Bus(authenticate=lambda handshake: identity(handshake.url)))
    async with imitated(third) as (at_b, liar, frames), liar.subscribe("news.x") as news:
        for number in range(3):
            await third.publish("news.x", number)
            assert (await anext(news)).body == number
        assert headers_of(frames) == [None] * 3, "it learns no id of what goes to the other"
        await eventually(lambda: at_b.has(*range(3)))
        await all_is_there(third)
        at_b.check(*range(3))


async def test_links_of_one_identity_and_of_none_that_is_known_are_one_bus_all_the_same() -> None:
    here, there = BusIdentities(), BusIdentities()
    peers: list[Any] = [object() for _ in range(6)]
    said = there.introduction(peers[0])["secret"]
    question = here.introduction(peers[0])
    here.take_proof(peers[0], there.answer(question["nonce"])["proof"])
    for peer, identity in zip(peers[1:], ("ann", "ann", None, "eve", "eve"), strict=True):
        assert here.take_secret(peer, said, identity)
    assert here.same(peers[:4]) == (tuple(peers[:4]),)
    apart = {tuple(peers[1:3]), tuple(peers[4:])}
    assert set(here.same(peers)) == apart, "and the others are none"


async def test_a_subscriber_that_comes_while_an_upstream_has_not_answered_misses_nothing_after_it_has_subscribed() -> None:
    """It might be the same bus; until that is known it is sent nothing, and its subscription is not confirmed."""
    go = anyio.Event()

    async def authorize(peer: Peer, verb: str, subject: Any) -> bool:
        if subject == "first":
            await go.wait()
        return True

    busy, a, b = Bus(authorize=authorize), barrier(Bus()), barrier(Bus())
    at_b = Hearing(b)
    async with busy.serve(place("ubre")) as to_busy, a.serve(place("ubre")) as to_a, b.serve(place("ubre")):
        async with a.connect(to_busy.url) as busy_peer:
            await a.publish("first", 1)  # what comes behind it waits there
            identities = a._services.running.bus_identities
            identities._asked.clear()
            identities._proofs.clear()
            identities._told.clear()
            a._pubsub.announcer.introduce(core_of(busy_peer))
            assert core_of(busy_peer) in identities.pending
            async with b.connect(to_a.url), reading(at_b):
                for number in range(5):
                    await a.publish("news.x", number)
                await eventually(lambda: at_b.has(4))
                await all_is_there(b)
                at_b.check(*range(5))
                assert not identities.held_out
                go.set()


@pytest.mark.parametrize("waiting_bytes", [16 * 1024 * 1024, 20_000], ids=["all fit", "few fit"])
async def test_hellos_that_wait_for_an_upstream_to_answer_are_charged_in_one_task_and_answered_in_the_end(
    waiting_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polybus._core.peer.negotiation.HELLO_TIMEOUT", 4 * BOUND)  # however slow this machine is
    upstream = object()
    async with Bus(limits=Limits(waiting_bytes=waiting_bytes)) as a, a.serve(TCP) as to_a:
        identities = a._services.running.bus_identities
        identities.pending[upstream] = None  # one that was dialled and says nothing
        async with await anyio.connect_tcp("127.0.0.1", urlsplit(to_a.url).port or 0) as stream:
            raw, body = RawPeer(stream), {"v": 1, "asks": "z", "secret": "s" * 32, "pad": "x" * 1000}
            for number in range(200):
                await raw.send({"request": "_polybus.hello", "id": number, "body": body})
            await raw.send({"request": "no", "id": 200})
            while (await raw.receive()).get("fail") != 200:  # it does not wait
                pass
            (peer,) = a.peers
            waiting = 201 - len(raw.seen)
            assert core_of(peer).budget.held > waiting * 1000
            assert waiting == 200 if waiting_bytes > 1_000_000 else 0 < waiting < 20, "the others do not wait"
            assert len(core_of(peer)._scopes or ()) == 1
            identities.take_proof(upstream, None)
            while len(raw.seen) < 201:
                await raw.receive()
            assert core_of(peer).budget.held == 0
            identities.pending[upstream] = identities.held_out[core_of(peer)] = None
            await raw.send({"request": "_polybus.hello", "id": 201, "body": body})
            await eventually(lambda: core_of(peer).budget.held > 0)
        await eventually(lambda: core_of(peer).budget.held == 0 and not a.peers)


# -- what is kept --------------------------------------------------------------------------------------------------------


async def test_nothing_is_kept_of_peers_that_have_gone() -> None:
    async with Bus() as a:
        async with a.serve(place("ubre")) as to_a:
            identities = a._services.running.bus_identities
            for _ in range(3):
                async with stranger(to_a.url, claim="x" * 32), stranger(to_a.url, claim="y" * 32):
                    assert len(identities._names) == 2
                await eventually(lambda: not a.peers)
                b = Bus()
                async with b.serve(place("ubre")) as to_b, a.connect(to_b.url), b.connect(to_a.url):
                    assert len(identities._names) == 2
                await eventually(lambda: not a.peers)
            kept = identities._names, identities._asked, identities._proofs, identities._told
            assert not any((*kept, identities.pending, identities.held_out))


@pytest.mark.parametrize("claim", [None, 7, "", "short", "x" * 65, ["x" * 32], {"a": 1}, "\ud800" * 20])
def test_a_claim_may_be_anything(claim: Any) -> None:
    here, peers = BusIdentities(), [object(), object(), object()]
    opened: Any = peers[0]
    asked = here.introduction(opened)
    here.take_proof(opened, claim)
    for peer in peers[1:]:
        assert here.take_secret(peer, claim)
    assert len(here.same(peers)) <= 1
    assert set(here.answer(claim)) <= {"proof"}
    assert asked["secret"] not in here.answer(claim).values()


def test_who_has_said_something_else_before_is_not_compared_again() -> None:
    here, there = BusIdentities(), BusIdentities()
    opened, accepted = object(), object()
    question = here.introduction(opened)
    here.take_proof(opened, there.answer(question["nonce"])["proof"])
    said = there.introduction(object())["secret"]
    assert here.take_secret(accepted, "something else, long enough")
    assert here.take_secret(accepted, said)
    assert here.same((opened, accepted)) == ()
    another = object()
    assert here.take_secret(another, said)
    assert here.same((opened, accepted, another)) == ((opened, another),)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("asked", [False, True], ids=["", "asked meanwhile"])
async def test_a_bus_that_comes_back_says_who_it_is_before_what_waited_for_the_connection(protocol: str, asked: bool) -> None:
    def publishes_at_once(peer: Peer, verb: str, subject: str | int) -> bool:
        if verb == "publish" and subject == "poke":  # nothing has been read yet of what comes behind it
            a.publish_nowait("news.x", 1)
        return True

    a, b = barrier(Bus(authorize=publishes_at_once)), barrier(Bus())
    at_b = Hearing(b)
    async with a.serve(place(protocol)) as to_a, b.serve(place(protocol)) as to_b:
        async with a.connect(to_b.url, backoff=SOON), b.connect(to_a.url, backoff=SOON) as peer, reading(at_b):
            a.on("poke")(partial(_note, []))
            await all_is_there(a, b)
            core_of(peer).link.abort(Closed(1006, "cut"), comes_back=True)
            b.publish_nowait("poke", to=peer)
            if asked:  # a question that waits itself does not count
                _ = core_of(peer).negotiation.ask()
            await eventually(lambda: at_b.has(1))
            await all_is_there(a, b)
            at_b.check(1)


async def test_a_publication_is_numbered_until_the_server_has_said_that_it_passes_none_on() -> None:
    bus = Bus()
    bus.relay("other.>")  # it asks a server at once whether that passes on publications, too

    async def stay(port: int) -> None:
        async with bus.connect(f"ubre+tcp://127.0.0.1:{port}"):
            await anyio.sleep_forever()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, bus, anyio.create_task_group() as group:
        group.start_soon(stay, listener.extra(SocketAttribute.local_port))
        (accepting,) = listener.listeners
        assert isinstance(accepting, SocketListener)
        async with await accepting.accept() as stream:
            server, ways = RawPeer(stream), list[Any]()
            hello = await server.receive()
            for number in range(2):
                await bus.publish("news.x", number)
                while "publish" not in (frame := await server.receive()):
                    pass
                ways.append(frame.get("headers"))
                await server.send({"fail": hello["id"], "code": 12, "text": "no handler"})
                await eventually(lambda: core_of(bus.peers[0]).passes_on is False)
        assert [way and [*way] for way in ways] == [["polybus-via"], None]
        group.cancel_scope.cancel()


async def test_a_numbered_publication_does_not_overtake_an_earlier_one_that_waits_for_room() -> None:
    far, near, heard = Bus(), Bus(limits=Limits(outbox=1)), list[Any]()
    far.on("news.x")(partial(_note, heard))
    async with pair(far, client=near), anyio.create_task_group() as group:
        near._pubsub.publisher.join_net()  # as a bridge does
        link = core_of(near.peers[0]).link
        link.hold()
        await near.publish("news.x", 0)
        group.start_soon(near.publish, "news.x", 1)
        await anyio.wait_all_tasks_blocked()
        link.release()  # there is room, and the one that waits for it has not run yet
        await near.publish("news.x", 2)
        await eventually(lambda: [body for body, _ in heard] == [0, 1, 2])
    assert far.stats().dropped == 0
