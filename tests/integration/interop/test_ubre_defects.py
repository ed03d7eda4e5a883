"""Things that npm ubre 0.0.23 was measured to do wrong, and that we do right: those that the contract does not say."""

import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Code, Disconnected, EncodeError, Limits, NotFound, Peer, RequestError, connect
from polybus._util.pattern_index import SubjectIndex
from polybus.events import LinkDown
from tests.integration.interop.node_peer import node_client, node_server
from tests.integration.processes.raw import RawPeer, raw_peer, raw_server
from tests.support import eventually, next_event

URL = "ubre+tcp://127.0.0.1:0"
SOON = Backoff(initial=0.01)


def plant(**options: Any) -> Bus:
    bus = Bus(**options)

    @bus.handle("ping")
    async def ping() -> str:
        return "pong"

    return bus


@asynccontextmanager
async def met(bus: Bus, count: int) -> AsyncIterator[list[tuple[RawPeer, Peer]]]:
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(bus.serve(URL))
        pairs: list[tuple[RawPeer, Peer]] = []
        for number in range(count):
            raw = await stack.enter_async_context(raw_peer(listener.url))
            await eventually(lambda: len(listener.peers) == number + 1)  # noqa: B023  # waited for here
            known = [peer for _, peer in pairs]
            pairs += [(raw, peer) for peer in listener.peers if peer not in known]
        yield pairs


@pytest.mark.parametrize("ws", ["ws7", "ws8"])
async def test_the_version_of_ws_under_the_other_end_makes_no_difference(ws: str) -> None:
    async with plant().serve("ubre+ws://127.0.0.1:0/bus") as listener, node_client(ws, listener.url) as node:
        assert await node.tell("request", subject="ping") == "pong"
    async with node_server(ws) as node, connect(node.url) as bus:
        assert await bus.request("echo", "pong") == "pong"


async def test_a_request_in_flight_fails_when_the_connection_ends_and_is_not_sent_again() -> None:
    async with raw_server() as (url, clients), connect(url, backoff=SOON) as bus:
        raw = await clients.receive()
        reply = bus.request("pay", {"amount": 100})
        assert (await raw.receive())["request"] == "pay"
        await raw.close()
        with pytest.raises(Disconnected) as caught:
            await reply
        assert caught.value.sent
        again = await clients.receive()
        second = bus.request("balance")
        asked = await again.receive()
        assert asked["request"] == "balance"
        await again.send({"success": asked["id"], "body": 7})
        assert await second == 7
        assert bus.stats().pending == 0


async def test_an_answer_counts_only_from_the_peer_that_was_asked_and_with_the_id_that_it_was_given() -> None:
    bus = plant()
    async with met(bus, 2) as [(honest, asked), (forger, _)]:
        reply = asked.request("may.i")
        id = (await honest.receive())["id"]
        token, _, number = id.partition("-")
        assert len(token) >= 10, "ids have a random part"
        guesses: list[Any] = [1, 2, 0, True, 1.0, None, "", "1", f"{token}-0", f"{token}-{int(number) + 1}", f"{token}-x"]
        guesses += [f"{token}-0{number}", f"{token}- {number}", f"{token}-{number}\n", id.swapcase(), [id], {"id": id}]
        await forger.send(*({word: id, "body": "forged"} for word in ("success", "fail")))
        await honest.send(*({"success": guess, "body": "guessed"} for guess in guesses))
        for raw in (forger, honest):
            assert (await raw.ask("ping"))["body"] == "pong"
        assert not reply.done()
        stats = bus.stats()
        assert stats.malformed + stats.late == 2 + len(guesses)
        await honest.send({"success": id, "body": "yes"})
        assert await reply == "yes"


