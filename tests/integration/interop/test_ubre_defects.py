"""Twenty-one things that npm ubre 0.0.23 was measured to do wrong, and that we do right. Each number has its test here."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Code, Disconnected, EncodeError, Limits, NotFound, Peer, RequestError, connect
from polybus._util.pattern_index import SubjectIndex
from polybus.events import FrameRefused, LinkDown, PeerSlow
from tests.integration.interop.node_peer import node_client, node_server, require_node
from tests.integration.interop.raw_websocket import RawPeer, raw_client, raw_server
from tests.support import BOUND

pytestmark = pytest.mark.anyio

URL = "ubre+ws://127.0.0.1:0/bus"
SOON = Backoff(initial=0.01)


def plant(**options: Any) -> Bus:
    """A server that answers ``ping`` with ``pong``."""
    bus = Bus(**options)

    @bus.handle("ping")
    async def ping() -> str:
        return "pong"

    return bus


@asynccontextmanager
async def met(bus: Bus, count: int) -> AsyncIterator[list[tuple[RawPeer, Peer]]]:
    """Raw clients of a bus, each with how the bus sees it."""
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(bus.serve(URL))
        pairs: list[tuple[RawPeer, Peer]] = []
        for _ in range(count):
            raw = await stack.enter_async_context(raw_client(listener.url))
            known = [peer for _, peer in pairs]
            (peer,) = [peer for peer in listener.peers if peer not in known]
            pairs.append((raw, peer))
        yield pairs


async def event_of(bus: Bus, events: Any, kind: type[Any]) -> Any:
    """The next event of a kind."""
    with anyio.fail_after(BOUND):
        while not isinstance(event := await anext(events), kind):
            pass
    return event


# -- 1 -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ws", ["ws7", "ws8"])
async def test_01_the_version_of_ws_under_the_other_end_makes_no_difference(ws: str) -> None:
    require_node()
    async with plant().serve(URL) as listener, node_client(ws, listener.url) as node:
        assert await node.tell("request", subject="ping") == "pong"
    async with node_server(ws) as node, connect(node.url) as bus:
        with anyio.fail_after(BOUND):
            assert await bus.request("echo", "pong") == "pong"


# -- 2, 3: the connection ends while requests are in flight --------------------------------------------------------------


async def test_02_a_request_in_flight_fails_when_the_connection_ends_and_is_not_sent_again() -> None:
    async with raw_server() as server, connect(server.url, backoff=SOON) as bus:
        raw = await server.accept()
        reply = bus.request("pay", {"amount": 100})
        assert (await raw.receive())["request"] == "pay"
        await raw.hang_up()
        with anyio.fail_after(BOUND), pytest.raises(Disconnected) as caught:
            await reply
        assert caught.value.sent
        again = await server.accept()
        second = bus.request("balance")
        asked = await again.receive()
        assert asked["request"] == "balance"
        await again.send({"success": asked["id"], "body": 7})
        with anyio.fail_after(BOUND):
            assert await second == 7
        assert bus.stats().pending == 0
        await again.hang_up()


async def test_03_all_of_ten_requests_fail_when_their_target_closes() -> None:
    bus = plant()
    async with met(bus, 1) as [(raw, peer)]:
        replies = [peer.request("ask", n) for n in range(10)]
        for _ in replies:
            await raw.receive()
        await raw.hang_up()
        with anyio.fail_after(BOUND):
            for reply in replies:
                with pytest.raises(Disconnected):
                    await reply
        assert bus.stats().pending == 0


# -- 4: forged answers ---------------------------------------------------------------------------------------------------


async def test_04_an_answer_counts_only_from_the_peer_that_was_asked() -> None:
    bus = plant()
    async with met(bus, 2) as [(honest, asked), (forger, _)]:
        reply = asked.request("may.i")
        id = (await honest.receive())["id"]
        for guess in (id, 1, "1", id[:-1] + "2"):
            await forger.send({"success": guess, "body": "forged"}, {"fail": guess, "body": "forged"})
        assert (await forger.ask("ping"))["body"] == "pong"
        assert not reply.done()
        await honest.send({"success": id, "body": "yes"})
        with anyio.fail_after(BOUND):
            assert await reply == "yes"
        stats = bus.stats()
        assert stats.malformed + stats.late == 8


async def test_04_the_peer_that_was_asked_answers_once_and_cannot_answer_what_it_was_not_asked() -> None:
    bus = plant()
    async with met(bus, 1) as [(raw, peer)]:
        first = peer.request("one")
        id = (await raw.receive())["id"]
        await raw.send({"success": id, "body": 1}, {"success": id, "body": 2}, {"success": id[:-1] + "2", "body": "early"})
        with anyio.fail_after(BOUND):
            assert await first == 1
        assert (await raw.ask("ping"))["body"] == "pong"
        second = peer.request("two")
        assert not second.done()
        id = (await raw.receive())["id"]
        await raw.send({"success": id, "body": 2})
        with anyio.fail_after(BOUND):
            assert await second == 2
        assert await first == 1


async def test_04_ids_cannot_be_guessed_from_those_of_another_connection() -> None:
    bus = plant()
    async with met(bus, 2) as [(left, first), (right, second)]:
        replies = [first.request("ask"), second.request("ask")]
        ids = [(await raw.receive())["id"] for raw in (left, right)]
        assert ids[0].partition("-")[0] != ids[1].partition("-")[0]
        for reply in replies:
            reply.cancel()


# -- 5: malformed messages -----------------------------------------------------------------------------------------------

FOUL: list[Any] = ['{"a":', "5", "null", '"s"', "true", "[]", "{}", "", "{", b"\x7b\x00", '{"request":"ping"', "[" * 100_000]


async def test_05_a_malformed_message_harms_neither_its_connection_nor_anybody_else() -> None:
    bus = plant()
    async with met(bus, 2) as [(raw, _), (bystander, _)]:
        events = bus.events()
        for count, foul in enumerate(FOUL, start=1):
            await raw.send(foul)
            assert (await raw.ask("ping"))["body"] == "pong"
            assert (await bystander.ask("ping"))["body"] == "pong"
            assert bus.stats().malformed == count
            assert await event_of(bus, events, FrameRefused)


# -- 6: one of two subscribers leaves ------------------------------------------------------------------------------------


async def test_06_when_one_of_two_subscribers_leaves_the_other_goes_on() -> None:
    server = plant()
    async with server.serve(URL) as listener, connect(listener.url) as bus, bus.subscribe("news") as stays:
        async with bus.subscribe("news") as leaves:
            await server.publish("news", 1)
            with anyio.fail_after(BOUND):
                assert [(await anext(stays)).body, (await anext(leaves)).body] == [1, 1]
        with anyio.fail_after(BOUND):
            assert await bus.request("ping") == "pong"  # the server has read whatever leaving has sent
            await server.publish("news", 2)
            assert (await anext(stays)).body == 2


async def test_06_the_same_holds_for_subscribers_on_the_bus_that_publishes() -> None:
    async with Bus() as bus, bus.subscribe("news") as stays:
        async with bus.subscribe("news"):
            pass
        await bus.publish("news", 1)
        with anyio.fail_after(BOUND):
            assert (await anext(stays)).body == 1


# -- 7: one id, two requests ---------------------------------------------------------------------------------------------


async def test_07_a_request_with_an_id_that_is_in_flight_is_refused_and_the_first_one_gets_its_own_answer() -> None:
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


async def test_07_our_own_ids_are_never_used_twice() -> None:
    async with raw_server() as server, connect(server.url) as bus:
        raw = await server.accept()
        replies = [bus.request("ask", n) for n in range(200)]
        asked = [await raw.receive() for _ in replies]
        assert len({frame["id"] for frame in asked}) == 200
        await raw.send(*({"success": frame["id"], "body": frame["body"]} for frame in reversed(asked)))
        with anyio.fail_after(BOUND):
            assert [await reply for reply in replies] == list(range(200))
        await raw.hang_up()


# -- 8: two handlers -----------------------------------------------------------------------------------------------------


async def test_08_a_second_handler_for_a_subject_is_an_error_that_names_the_function() -> None:
    bus = plant()

    async def pong() -> str:
        return "another"

    with pytest.raises(TypeError, match="pong"):
        bus.handle("ping")(pong)
    async with met(bus, 1) as [(raw, _)]:
        assert (await raw.ask("ping"))["body"] == "pong"


# -- 9, 10: what is said while the connection is down --------------------------------------------------------------------


async def test_09_all_of_ten_publications_in_an_outage_are_sent_afterwards_in_order() -> None:
    async with raw_server() as server, connect(server.url, backoff=SOON) as bus:
        raw = await server.accept()
        events = bus.events()
        server.shut()
        await raw.hang_up()
        await event_of(bus, events, LinkDown)
        for n in range(10):
            await bus.publish("news", n)
        assert bus.stats().queued == 10
        server.open()
        again = await server.accept()
        assert [await again.receive() for _ in range(10)] == [{"publish": "news", "body": n} for n in range(10)]
        assert bus.stats().queued == 0
        await again.hang_up()


async def test_10_an_answer_to_a_connection_that_is_gone_is_not_made_and_nothing_strange_is_sent_to_the_next() -> None:
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

    async with raw_server() as server, connect(server.url, bus=bus, backoff=SOON):
        raw = await server.accept()
        await raw.send({"request": "slow", "id": 1})
        with anyio.fail_after(BOUND):
            await started.wait()
            await raw.hang_up()
            await stopped.wait()
        again = await server.accept()
        assert await again.ask("ping", id=1) == {"success": 1, "body": "pong"}
        assert len(again.texts) == 1
        stats = bus.stats()
        assert (stats.running, stats.failed) == (0, 0)
        await again.hang_up()


async def test_10_who_asked_learns_that_the_answer_is_lost() -> None:
    bus, server = plant(), plant()
    started = anyio.Event()

    @bus.handle("slow")
    async def slow() -> None:
        started.set()
        await anyio.sleep_forever()

    async with server.serve(URL) as listener, connect(listener.url, bus=bus, backoff=SOON):
        (peer,) = listener.peers
        reply = peer.request("slow")
        with anyio.fail_after(BOUND):
            await started.wait()
            await peer.aclose()
            with pytest.raises(Disconnected) as caught:
                await reply
        assert caught.value.sent


# -- 11, 12, 13: what a peer leaves behind, and what it costs ------------------------------------------------------------


async def test_11_nothing_is_left_of_a_peer_that_subscribed_to_two_thousand_subjects_and_went() -> None:
    bus = plant(limits=Limits(subscriptions=2000))
    async with bus.serve(URL) as listener:
        events = bus.events()
        async with raw_client(listener.url) as raw:
            await raw.send(*({"subscribe": f"topic.{n}"} for n in range(1990)), *({"subscribe": f"*.{n}"} for n in range(10)))
            assert (await raw.ask("ping"))["body"] == "pong"
            (peer,) = listener.peers
            assert bus._pubsub.remote.size == 2000
            gone = peer.id
            del peer
        event = await event_of(bus, events, LinkDown)
        assert event.peer.id == gone
        del event, events
        assert bus._pubsub.remote.size == 0
        assert listener.peers == []
        sent = bus.stats().sent
        await bus.publish("topic.7", "to nobody")
        assert bus.stats().sent == sent
        with anyio.fail_after(BOUND):
            while gone in {one.id for one in gc.get_objects() if isinstance(one, Peer)}:
                gc.collect()
                await anyio.lowlevel.checkpoint()  # the transport's last callbacks


async def test_12_a_flood_of_subscriptions_ends_at_the_limit_and_delays_nobody() -> None:
    bus = plant()
    async with met(bus, 2) as [(raw, _), (bystander, _)]:
        await raw.send(*({"subscribe": f"topic.{n}"} for n in range(16_000)))
        assert (await bystander.ask("ping"))["body"] == "pong"
        assert (await raw.ask("ping"))["body"] == "pong"
        assert bus._pubsub.remote.size == bus.limits.subscriptions
        assert bus.stats().refused == 16_000 - bus.limits.subscriptions
        await bus.publish("topic.0", "still")
        assert await raw.receive() == {"publish": "topic.0", "body": "still"}


def test_12_the_cost_of_a_subscription_does_not_grow_with_those_before_it() -> None:
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


async def test_13_answered_requests_leave_nothing_behind_on_a_living_connection() -> None:
    server = plant()
    async with server.serve(URL) as listener, connect(listener.url) as bus:
        (there,), (here,) = bus.peers, listener.peers
        with anyio.fail_after(BOUND):
            for _ in range(50):
                replies = [bus.request("ping") for _ in range(100)]
                assert [await reply for reply in replies] == ["pong"] * 100
                assert not there.pending
                assert not here.calls
                assert not here.waiting
        stats = server.stats()
        assert (stats.running, stats.waiting, stats.queued) == (0, 0, 0)


# -- 14, 15: handlers that raise -----------------------------------------------------------------------------------------


async def test_14_neither_message_nor_attributes_nor_stack_of_an_exception_reach_the_peer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = plant()

    class SecretError(Exception):
        def __init__(self) -> None:
            super().__init__("the password is swordfish")
            self.password = "swordfish"

    @bus.handle("fail")
    async def fail() -> None:
        raise SecretError

    async with met(bus, 1) as [(raw, _)]:
        with caplog.at_level(logging.ERROR, "polybus"):
            answer = await raw.ask("fail")
    error_id = answer["body"].removeprefix("internal error ")
    assert answer == {"fail": "q", "body": f"internal error {error_id}", "code": Code.INTERNAL}
    assert "swordfish" in caplog.text and error_id in caplog.text  # what is kept from the peer is in our log


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its text")

    __repr__ = __str__


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    "raised",
    [
        Exception(),
        ValueError(None),
        StopAsyncIteration(),
        ExceptionGroup("", [KeyError()]),
        UnspeakableError(),
        TimeoutError(),
        RequestError(Code.INTERNAL),
        NotFound(""),
        RequestError(Code.ABORTED, detail={object()}),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_15_whatever_a_handler_raises_is_answered(raised: Exception, debug: bool) -> None:
    bus = plant(debug=debug)

    @bus.handle("fail")
    async def fail() -> None:
        raise raised

    async with met(bus, 1) as [(raw, _)]:
        assert (await raw.ask("fail"))["fail"] == "q"
        assert (await raw.ask("ping"))["body"] == "pong"
        assert bus.stats().running == 0


@pytest.mark.parametrize(
    "returned",
    [object(), {1: object()}, float("nan"), "\ud800", b"bytes", 2**80],
    ids=["object", "dict", "nan", "surrogate", "bytes", "int"],
)
async def test_15_whatever_a_handler_returns_is_answered(returned: Any) -> None:
    bus = plant()

    @bus.handle("strange")
    async def strange() -> Any:
        return returned

    async with met(bus, 1) as [(raw, _)]:
        answer = await raw.ask("strange")
        assert "success" in answer or answer["code"] == Code.INTERNAL
        assert (await raw.ask("ping"))["body"] == "pong"
        assert bus.stats().running == 0


async def test_15_a_handler_that_returns_nothing_is_answered_too() -> None:
    bus = plant()

    @bus.handle("nothing")
    async def nothing() -> None:
        return None

    async with met(bus, 1) as [(raw, _)]:
        assert await raw.ask("nothing") == {"success": "q"}


# -- 16, 17, 18, 19: one peer or one function must not matter to the others ----------------------------------------------


async def test_16_nothing_more_is_heard_of_a_peer_that_was_sent_away() -> None:
    bus = plant()
    async with met(bus, 2) as [(raw, peer), (other, _)], bus.subscribe("news") as news:
        await raw.send({"subscribe": "news"}, {"publish": "news", "body": "before"})
        with anyio.fail_after(BOUND):
            assert (await anext(news)).body == "before"
        await peer.aclose()
        # It has not read our closing frame yet.
        await raw.send({"publish": "news", "body": "after"}, {"request": "ping", "id": 1})
        with pytest.raises(anyio.EndOfStream):
            await raw.receive()
        await other.send({"publish": "news", "body": "somebody else"})
        with anyio.fail_after(BOUND):
            assert (await anext(news)).body == "somebody else"
        await bus.publish("news", "to nobody")
        assert raw.texts == []
        assert [p.id for p in bus.peers] != [peer.id]


async def test_17_a_peer_that_a_publication_cannot_be_written_to_does_not_keep_it_from_the_others() -> None:
    bus = plant()
    async with (
        bus.serve(URL) as listener,
        bus.serve(f"{URL}?format=binary&body=raw") as raw_bodies,
        raw_client(listener.url) as a,
        connect(raw_bodies.url) as bad,
        bad.subscribe("news") as unheard,
        raw_client(listener.url) as c,
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
        with anyio.fail_after(BOUND):
            assert (await anext(unheard)).body == b"bytes"


async def test_17_a_hook_that_fails_for_one_peer_does_not_keep_a_publication_from_the_others() -> None:
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
        assert not any("publish" in text for text in trio[1][0].texts)


async def test_17_a_peer_that_hung_up_a_moment_ago_does_not_keep_a_publication_from_the_others() -> None:
    bus = plant()
    async with met(bus, 3) as trio:
        for raw, _ in trio:
            await raw.send({"subscribe": "news"})
            assert (await raw.ask("ping"))["body"] == "pong"
        await trio[1][0].hang_up()
        for n in range(3):
            await bus.publish("news", n)
        for raw, _ in (trio[0], trio[2]):
            assert [(await raw.receive())["body"] for _ in range(3)] == [0, 1, 2]


async def test_18_a_function_that_raises_and_one_that_leaves_take_nothing_from_the_next() -> None:
    bus = plant()
    heard: list[str] = []
    done = anyio.Event()

    @bus.on("news")
    async def first() -> None:
        raise ValueError("the first function fails")

    @bus.on("news")
    async def second(body: str) -> None:
        heard.append(body)
        if len(heard) == 2:
            done.set()

    async with met(bus, 1) as [(raw, _)], bus.subscribe("news") as leaves, bus.subscribe("news") as stays:
        await raw.send({"publish": "news", "body": "a"})
        with anyio.fail_after(BOUND):
            async for message in leaves:
                assert message.body == "a"
                await leaves.__aexit__(None, None, None)
            await raw.send({"publish": "news", "body": "b"})
            assert [(await anext(stays)).body for _ in range(2)] == ["a", "b"]
            await done.wait()
        assert heard == ["a", "b"]
        assert bus.stats().failed == 2


async def test_19_closing_one_peer_leaves_the_others_and_the_bus_as_they_are() -> None:
    bus = plant()
    async with met(bus, 2) as [(raw, peer), (other, _)]:
        await other.send({"subscribe": "news"})
        assert (await other.ask("ping"))["body"] == "pong"
        await peer.aclose("that is all")
        with pytest.raises(anyio.EndOfStream):
            await raw.receive()
        await bus.publish("news", 1)
        assert await other.receive() == {"publish": "news", "body": 1}
        assert (await other.ask("ping"))["body"] == "pong"
        assert bus.ready


# -- 20, 21: publishing --------------------------------------------------------------------------------------------------


async def test_20_what_waits_for_a_peer_that_does_not_read_is_bounded_and_the_others_get_all() -> None:
    body = "x" * 64 * 1024
    bus = plant(limits=Limits(outbox_bytes=1024 * 1024))
    async with met(bus, 2) as [(stalled, slow), (reader, _)]:
        events = bus.events()
        for raw in (stalled, reader):
            await raw.send({"subscribe": "news"})
            assert (await raw.ask("ping"))["body"] == "pong"
        most = 0
        for n in range(1000):
            await bus.publish("news", [n, body])
            assert (await reader.receive())["body"] == [n, body]
            reader.texts.clear()
            most = max(most, bus.stats().queued)
        assert 0 < most * len(body) <= bus.limits.outbox_bytes
        stats = bus.stats()
        assert stats.dropped > 500
        event = await event_of(bus, events, PeerSlow)
        assert (event.peer, event.policy) == (slow, "drop_oldest")
        await stalled.hang_up()


async def test_21_a_client_publishes_although_the_server_has_subscribed_to_nothing() -> None:
    async with raw_server() as server, connect(server.url) as bus:
        raw = await server.accept()
        await bus.publish("alarm.pump", {"level": 3})
        bus.publish_nowait("alarm.door")
        assert await raw.receive() == {"publish": "alarm.pump", "body": {"level": 3}}
        assert await raw.receive() == {"publish": "alarm.door"}
        await raw.hang_up()
