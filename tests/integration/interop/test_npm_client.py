"""npm ubre 0.0.23 as a client of our server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from attrs import frozen

from polybus import Bus, Disconnected, Limits, NoHandler, Peer, RemoteError, RequestError, Unsupported
from polybus.errors import Code
from tests.refusal import refused

from .node_peer import BODIES, NodePeer, Rejected, node_client


@frozen
class Door:
    number: int
    open: bool = False


def plant() -> Bus:
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
async def met(bus: Bus) -> AsyncIterator[tuple[NodePeer, Peer]]:
    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as listener, node_client("ws8", listener.url) as node:
        (peer,) = listener.peers
        yield node, peer


async def refusal(node: NodePeer, subject: str, body: Any = None) -> str:
    with pytest.raises(Rejected) as caught:
        await node.tell("request", subject=subject, body=body)
    return str(caught.value.value)


async def test_its_requests_are_answered_converted_or_refused_in_its_own_words() -> None:
    bus = plant()
    async with met(bus) as (node, _):
        for subject in ("echo", "later"):
            for body in BODIES:
                assert await node.tell("request", subject=subject, body=body) == body
        assert await node.tell("request", subject="door.open", body={"number": 3}) == {"number": 3, "open": True}
        assert "number" in await refusal(node, "door.open", {"number": "three"})
        assert await refusal(node, "nobody.here") == "NotFound"
        assert await refusal(node, "refuse") == "the door is locked"
        assert (await refusal(node, "fail")).startswith("internal error ")
        assert "swordfish" not in "".join(await node.tell("frames"))
        assert bus.stats().failed == 1


async def test_it_gets_what_it_subscribed_to_in_order_until_it_unsubscribes() -> None:
    bus = plant()
    async with met(bus) as (node, _):
        await node.tell("subscribe", topic="news.today")
        await node.tell("request", subject="echo")  # the server has read what came before
        await bus.publish("news.other", "not for it")
        for n in range(100):
            await bus.publish("news.today", n)
        assert [(await node.event("published"))["body"] for _ in range(100)] == list(range(100))
        await node.tell("unsubscribe", topic="news.today")
        await node.tell("request", subject="echo")
        await bus.publish("news.today", "nobody hears this")
        await node.tell("request", subject="echo")
        publications = [frame for frame in await node.tell("frames") if "publish" in frame]
        assert len(publications) == 100
        assert publications[0] == '{"publish":"news.today","body":0}'


async def test_the_server_gets_what_it_publishes() -> None:
    async with met(bus := plant()) as (node, peer), bus.subscribe("alarm.*") as alarms:
        # The package sends publications only for what the other end has subscribed to, and a server does not tell strangers
        # what it listens to; so the client's program has to say it.
        await node.tell("wanted", topic="alarm.pump")
        await node.tell("publish", topic="alarm.pump", body={"level": 3})
        await node.tell("send", text='{"publish":"alarm.door","body":["by hand"]}')
        first, second = await anext(alarms), await anext(alarms)
        assert (first.subject, first.body, first.peer) == ("alarm.pump", {"level": 3}, peer)
        assert (second.subject, second.body) == ("alarm.door", ["by hand"])


async def test_the_server_subscribes_to_one_client_which_then_sends_what_it_publishes() -> None:
    bus = plant()
    async with met(bus) as (node, peer), bus.subscribe("alarm.pump") as everybodys:
        await node.tell("publish", topic="alarm.pump", body="nobody has asked, so the package drops it")
        async with peer.subscribe("alarm.pump") as alarms:
            assert (await node.event("subscribed"))["topic"] == "alarm.pump"
            await node.tell("publish", topic="alarm.door", body="not asked for")
            for n in range(3):
                await node.tell("publish", topic="alarm.pump", body={"level": n})
            messages = [await anext(alarms) for _ in range(3)]
            assert [(await anext(everybodys)).body for _ in range(3)] == [{"level": n} for n in range(3)]
            assert [(m.subject, m.body, m.peer) for m in messages] == [("alarm.pump", {"level": n}, peer) for n in range(3)]
            await refused(peer.subscribe("alarm.*"), Unsupported, match="exact subjects only")
        assert (await node.event("unsubscribed"))["topic"] == "alarm.pump"
        received = bus.stats().received
        await node.tell("publish", topic="alarm.pump", body="nobody asks any more")
        await node.tell("request", subject="echo")
        assert bus.stats().received == received + 1  # the request


async def test_the_server_asks_it_and_gets_its_errors_until_it_is_gone() -> None:
    bus = plant()
    async with met(bus) as (node, peer), peer.subscribe("alarm") as alarms:
        for subject in ("echo", "later"):
            for body in BODIES:
                # Its own handler of that name is passed over: `to` says who is meant.
                assert await bus.request(subject, body, to=peer) == body
        assert await bus.request("nothing", to=peer) is None
        with pytest.raises(RemoteError) as failed:
            await bus.request("fail", to=peer)
        assert failed.value.text == "the pump is dry"
        assert failed.value.detail["code"] == "EPUMP"
        with pytest.raises(NoHandler):
            await bus.request("nobody.here", to=peer)
        await node.tell("publish", topic="alarm", body="last words")
        await node.tell("request", subject="echo")
        await node.kill()
        assert (await anext(alarms)).body == "last words"
        with pytest.raises(Disconnected):
            await anext(alarms)