async def test_the_peer_that_was_asked_answers_once_and_cannot_answer_what_it_was_not_asked() -> None:
    bus = plant()
    async with met(bus, 1) as [(raw, peer)]:
        first = peer.request("one")
        id = (await raw.receive())["id"]
        await raw.send({"success": id, "body": 1}, {"success": id, "body": 2}, {"success": id[:-1] + "2", "body": "early"})
        assert await first == 1
        assert (await raw.ask("ping"))["body"] == "pong"
        second = peer.request("two")
        assert not second.done()
        id = (await raw.receive())["id"]
        await raw.send({"success": id, "body": 2})
        assert await second == 2
        assert await first == 1


async def test_a_request_with_an_id_that_is_in_flight_is_refused_and_the_first_one_gets_its_own_answer() -> None:
    bus = plant()
    gates = {"first": anyio.Event(), "second": anyio.Event()}
    ran: list[str] = []

    @bus.handle("slow")
    async def slow(name: str) -> str:
        await gates[name].wait()
        ran.append(name)
        return name

    async with met(bus, 1) as [(raw, _)]:
        await raw.send({"request": "slow", "id": "x", "body": "first"}, {"request": "slow", "id": "x", "body": "second"})
        refused = await raw.receive()
        assert refused["fail"] == "x"
        assert refused["code"] == Code.ALREADY_EXISTS
        gates["second"].set()
        gates["first"].set()
        assert await raw.receive() == {"success": "x", "body": "first"}
        assert ran == ["first"]
        # The id is free again.
        assert await raw.ask("slow", "second", id="x") == {"success": "x", "body": "second"}


async def test_an_answer_to_a_connection_that_is_gone_is_not_made_and_nothing_strange_is_sent_to_the_next() -> None:
    bus = plant()
    started, stopped = anyio.Event(), anyio.Event()

    @bus.handle("slow")
    async def slow() -> str:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return "too late"

    async with raw_server() as (url, clients), connect(url, bus=bus, backoff=SOON):
        raw = await clients.receive()
        await raw.send({"request": "slow", "id": 1})
        await started.wait()
        await raw.close()
        await stopped.wait()
        again = await clients.receive()
        assert await again.ask("ping", id=1) == {"success": 1, "body": "pong"}
        assert len(again.seen) == 1
        stats = bus.stats()
        assert (stats.running, stats.failed) == (0, 0)


async def test_nothing_is_left_of_a_peer_that_subscribed_to_two_thousand_subjects_and_went() -> None:
    bus = plant(limits=Limits(subscriptions=2000))
    async with bus.serve(URL) as listener:
        events = bus.events()
        async with raw_peer(listener.url) as raw:
            await raw.send(*({"subscribe": f"topic.{n}"} for n in range(1990)), *({"subscribe": f"*.{n}"} for n in range(10)))
            assert (await raw.ask("ping"))["body"] == "pong"
            (peer,) = listener.peers
            assert bus._pubsub.remote.size == 2000
            gone = peer.id
            del peer
        event = await next_event(events, LinkDown)
        assert event.peer is not None and event.peer.id == gone
        del event, events
        assert bus._pubsub.remote.size == 0
        assert listener.peers == []
        sent = bus.stats().sent
        await bus.publish("topic.7", "to nobody")
        assert bus.stats().sent == sent
        while gone in {one.id for one in gc.get_objects() if type(one) is Peer}:
            gc.collect()
            await anyio.lowlevel.checkpoint()  # the transport's last callbacks


