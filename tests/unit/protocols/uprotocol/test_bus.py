"""uProtocol on a bus: who is addressed, what is in time, who goes first, who may."""

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import Bus, Code, Context, Forbidden, Limits, Message, connect
from polybus.events import LinkDown
from polybus.message import Kind
from polybus.plugins.extensions import core_of
from polybus.protocols import UProtocol
from polybus.protocols.uprotocol import IdFactory
from polybus.testing import pair
from tests.support import BOUND, eventually, next_event
from tests.unit.protocols.uprotocol.support import REQUEST

VCU = "//VCU.VIN/body.access/1"
DOOR = "up://VCU.VIN.veh.up.gm.com/body.access/1/door.{}#Door"


@asynccontextmanager
async def joined(server: Bus, client: Bus | None = None, **options: Any) -> AsyncIterator[Bus]:
    with anyio.fail_after(BOUND):
        async with pair(server, protocol=UProtocol(**options), client=client, reconnect=True) as bus:
            yield bus


@pytest.mark.parametrize("format", ["json", "protobuf"])
async def test_a_client_that_says_nothing_of_entities_reaches_a_server_with_a_name(format: Any) -> None:
    server = Bus()

    @server.handle("UpdateDoor")
    async def update(body: Any, message: Message) -> list[Any]:
        return [body, message.attributes["source"], message.attributes["sink"]]

    with anyio.fail_after(BOUND):
        async with (
            server.serve("uprotocol+memory://vcu", protocol=UProtocol(entity=VCU, format=format)),
            connect("uprotocol+memory://vcu", protocol=UProtocol(format=format)) as client,
            client.subscribe("news.*") as news,
        ):
            assert await client.request("UpdateDoor", 1) == [1, "/polybus/1/rpc.response", "/polybus/1/rpc.UpdateDoor"]
            await server.publish("news.today", "x")
            message = await anext(news)
            assert (message.subject, message.attributes["source"]) == ("news.today", f"{VCU}/news.today#Message")
            # By now the client knows who it talks to.
            assert (await client.request("UpdateDoor", 2))[2] == f"{VCU}/rpc.UpdateDoor"
            method = "up://vcu.vin/body.access/1/rpc.UpdateDoor"
            assert await client.request(method, 3) == [3, "/polybus/1/rpc.response", method]


async def test_publications_are_subscribed_to_by_address_pattern_and_plain_subject() -> None:
    server = Bus()
    async with joined(server) as client:
        async with (
            client.subscribe(DOOR.format("front_left")) as left,
            client.subscribe("//vcu.vin.veh.up.gm.com/body.access/*/door.*#Door") as doors,
            client.subscribe("door.>") as plain,
        ):
            await server.publish(DOOR.format("front_left"), {"open": True})
            await server.publish("up://VCU.VIN.veh.up.gm.com/body.access/1/window.rear#Window", {})
            await server.publish(DOOR.format("rear"), {"open": False})
            await server.publish("door.mine", 1)
            assert (await anext(left)).body == {"open": True}
            door = "//vcu.vin.veh.up.gm.com/body.access/1/door.{}#Door"  # the one spelling in which all arrive
            assert [(await anext(doors)).subject for _ in range(2)] == [door.format("front_left"), door.format("rear")]
            assert (await anext(plain)).subject == "door.mine"
            assert [len(queue) for queue in (left, doors, plain)] == [0, 0, 0]


async def test_a_typed_subscription_has_the_attributes_too() -> None:
    server = Bus()
    async with joined(server) as client, client.subscribe("news", returns=dict[str, int]) as news:
        for headers in (None, {"x-a": "1"}):
            await server.publish("news", {"a": 1}, headers=headers)
            message = await anext(news)
            assert (message.body, message.subject, message.headers) == ({"a": 1}, "news", headers)
            assert message.attributes["source"] == "/polybus/1/news#Message"


async def test_a_request_that_lives_for_weeks_is_answered_and_leaves_nothing_behind() -> None:
    """A ttl of 2^32-1 is 49 days: more than a timer of 31 bits of milliseconds holds."""
    server = Bus()
    began, left = anyio.Event(), list[float]()

    @server.handle("work")
    async def work(ctx: Context) -> str:
        left.append(ctx.message.ttl or 0.0)
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    adapter, event = UProtocol(entity=VCU), {**REQUEST, "id": IdFactory().next(), "sink": f"{VCU}/rpc.work"}
    with anyio.fail_after(BOUND):
        async with server.serve("uprotocol+tcp://127.0.0.1:0", protocol=adapter) as listener:
            port = int(listener.url.partition("?")[0].rpartition(":")[2])
            async with await anyio.connect_tcp("127.0.0.1", port) as peer:
                frame = json.dumps({**event, "ttl": 2**32 - 1}).encode()
                await peer.send(len(frame).to_bytes(4, "big") + frame)
                await began.wait()
                assert 2**31 / 1000 < left[0] <= (2**32 - 1) / 1000
                assert server.stats().running == 1
            await eventually(lambda: server.stats().running == 0)


