"""npm ubre 0.0.23 as a client of our server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from attrs import frozen

from polybus import Bus, Disconnected, Limits, NoHandler, Peer, RemoteError, RequestError, Unsupported
from polybus.errors import Code
from tests.integration.interop.node_peer import BODIES, NodePeer, Rejected, node_client
from tests.support import BOUND

pytestmark = pytest.mark.anyio

URL = "ubre+ws://127.0.0.1:0/bus"


@frozen
class Door:
    number: int
    open: bool = False


def plant() -> Bus:
    """What the client talks to."""
    bus = Bus(limits=Limits(running=1000, total_running=1000))

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        return body

    @bus.handle("later")
    async def later(body: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return body

    @bus.handle("door.open")
    async def open_door(door: Door) -> Door:
        return Door(door.number, open=True)

    @bus.handle("fail")
    async def fail() -> None:
        raise ValueError("the password is swordfish")

    @bus.handle("refuse")
    async def refuse() -> None:
        raise RequestError(Code.FAILED_PRECONDITION, "the door is locked", detail={"key": 4})

    return bus


@asynccontextmanager
async def met(bus: Bus, ws: str) -> AsyncIterator[tuple[NodePeer, Peer]]:
    """A Node client of the bus, and how the bus sees it."""
    async with bus.serve(URL) as listener, node_client(ws, listener.url) as node:
        (peer,) = listener.peers
        yield node, peer


# -- the client asks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["echo", "later"])
async def test_a_request_is_answered_with_what_the_handler_returned(ws: str, handler: str) -> None:
    async with met(plant(), ws) as (node, _):
        for body in BODIES:
            assert await node.tell("request", subject=handler, body=body) == body


async def test_a_request_is_converted_for_the_handler_and_its_result_for_the_wire(ws: str) -> None:
    async with met(plant(), ws) as (node, _):
        assert await node.tell("request", subject="door.open", body={"number": 3}) == {"number": 3, "open": True}


async def test_a_body_that_does_not_fit_the_handler_is_refused(ws: str) -> None:
    async with met(plant(), ws) as (node, _):
        with pytest.raises(Rejected) as caught:
            await node.tell("request", subject="door.open", body={"number": "three"})
        assert "number" in caught.value.value


async def test_a_request_that_nobody_handles_is_refused_with_the_word_of_the_package(ws: str) -> None:
    async with met(plant(), ws) as (node, _):
        with pytest.raises(Rejected) as caught:
            await node.tell("request", subject="nobody.here")
        assert caught.value.value == "NotFound"


async def test_a_failing_handler_is_an_error_without_its_secrets(ws: str) -> None:
    bus = plant()
    async with met(bus, ws) as (node, _):
        with pytest.raises(Rejected) as caught:
            await node.tell("request", subject="fail")
        assert str(caught.value.value).startswith("internal error ")
        assert "swordfish" not in "".join(await node.tell("frames"))
        assert bus.stats().failed == 1


async def test_a_handler_that_refuses_is_an_error_with_its_text(ws: str) -> None:
    async with met(plant(), ws) as (node, _):
        with pytest.raises(Rejected) as caught:
            await node.tell("request", subject="refuse")
        assert caught.value.value == "the door is locked"


async def test_a_thousand_requests_of_the_client_are_in_flight_and_each_gets_its_own_answer(ws: str) -> None:
    bus = plant()
    inside = 0
    full = anyio.Event()

    @bus.handle("gather")
    async def gather(n: Any) -> int:
        nonlocal inside
        inside += 1
        if inside == 1000:
            assert bus.stats().running == 1000
            full.set()
        await full.wait()
        return int(n["n"])

    async with met(bus, ws) as (node, _):
        assert await node.tell("flood", subject="gather", count=1000) == list(range(1000))
        assert bus.stats().running == 0


async def test_with_the_usual_limits_a_thousand_requests_wait_for_their_turn(ws: str) -> None:
    bus = Bus()
    handled: list[int] = []
    most = 0

    @bus.handle("count")
    async def count(body: Any) -> int:
        nonlocal most
        most = max(most, bus.stats().running)
        await anyio.lowlevel.checkpoint()
        handled.append(body["n"])
        return int(body["n"])

    async with met(bus, ws) as (node, _):
        assert await node.tell("flood", subject="count", count=1000) == list(range(1000))
    assert sorted(handled) == list(range(1000))
    assert most <= bus.limits.running


# -- publications --------------------------------------------------------------------------------------------------------


async def test_the_client_gets_what_it_subscribed_to_until_it_unsubscribes(ws: str) -> None:
    bus = plant()
    async with met(bus, ws) as (node, _):
        await node.tell("subscribe", topic="news.today")
        await node.tell("request", subject="echo")  # the server has read what came before
        await bus.publish("news.today", {"title": "hello"})
        await bus.publish("news.other", "not for it")
        assert await node.event("published") == {"event": "published", "topic": "news.today", "body": {"title": "hello"}}
        await node.tell("unsubscribe", topic="news.today")
        await node.tell("request", subject="echo")
        await bus.publish("news.today", "nobody hears this")
        await node.tell("request", subject="echo")
        publications = [frame for frame in await node.tell("frames") if "publish" in frame]
        assert publications == ['{"publish":"news.today","body":{"title":"hello"}}']


async def test_publications_to_the_client_keep_their_order(ws: str) -> None:
    bus = plant()
    async with met(bus, ws) as (node, _):
        await node.tell("subscribe", topic="count")
        await node.tell("request", subject="echo")
        for n in range(100):
            await bus.publish("count", n)
        assert [(await node.event("published"))["body"] for _ in range(100)] == list(range(100))


async def test_the_server_gets_what_the_client_publishes(ws: str) -> None:
    bus = plant()
    async with met(bus, ws) as (node, peer), bus.subscribe("alarm.*") as alarms:
        # The package sends publications only for what the other end has subscribed to, and a server does not tell strangers
        # what it listens to; so the client's program has to say it.
        await node.tell("wanted", topic="alarm.pump")
        await node.tell("publish", topic="alarm.pump", body={"level": 3})
        await node.tell("send", text='{"publish":"alarm.door","body":["by hand"]}')
        with anyio.fail_after(BOUND):
            first, second = await anext(alarms), await anext(alarms)
        assert (first.subject, first.body, first.peer) == ("alarm.pump", {"level": 3}, peer)
        assert (second.subject, second.body) == ("alarm.door", ["by hand"])


async def test_an_on_handler_of_the_server_hears_the_client(ws: str) -> None:
    bus = plant()
    heard: list[tuple[str, Any]] = []
    done = anyio.Event()

    @bus.on("alarm.{place}")
    async def on_alarm(place: str, body: Any) -> None:
        heard.append((place, body))
        if len(heard) == 2:
            done.set()

    async with met(bus, ws) as (node, _):
        for place in ("pump", "door"):
            await node.tell("wanted", topic=f"alarm.{place}")
            await node.tell("publish", topic=f"alarm.{place}", body=len(place))
        with anyio.fail_after(BOUND):
            await done.wait()
    assert heard == [("pump", 4), ("door", 4)]


async def test_the_server_subscribes_to_one_client_which_then_sends_what_it_publishes(ws: str) -> None:
    bus = plant()
    async with met(bus, ws) as (node, peer), bus.subscribe("alarm.pump") as everybodys:
        await node.tell("publish", topic="alarm.pump", body="nobody has asked, so the package drops it")
        async with peer.subscribe("alarm.pump") as alarms:
            assert (await node.event("subscribed"))["topic"] == "alarm.pump"
            await node.tell("publish", topic="alarm.door", body="not asked for")
            for n in range(3):
                await node.tell("publish", topic="alarm.pump", body={"level": n})
            with anyio.fail_after(BOUND):
                messages = [await anext(alarms) for _ in range(3)]
                assert [(await anext(everybodys)).body for _ in range(3)] == [{"level": n} for n in range(3)]
            assert [(m.subject, m.body, m.peer) for m in messages] == [("alarm.pump", {"level": n}, peer) for n in range(3)]
            with pytest.raises(Unsupported, match="exact subjects only"):
                async with peer.subscribe("alarm.*"):
                    raise AssertionError("entered")
        assert (await node.event("unsubscribed"))["topic"] == "alarm.pump"
        received = bus.stats().received
        await node.tell("publish", topic="alarm.pump", body="nobody asks any more")
        await node.tell("request", subject="echo")
        assert bus.stats().received == received + 1  # the request


async def test_a_subscription_to_a_client_ends_when_the_client_is_gone(ws: str) -> None:
    async with met(plant(), ws) as (node, peer), peer.subscribe("alarm") as alarms:
        await node.tell("publish", topic="alarm", body="last words")
        await node.tell("request", subject="echo")
        await node.kill()
        with anyio.fail_after(BOUND):
            assert (await anext(alarms)).body == "last words"
            with pytest.raises(Disconnected):
                await anext(alarms)


# -- the server asks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["echo", "later"])
async def test_the_server_asks_the_client(ws: str, handler: str) -> None:
    bus = plant()
    async with met(bus, ws) as (_, peer):
        with anyio.fail_after(BOUND):
            for body in BODIES:
                # Its own handler of that name is passed over: `to` says who is meant.
                assert await bus.request(handler, body, to=peer) == body


async def test_the_server_asks_the_client_and_gets_its_errors(ws: str) -> None:
    bus = plant()
    async with met(bus, ws) as (_, peer):
        with anyio.fail_after(BOUND):
            with pytest.raises(RemoteError) as failed:
                await bus.request("fail", to=peer)
            with pytest.raises(NoHandler):
                await bus.request("nobody.here", to=peer)
            assert await bus.request("nothing", to=peer) is None
        assert failed.value.text == "the pump is dry"
        assert failed.value.detail["code"] == "EPUMP"


async def test_a_thousand_requests_to_the_client_are_answered_in_any_order(ws: str) -> None:
    bus = plant()
    async with met(bus, ws) as (_, peer):
        replies = [peer.request("gather", {"n": n, "of": 1000}) for n in range(1000)]
        assert bus.stats().pending == 1000
        with anyio.fail_after(BOUND):
            assert [await reply for reply in replies] == list(range(1000))
        assert bus.stats().pending == 0
