"""Publishers whose peers have no room, and what a publisher remembers of its ways."""

from typing import Any

import anyio
import pytest

from polybus import Bus, Limits, QueueFull, connect
from polybus._core.bus.bus import parts_of
from polybus._core.pubsub import publisher as module
from polybus.body import JSON
from polybus.message import Kind, Message
from polybus.plugins.extensions import core_of
from tests.loops import virtual_asyncio  # noqa: F401  # the fixture `anyio_backend`

LIMITS = Limits(outbox=1)
URL = "ubre+memory://full-outboxes"


@pytest.mark.parametrize("when_full", ["drop_oldest", "drop_newest", "disconnect"])
async def test_a_client_waits_for_room_until_its_deadline_and_a_server_goes_by_its_policy(when_full: Any) -> None:
    server, client = Bus(limits=LIMITS), Bus(limits=LIMITS)

    @client.on("x")  # so that there are two targets
    async def hear(body: int) -> None: ...

    async with server.serve(URL, when_full=when_full), connect(URL, bus=client), client.subscribe("news") as news:
        await anyio.sleep(1)
        for bus in (client, server):
            core_of(bus.peers[0]).link.pause_writing()
        await client.publish("x", 0)
        began = anyio.current_time()
        with pytest.raises(
            QueueFull, match=r"no room in the outbox to memory://full-outboxes before the timeout: increase timeout="
        ):
            await client.publish("x", 1, timeout=7)
        assert anyio.current_time() - began == pytest.approx(7)
        for number in range(3):
            await server.publish("news", number, timeout=7)
        assert anyio.current_time() - began == pytest.approx(7)
        assert server.stats().dropped == (0 if when_full == "disconnect" else 2)
        await anyio.sleep(1)
        if when_full == "disconnect":
            assert server.stats().reconnects == 0 and client.stats().reconnects == 1
        else:
            core_of(server.peers[0]).link.resume_writing()
            assert (await anext(news)).body == (2 if when_full == "drop_oldest" else 0)


async def test_the_ways_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUTES", 4)
    async with Bus() as bus:
        publisher = parts_of(bus).pubsub.publisher
        for number in range(9):
            await bus.publish(f"news.{number}", 1)
            publisher.publish_to_clients(Message(Kind.PUBLISH, f"news.{number}", None, b"1", JSON))
            assert len(publisher.routes) == len(publisher.client_routes) == number % 4 + 1


async def test_an_outbox_that_was_written_leaves_no_deadlines_behind() -> None:
    server = Bus()

    @server.handle("h")
    async def h(body: int) -> int:
        return body

    async with server.serve(URL), connect(URL) as client:
        link = core_of(client.peers[0]).link
        watched = len(link.runtime.deadlines.watched)
        for number in range(9):
            link.pause_writing()
            reply = client.request("h", number, timeout=3600)
            link.resume_writing()
            assert await reply == number
        assert len(link.runtime.deadlines.watched) <= watched + 1