async def test_a_publication_that_ends_in_a_queue_is_not_read() -> None:
    bus = Bus()
    async with joined(bus) as client, bus.subscribe("a") as queue:
        await client.publish("a", 1)
        await client.publish("a", 2)
        await eventually(lambda: len(queue) == 2)
        queue._source._queue[0].expires = anyio.current_time() - 1
        assert (await anext(queue)).body == 2
        assert bus.stats().dropped == 1


async def test_behind_a_link_that_is_down_the_urgent_go_first_and_nobody_starves() -> None:
    server, order = Bus(), list[tuple[str, int]]()
    done = anyio.Event()

    @server.on(">")
    async def hear(body: int, message: Message) -> None:
        order.append((str(message.subject), body))
        if len(order) == 440:
            done.set()

    async with joined(server, priorities={"log.>": "CS0", "door.>": "CS6"}) as client:
        events = client.events()
        await server.peers[0].aclose("a hiccup")
        await next_event(events, LinkDown)
        for number in range(400):
            client.publish_nowait("log.x", number)  # in one turn: the link is down all the while
        for number in range(40):
            client.publish_nowait("door.x", number)
        await done.wait()
    for subject, count in (("log.x", 400), ("door.x", 40)):
        assert [body for name, body in order if name == subject] == list(range(count))
    first = [name for name, _ in order[:46]]
    assert first.count("door.x") == 40  # CS6 overtakes
    assert first.count("log.x") == 6  # one in eight goes to who has waited longest


async def test_of_requests_that_wait_the_urgent_run_first() -> None:
    server = Bus(limits=Limits(running=1))
    ran: list[str] = []
    go = anyio.Event()

    @server.handle("first")
    async def first() -> None:
        await go.wait()

    @server.handle("slow.x")
    @server.handle("fast.x")
    async def work(body: str) -> None:
        ran.append(body)

    async with joined(server, priorities={"fast.>": "CS6"}) as client:
        blocking = client.request("first")
        replies = [client.request("slow.x", f"slow{number}") for number in range(3)]
        replies += [client.request("fast.x", f"fast{number}") for number in range(3)]
        await eventually(lambda: server.stats().waiting == 6)
        go.set()
        await blocking
        for reply in replies:
            await reply
    assert ran == ["fast0", "fast1", "fast2", "slow0", "slow1", "slow2"]


async def test_token_and_level_come_to_authorize_and_never_into_a_log(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[tuple[str, Any, Any]] = []

    def authorize(peer: Any, verb: str, subject: Any, message: Message | None = None) -> bool:
        if message is not None:
            asked.append((verb, message.attributes.get("token"), message.attributes.get("plevel")))
            return message.attributes.get("plevel") == 2
        return True

    server = Bus(authorize=authorize)

    @server.handle("door")
    async def door() -> str:
        return "open"

    caplog.set_level(logging.DEBUG)
    async with joined(server, token="s3cret", permission_level=2) as client:
        assert await client.request("door") == "open"
    async with joined(server, token="s3cret", permission_level=1) as client:
        reply = client.request("door")
        with pytest.raises(Forbidden):
            await reply
        assert reply.message is not None
        assert reply.message.attributes["commstatus"] == Code.PERMISSION_DENIED
    assert asked == [("request", "s3cret", 2), ("request", "s3cret", 1)]
    assert "s3cret" not in caplog.text


async def test_a_relay_passes_on_what_is_left_of_the_time() -> None:
    hub = Bus()
    hub.relay("news")
    with anyio.fail_after(BOUND):
        async with hub.serve("uprotocol+memory://hub"), connect("uprotocol+memory://hub") as listener:
            async with listener.subscribe("news") as news, connect("uprotocol+memory://hub") as talker:
                session = core_of(talker.peers[0]).link.session
                assert session is not None
                # A publication with a ttl, as a vehicle sends it.
                published = Message(Kind.PUBLISH, "news", body=1, ttl=60.0, attributes={"priority": "CS5"})
                core_of(talker.peers[0]).link.send_frames(session.send(published, 0.0)[1])
                message = await anext(news)
                assert message.body == 1
                assert 59_000 < message.attributes["ttl"] <= 60_000
                assert message.attributes["priority"] == "CS5"


EXAMPLE = Path(__file__).parents[4] / "examples" / "vehicle" / "doors.py"
PRINTS = {
    "told no: FAILED_PRECONDITION - front_left is locked",
    "done: front_left: unlocked, 0 % open",
    "  seen: front_left: unlocked, 0 % open (CS1)",
    "done: front_left: unlocked, 50 % open",
    "  seen: front_left: unlocked, 50 % open (CS1)",
    "told no: NOT_FOUND - this vehicle has no door 'roof'",
    "a guest may only look",
}


def test_the_console_moves_doors_watches_them_and_is_told_no() -> None:
    ended = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.splitlines()) == PRINTS