def test_the_cost_of_a_subscription_does_not_grow_with_those_before_it() -> None:
    compared = 0

    class Text(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    index: SubjectIndex[int] = SubjectIndex()
    for n in range(16_000):
        index.add(Text(f"topic.{n}"), 1)
    assert index.size == 16_000
    for n in range(16_000):
        index.remove(Text(f"topic.{n}"), 1)
    assert index.size == 0
    # To look through those before would be 128 million comparisons; a hash table needs one where something is found.
    assert compared < 200_000


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its text")

    __repr__ = __str__


STRANGE: list[Any] = [
    *(Exception(), ValueError(None), StopAsyncIteration(), ExceptionGroup("", [KeyError()]), UnspeakableError()),
    *(TimeoutError(), RequestError(Code.INTERNAL), NotFound(""), RequestError(Code.ABORTED, detail={object()})),
    *(object(), {1: object()}, float("nan"), "\ud800", b"bytes", 2**80),
]


@pytest.mark.parametrize("debug", [False, True])
async def test_whatever_a_handler_raises_or_returns_is_answered(debug: bool) -> None:
    bus = plant(debug=debug)

    @bus.handle("strange")
    async def strange(number: int) -> Any:
        if isinstance(STRANGE[number], Exception):
            raise STRANGE[number]
        return STRANGE[number]

    async with met(bus, 1) as [(raw, _)]:
        for number, outcome in enumerate(STRANGE):
            answer = await raw.ask("strange", number)
            assert "fail" in answer or not isinstance(outcome, Exception)
            assert "success" in answer or isinstance(outcome, Exception) or answer["code"] == Code.INTERNAL
            assert (await raw.ask("ping"))["body"] == "pong"
        assert bus.stats().running == 0


async def test_nothing_more_is_heard_of_a_peer_that_was_sent_away() -> None:
    bus = plant()
    async with met(bus, 2) as [(raw, peer), (other, _)], bus.subscribe("news") as news:
        await raw.send({"subscribe": "news"}, {"publish": "news", "body": "before"})
        assert (await anext(news)).body == "before"
        await peer.aclose()
        # It has not read our closing frame yet.
        await raw.send({"publish": "news", "body": "after"}, {"request": "ping", "id": 1})
        assert (await raw.receive())[0] == "closed"
        await other.send({"publish": "news", "body": "somebody else"})
        assert (await anext(news)).body == "somebody else"
        await bus.publish("news", "to nobody")
        assert len(raw.seen) == 1
        assert [p.id for p in bus.peers] != [peer.id]


async def test_a_peer_that_a_publication_cannot_be_written_to_does_not_keep_it_from_the_others() -> None:
    bus = plant()
    async with (
        bus.serve(URL) as listener,
        bus.serve(f"{URL}?format=binary&body=raw") as raw_bodies,
        raw_peer(listener.url) as a,
        connect(raw_bodies.url) as bad,
        bad.subscribe("news") as unheard,
        raw_peer(listener.url) as c,
    ):
        for raw in (a, c):
            await raw.send({"subscribe": "news"})
            assert (await raw.ask("ping"))["body"] == "pong"
        # On the second listener bodies are bytes. The publisher is told so, after the others have been served.
        with pytest.raises(EncodeError):
            await bus.publish("news", {"title": "hello"})
        with pytest.raises(EncodeError):
            bus.publish_nowait("news", {"title": "again"})
        for title in ("hello", "again"):
            for raw in (a, c):
                assert await raw.receive() == {"publish": "news", "body": {"title": title}}
        await bus.publish("news", b"bytes")
        assert (await anext(unheard)).body == b"bytes"


async def test_a_hook_that_fails_for_one_peer_does_not_keep_a_publication_from_the_others() -> None:
    unwanted: list[str] = []

    def authorize(peer: Peer, verb: str, subject: Any) -> bool:
        if verb == "deliver" and peer.id in unwanted:
            raise RuntimeError("the table of rights is gone")
        return True

    bus = plant(authorize=authorize)
    async with met(bus, 3) as trio:
        unwanted.append(trio[1][1].id)
        for raw, _ in trio:
            await raw.send({"subscribe": "news"})
            assert (await raw.ask("ping"))["body"] == "pong"
        await bus.publish("news", 1)
        bus.publish_nowait("news", 2)
        for raw, _ in (trio[0], trio[2]):
            assert [await raw.receive(), await raw.receive()] == [{"publish": "news", "body": n} for n in (1, 2)]
        assert (await trio[1][0].ask("ping"))["body"] == "pong"
        assert not any("publish" in said for said in trio[1][0].seen)
