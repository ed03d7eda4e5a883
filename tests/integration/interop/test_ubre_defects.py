"""Things that npm ubre 0.0.23 was measured to do wrong, and that we do right: those that the contract does not say."""

import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Code, EncodeError, Limits, NotFound, Peer, RequestError, Unsupported, connect
from polybus.events import LinkDown
from tests.integration.interop.node_peer import node_client, node_server
from tests.raw import RawPeer, raw_peer
from tests.refusal import refused
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
        failed = await raw.receive()
        assert failed["fail"] == "x"
        assert failed["code"] == Code.ALREADY_EXISTS
        gates["second"].set()
        gates["first"].set()
        assert await raw.receive() == {"success": "x", "body": "first"}
        assert ran == ["first"]
        # The id is free again.
        assert await raw.ask("slow", "second", id="x") == {"success": "x", "body": "second"}


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
        await refused(bad.subscribe("news.*"), Unsupported, match="is not a polybus peer")


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
