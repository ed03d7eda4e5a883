"""npm ubre 0.0.23 as the server of our client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, Disconnected, NoHandler, RemoteError, RequestError, connect
from polybus.errors import Code
from polybus.events import LinkUp
from tests.integration.interop.node_peer import BODIES, NodePeer, Rejected, node_server
from tests.support import BOUND

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def met(ws: str, bus: Bus | None = None) -> AsyncIterator[tuple[NodePeer, Bus]]:
    """A Node server, and a bus with a link to it."""
    async with node_server(ws) as node, connect(node.url, bus=bus, backoff=Backoff(initial=0.01)) as client:
        await node.event("connected")
        yield node, client


# -- we ask --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["echo", "later"])
async def test_a_request_is_answered_with_what_the_handler_returned(ws: str, handler: str) -> None:
    async with met(ws) as (_, bus):
        with anyio.fail_after(BOUND):
            for body in BODIES:
                assert await bus.request(handler, body) == body
            assert await bus.request("nothing") is None


async def test_a_handler_that_throws_is_a_remote_error_with_its_message(ws: str) -> None:
    async with met(ws) as (_, bus):
        with anyio.fail_after(BOUND), pytest.raises(RemoteError) as caught:
            await bus.request("fail")
        assert caught.value.code is Code.UNKNOWN
        assert caught.value.text == "the pump is dry"
        assert caught.value.subject == "fail"
        assert caught.value.detail["code"] == "EPUMP"
        assert caught.value.detail["pressure"] == 0


@pytest.mark.parametrize(
    ("reason", "text", "detail"),
    [
        ("too hot", "too hot", None),
        ({"degrees": 90}, "", {"degrees": 90}),
        ({"message": "too hot", "code": "EHOT"}, "too hot", {"message": "too hot", "code": "EHOT"}),
        ([1, 2], "", [1, 2]),
        (42, "", 42),
        (False, "", False),
        ("", "", None),
    ],
)
async def test_whatever_a_promise_is_rejected_with_is_a_remote_error(ws: str, reason: Any, text: str, detail: Any) -> None:
    async with met(ws) as (_, bus):
        with anyio.fail_after(BOUND), pytest.raises(RemoteError) as caught:
            await bus.request("reject", reason)
        assert (caught.value.text, caught.value.detail) == (text, detail)


async def test_a_request_that_nobody_handles_is_no_handler(ws: str) -> None:
    async with met(ws) as (_, bus):
        with anyio.fail_after(BOUND), pytest.raises(NoHandler):
            await bus.request("nobody.here")


async def test_a_thousand_requests_are_in_flight_and_each_gets_its_own_answer(ws: str) -> None:
    async with met(ws) as (_, bus):
        # The server answers none before all are there, and then the last one first.
        replies = [bus.request("gather", {"n": n, "of": 1000}) for n in range(1000)]
        assert bus.stats().pending == 1000
        with anyio.fail_after(BOUND):
            assert [await reply for reply in replies] == list(range(1000))
        stats = bus.stats()
        assert (stats.pending, stats.late, stats.malformed) == (0, 0, 0)


async def test_the_requests_in_flight_fail_when_the_server_is_killed(ws: str) -> None:
    async with met(ws) as (node, bus):
        replies = [bus.request("gather", {"n": n, "of": 101}) for n in range(100)]
        assert await bus.request("echo", 1) == 1  # it has read the hundred before
        await node.kill()
        with anyio.fail_after(BOUND):
            for reply in replies:
                with pytest.raises(Disconnected) as caught:
                    await reply
                assert caught.value.sent
        assert bus.stats().pending == 0


# -- publications --------------------------------------------------------------------------------------------------------


async def test_a_subscription_gets_what_the_server_publishes_until_it_is_left(ws: str) -> None:
    async with met(ws) as (node, bus):
        async with bus.subscribe("news.today") as news:
            # Entering returned: the server knows.
            assert await node.event("subscribed") == {"event": "subscribed", "topic": "news.today"}
            await node.tell("publish", topic="news.today", body={"title": "hello"})
            await node.tell("publish", topic="news.other", body="not for us")
            await node.tell("publish", topic="news.today", body=None)
            with anyio.fail_after(BOUND):
                first, second = await anext(news), await anext(news)
            assert (first.subject, first.body) == ("news.today", {"title": "hello"})
            assert (second.subject, second.body) == ("news.today", None)
        assert await node.event("unsubscribed") == {"event": "unsubscribed", "topic": "news.today"}
        received = bus.stats().received
        await node.tell("publish", topic="news.today", body="nobody hears this")
        with anyio.fail_after(BOUND):
            assert await bus.request("echo", 1) == 1
        assert bus.stats().received == received + 1


async def test_one_server_of_two_is_subscribed_to_and_the_other_is_not_asked(ws: str) -> None:
    async with Bus() as bus, met(ws, bus) as (node, _), node_server(ws) as other, bus.connect(other.url):
        peer = next(peer for peer in bus.peers if f":{node.port}" in peer.address)
        async with bus.subscribe("news") as everybodys:
            async with peer.subscribe("news") as news, peer.subscribe("more") as more:
                for topic in ("news", "news", "more"):
                    assert (await node.event("subscribed"))["topic"] == topic
                await other.tell("publish", topic="more", body="it was not asked for this")
                await other.tell("publish", topic="news", body="of the other")
                with anyio.fail_after(BOUND):
                    assert (await anext(everybodys)).body == "of the other"
                    await node.tell("publish", topic="news", body=1)
                    await node.tell("publish", topic="more", body=2)
                    first, second = await anext(news), await anext(more)
                    assert [(m.body, m.peer) for m in (first, second)] == [(1, peer), (2, peer)]
                    assert (await anext(everybodys)).body == 1
            assert (await node.event("unsubscribed"))["topic"] == "more"
            await node.tell("publish", topic="news", body="the bus still wants it")
            with anyio.fail_after(BOUND):
                assert (await anext(everybodys)).body == "the bus still wants it"
        assert (await node.event("unsubscribed"))["topic"] == "news"
        assert [frame for frame in await other.tell("frames") if "subscribe" in frame] == [
            '{"subscribe":"news"}',
            '{"unsubscribe":"news"}',
        ]


async def test_a_server_that_comes_back_is_asked_again_by_who_subscribed_to_it(ws: str) -> None:
    async with met(ws) as (node, bus), bus.peers[0].subscribe("news") as news:
        events = bus.events()
        await node.kill()
        async with node_server(ws, node.port) as again:
            with anyio.fail_after(BOUND):
                while not isinstance(await anext(events), LinkUp):
                    pass
                assert await bus.request("echo", 1) == 1
                await again.tell("publish", topic="news", body="we are back")
                assert (await anext(news)).body == "we are back"


async def test_publications_of_the_server_keep_their_order(ws: str) -> None:
    async with met(ws) as (node, bus), bus.subscribe("count") as numbers:
        for n in range(100):
            await node.tell("publish", topic="count", body=n)
        with anyio.fail_after(BOUND):
            assert [(await anext(numbers)).body for _ in range(100)] == list(range(100))


async def test_the_server_gets_what_we_publish_until_it_unsubscribes(ws: str) -> None:
    async with met(ws) as (node, bus):
        await node.tell("subscribe", topic="alarm.pump")
        await bus.publish("alarm.pump", {"level": 3})
        await bus.publish("alarm.door", "it did not ask for this, and drops it")
        await bus.publish("alarm.pump", 4)
        assert (await node.event("published"))["body"] == {"level": 3}
        assert (await node.event("published"))["body"] == 4
        await node.tell("unsubscribe", topic="alarm.pump")
        await bus.publish("alarm.pump", 5)
        with anyio.fail_after(BOUND):
            assert await bus.request("echo", 1) == 1
        assert '{"publish":"alarm.pump","body":5}' in await node.tell("frames")  # a client's publication always goes
        await node.tell("subscribe", topic="alarm.pump")
        await bus.publish("alarm.pump", 6)
        assert (await node.event("published"))["body"] == 6


async def test_a_subscription_is_restored_when_the_server_comes_back(ws: str) -> None:
    async with met(ws) as (node, bus), bus.subscribe("news") as news:
        events = bus.events()
        await node.kill()
        async with node_server(ws, node.port) as again:
            with anyio.fail_after(BOUND):
                while not isinstance(event := await anext(events), LinkUp):
                    pass
                assert event.again
                assert await bus.request("echo", 1) == 1
                await again.tell("publish", topic="news", body="we are back")
                assert (await anext(news)).body == "we are back"
            subscribed = [frame for frame in await again.tell("frames") if "subscribe" in frame]
            assert subscribed == ['{"subscribe":"news"}']
        assert bus.stats().reconnects == 1


# -- the server asks -----------------------------------------------------------------------------------------------------


async def test_the_server_asks_us(ws: str) -> None:
    bus = Bus()

    @bus.handle("plus")
    async def plus(body: list[int]) -> int:
        await anyio.lowlevel.checkpoint()
        return sum(body)

    @bus.handle("refuse")
    async def refuse() -> None:
        raise RequestError(Code.FAILED_PRECONDITION, "the door is locked")

    @bus.handle("fail")
    async def fail() -> None:
        raise ValueError("the password is swordfish")

    async with met(ws, bus) as (node, _):
        assert await node.tell("request", subject="plus", body=[1, 2, 3]) == 6
        with pytest.raises(Rejected) as refused:
            await node.tell("request", subject="refuse")
        assert refused.value.value == "the door is locked"
        with pytest.raises(Rejected) as failed:
            await node.tell("request", subject="fail")
        assert str(failed.value.value).startswith("internal error ")
        with pytest.raises(Rejected) as unknown:
            await node.tell("request", subject="nobody.here")
        assert unknown.value.value == "NotFound"


async def test_a_thousand_requests_of_the_server_get_each_its_own_answer(ws: str) -> None:
    bus = Bus()

    @bus.handle("number")
    async def number(body: Any) -> int:
        await anyio.lowlevel.checkpoint()
        return int(body["n"])

    async with met(ws, bus) as (node, _):
        assert await node.tell("flood", subject="number", count=1000) == list(range(1000))


async def test_the_server_closes_and_we_come_back_by_ourselves(ws: str) -> None:
    async with met(ws) as (node, bus):
        await node.tell("close")
        await node.event("connected")
        with anyio.fail_after(BOUND):
            assert await bus.request("echo", "again") == "again"
