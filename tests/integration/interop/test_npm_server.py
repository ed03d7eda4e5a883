"""npm ubre 0.0.23 as the server of our client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, NoHandler, RemoteError, RequestError, connect
from polybus.errors import Code
from polybus.events import LinkUp
from tests.support import next_event

from .node_peer import BODIES, NodePeer, Rejected, node_server


@asynccontextmanager
async def met(bus: Bus | None = None) -> AsyncIterator[tuple[NodePeer, Bus]]:
    async with node_server("ws8") as node, connect(node.url, bus=bus, backoff=Backoff(initial=0.01)) as client:
        await node.event("connected")
        yield node, client


REASONS: list[tuple[Any, str, Any]] = [
    ("too hot", "too hot", None),
    ({"degrees": 90}, "", {"degrees": 90}),
    ({"message": "too hot", "code": "EHOT"}, "too hot", {"message": "too hot", "code": "EHOT"}),
    ([1, 2], "", [1, 2]),
    (42, "", 42),
    (False, "", False),
    ("", "", None),
]
"""What a promise is rejected with; text and detail of our error."""


async def test_our_requests_are_answered_and_whatever_a_promise_is_rejected_with_is_a_remote_error() -> None:
    async with met() as (_, bus):
        for handler in ("echo", "later"):
            for body in BODIES:
                assert await bus.request(handler, body) == body
        assert await bus.request("nothing") is None
        for reason, text, detail in REASONS:
            with pytest.raises(RemoteError) as caught:
                await bus.request("reject", reason)
            assert (caught.value.text, caught.value.detail) == (text, detail)
        with pytest.raises(RemoteError) as caught:
            await bus.request("fail")
        assert (caught.value.code, caught.value.text, caught.value.subject) == (Code.UNKNOWN, "the pump is dry", "fail")
        assert (caught.value.detail["code"], caught.value.detail["pressure"]) == ("EPUMP", 0)
        with pytest.raises(NoHandler):
            await bus.request("nobody.here")


async def test_a_subscription_gets_what_the_server_publishes_in_order_until_it_is_left() -> None:
    async with met() as (node, bus):
        async with bus.subscribe("news.today", queue=200) as news:
            # Entering returned: the server knows.
            assert await node.event("subscribed") == {"event": "subscribed", "topic": "news.today"}
            await node.tell("publish", topic="news.other", body="not for us")
            for body in ({"title": "hello"}, None, *range(100)):
                await node.tell("publish", topic="news.today", body=body)
            assert [(await anext(news)).body for _ in range(102)] == [{"title": "hello"}, None, *range(100)]
        assert await node.event("unsubscribed") == {"event": "unsubscribed", "topic": "news.today"}
        received = bus.stats().received
        await node.tell("publish", topic="news.today", body="nobody hears this")
        assert await bus.request("echo", 1) == 1
        assert bus.stats().received == received + 1


async def test_a_server_that_comes_back_is_asked_again_for_what_is_subscribed_to() -> None:
    async with met() as (node, bus), bus.peers[0].subscribe("news") as news, bus.subscribe("more") as more:
        events = bus.events()
        await node.kill()
        async with node_server("ws8", node.port) as again:
            assert (await next_event(events, LinkUp)).again
            assert await bus.request("echo", 1) == 1
            await again.tell("publish", topic="news", body="we are back")
            await again.tell("publish", topic="more", body="all of us")
            assert [(await anext(one)).body for one in (news, more)] == ["we are back", "all of us"]
            subscribed = [frame for frame in await again.tell("frames") if "subscribe" in frame]
            assert sorted(subscribed) == ['{"subscribe":"more"}', '{"subscribe":"news"}']
            await again.tell("close")  # in order
            assert (await next_event(events, LinkUp)).again
            assert await bus.request("echo", "again") == "again"
        assert bus.stats().reconnects == 2


async def test_the_server_gets_what_we_publish_until_it_unsubscribes() -> None:
    async with met() as (node, bus):
        await node.tell("subscribe", topic="alarm.pump")
        await bus.publish("alarm.pump", {"level": 3})
        await bus.publish("alarm.door", "it did not ask for this, and drops it")
        await bus.publish("alarm.pump", 4)
        assert (await node.event("published"))["body"] == {"level": 3}
        assert (await node.event("published"))["body"] == 4
        await node.tell("unsubscribe", topic="alarm.pump")
        await bus.publish("alarm.pump", 5)
        assert await bus.request("echo", 1) == 1
        assert '{"publish":"alarm.pump","body":5}' in await node.tell("frames")  # a client's publication always goes
        await node.tell("subscribe", topic="alarm.pump")
        await bus.publish("alarm.pump", 6)
        assert (await node.event("published"))["body"] == 6


async def test_the_server_asks_us_a_thousand_times_at_once_and_gets_our_errors() -> None:
    bus = Bus()

    @bus.handle("number")
    async def number(body: Any) -> int:
        await anyio.lowlevel.checkpoint()
        return int(body["n"])

    @bus.handle("refuse")
    async def refuse() -> None:
        raise RequestError(Code.FAILED_PRECONDITION, "the door is locked")

    @bus.handle("fail")
    async def fail() -> None:
        raise ValueError("the password is swordfish")

    async with met(bus) as (node, _):
        assert await node.tell("flood", subject="number", count=1000) == list(range(1000))
        for subject, says in (("refuse", "the door is locked"), ("fail", "internal error "), ("nobody.here", "NotFound")):
            with pytest.raises(Rejected) as caught:
                await node.tell("request", subject=subject)
            assert str(caught.value.value).startswith(says)
