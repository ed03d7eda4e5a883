"""A subscription or handler that does not keep up costs itself, is seen before it loses anything, and costs nobody else."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Bus, Limits, Route, bridge, connect
from polybus.events import SubscriptionSlow
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.support import eventually
from tests.unit.answering import Gated
from tests.unit.pubsub.reading import bodies, with_barrier


class Hours:
    """The clock of a bus: it stands still but when a test puts it forward."""

    def __init__(self, bus: Bus) -> None:
        self._runtime = bus._services.running
        self._now = self._runtime.time()
        self._runtime.time = self._runtime.loop.time = self.now

    def now(self) -> float:
        return self._now

    def pass_by(self, seconds: float) -> None:
        self._now += seconds
        self._runtime.deadlines.expire_overdue()


async def publish_all(client: Bus, count: int, subject: str = "x") -> None:
    """So many, and all of them have been taken when this returns."""
    for number in range(count):
        await client.publish(subject, number)
    await client.request("barrier")


def told(events: Any) -> list[SubscriptionSlow]:
    """What has been told of slow subscriptions, and is not read yet."""
    unread = [events._queue.popleft() for _ in range(len(events._queue))]
    return [event for event in unread if isinstance(event, SubscriptionSlow)]


@pytest.mark.parametrize(
    "url", ["ubre+tcp://127.0.0.1:0", "csb+tcp://127.0.0.1:0", "jrep+memory://slow", "uprotocol+memory://slow"]
)
async def test_a_slow_handler_costs_its_own_oldest_and_not_its_link_nor_a_request_on_it(url: str) -> None:
    server, client, go, asked = Bus(), Bus(), anyio.Event(), anyio.Event()
    heard: list[int] = []

    @server.handle("report")
    async def report() -> str:
        asked.set()
        await go.wait()
        return "done"

    @client.on("tick.>", queue=1000)
    async def tick(body: list[Any]) -> None:
        heard.append(body[0])
        if len(heard) == 1:
            await go.wait()

    async with server.serve(url) as listener, connect(listener.url, bus=client):
        events = client.events()
        reply = client.request("report")
        await asked.wait()
        for number in range(3000):
            await server.publish("tick.x", [number, "x" * 1000])
        await eventually(lambda: client.stats().dropped >= 1999)  # all have come: `received` counts other messages too
        assert client.stats().unread == 1000
        go.set()
        assert await reply == "done"
        await eventually(lambda: len(heard) == 1001)
        assert heard == [0, *range(2000, 3000)]
        stats = client.stats()
        assert (stats.dropped, stats.failed, stats.reconnects, stats.unread) == (1999, 0, 0, 0)
        assert len(told(events)) >= 1


async def test_a_handler_that_blocks_publishers_here_loses_its_oldest_of_what_links_bring() -> None:
    server = with_barrier(Bus(limits=Limits(queue_bytes=20_000)))
    gated = Gated(server)
    server.on("x", queue=1, when_full="block")(gated.wait)
    async with pair(server) as client, server.subscribe("x", queue=100, when_full="latest") as other:
        events = server.events()
        await client.publish("x", "000")
        await eventually(lambda: gated.begun)
        for number in range(1, 30):
            await client.publish("x", f"{number:03}" + "x" * 997)
        await client.request("barrier")
        gated.go.set()
        await eventually(lambda: gated.begun[-1].startswith("029"))
        assert bodies(other)[-1].startswith("029")
        heard = [int(body[:3]) for body in gated.begun]
        assert heard == [0, *range(30 - len(heard) + 1, 30)]
        assert server.stats().dropped - other.dropped == 30 - len(heard) == 12
        assert client.stats().reconnects == server.stats().failed == 0
        assert "x" in {event.pattern for event in told(events)}


async def test_one_that_blocks_and_stays_slow_is_told_of_again() -> None:
    async with pair(server := with_barrier(Bus())) as client, server.subscribe("x", queue=2, when_full="block"):
        clock, events = Hours(server), server.events()
        for unread in (2, 11):
            await publish_all(client, 10)
            assert [event.unread for event in told(events)] == [unread]
            clock.pass_by(10)


async def test_a_bridge_whose_far_side_is_slow_costs_its_own_publications_and_not_the_near_link() -> None:
    near, far = with_barrier(Bus(limits=Limits(queue_bytes=200_000))), Bus()
    gated = Gated(far)
    far.on("door.>", queue=1, when_full="block")(gated.wait)
    async with near, far, bridge(near, far, routes=[Route("door.>", "door.{rest}", kinds={"publish"})]), pair(near) as client:
        await publish_all(client, 3000, "door.left")
        assert near.stats().links == 1
        assert near.stats().unread <= 1000 + 200_000 // 200
        assert near.stats().dropped >= 900
        assert await client.request("barrier") is None
        gated.go.set()
        await eventually(lambda: gated.begun[-1:] == [2999])
        assert gated.begun == sorted(gated.begun)
        assert len(gated.begun) + near.stats().dropped == 3000


@asynccontextmanager
async def one_read(server: Bus) -> AsyncIterator[Callable[..., None]]:
    """A link of which one read brings as many publications as it is told."""
    async with pair(server):
        link = core_of(server.peers[0]).link

        def read(count: int, first: int = 0) -> None:
            link.frames_received([b'{"publish":"x","body":%d}' % number for number in range(first, first + count)])

        yield read


@pytest.mark.parametrize("when_full", ["drop_oldest", "drop_newest", "latest", "block"])
@pytest.mark.parametrize("how", ["on", "subscribe"])
async def test_a_reader_that_keeps_up_loses_nothing_of_what_one_read_brings(how: str, when_full: Any) -> None:
    server, heard = Bus(), list[int]()

    async def on_x(body: int) -> None:
        heard.append(body)

    async def read_all() -> None:
        async with server.subscribe("x", queue=10, when_full=when_full) as news:
            async for message in news:
                heard.append(message.body)  # each as it comes

    if how == "on":
        server.on("x", queue=10, when_full=when_full)(on_x)
    async with one_read(server) as read, anyio.create_task_group() as group:
        if how == "subscribe":
            group.start_soon(read_all)
        await anyio.wait_all_tasks_blocked()
        events = server.events()
        for first in range(0, 3000, 1500):
            read(1500, first)
            assert server.stats().unread == 1500
            await eventually(lambda: server.stats().unread == 0)
        assert heard == list(range(3000))
        assert server.stats().dropped == server._services.running.buffered == 0
        assert not told(events), "nobody is slow"
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("when_full", "left"), [("drop_oldest", range(95, 100)), ("drop_newest", range(1, 6)), ("latest", range(95, 100))]
)
async def test_what_a_reader_leaves_of_one_read_goes_by_the_policy(when_full: Any, left: range) -> None:
    server, heard, go = Bus(), [], anyio.Event()

    @server.on("x", queue=5, when_full=when_full)
    async def on_x(body: int) -> None:
        heard.append(body)
        if body == 0:
            await go.wait()

    async with one_read(server) as read:
        await anyio.wait_all_tasks_blocked()
        events = server.events()
        read(100)
        await eventually(lambda: server.stats().unread == 5)
        assert server.stats().dropped == 94
        assert [(event.pattern, event.dropped) for event in told(events)] == [("x", 1)]
        assert server._services.running.buffered == 0
        go.set()
        await eventually(lambda: len(heard) == 6)
        assert heard == [0, *left]


async def test_what_one_read_brings_is_bounded_in_bytes() -> None:
    server, heard = Bus(limits=Limits(queue_bytes=20_000)), []

    @server.on("x", queue=5)
    async def on_x(body: int) -> None:
        heard.append(body)

    async with one_read(server) as read:
        await anyio.wait_all_tasks_blocked()
        read(10_000)
        assert server._services.running.buffered <= 20_000
        assert server.stats().unread <= 5 + 20_000 // 200
        await eventually(lambda: heard and heard[-1] == 9999)
        assert len(heard) + server.stats().dropped == 10_000


async def test_a_reader_that_is_cancelled_before_its_turn_leaves_no_queue_without_a_bound() -> None:
    server = Bus()
    async with one_read(server) as read, server.subscribe("x", queue=5) as news:
        async with anyio.create_task_group() as group:
            group.start_soon(anext, news)
            await anyio.wait_all_tasks_blocked()
            read(20)
            assert len(news) == 20
            group.cancel_scope.cancel()
        read(1, 20)
        assert bodies(news) == [16, 17, 18, 19, 20]


async def test_a_slow_subscription_is_told_at_half_before_it_loses_anything_and_then_once_a_second() -> None:
    async with pair(server := with_barrier(Bus())) as client, server.subscribe("x", queue=100) as slow:
        clock, events, peer = Hours(server), server.events(), server.peers[0]
        await publish_all(client, 49)
        assert told(events) == []
        await publish_all(client, 51)
        (first,) = told(events)
        assert (first.pattern, first.unread, first.dropped, first.peer) == ("x", 51, 0, peer)
        assert first.at.tzinfo is not None
        await publish_all(client, 10)
        assert told(events) == [], "not twice in a second"
        assert server.stats().unread == 100
        clock.pass_by(1.1)
        (second,) = told(events)
        assert (second.unread, second.dropped, slow.dropped, server.stats().dropped) == (100, 10, 10, 10)
        for _ in range(3):
            clock.pass_by(1.1)
        assert told(events) == [], "nothing has been dropped since"
        await publish_all(client, 500)
        (third,) = told(events)
        assert (third.unread, third.dropped) == (100, 11)
        clock.pass_by(0.5)
        assert told(events) == []
        clock.pass_by(0.6)
        (fourth,) = told(events)
        assert fourth.dropped == slow.dropped == 510


async def test_a_subscription_that_was_empty_is_told_of_anew() -> None:
    async with pair(server := with_barrier(Bus())) as client, server.subscribe("x", queue=10) as slow:
        clock, events = Hours(server), server.events()
        for _ in range(3):
            await publish_all(client, 8)
            (event,) = told(events)
            assert event.unread == 6
            bodies(slow)
            clock.pass_by(1.1)
        assert slow.dropped == 0


async def test_a_subscription_that_is_half_full_of_bytes_is_told_too() -> None:
    server = with_barrier(Bus(limits=Limits(queue_bytes=100_000)))
    async with pair(server) as client, server.subscribe("x") as slow:
        events = server.events()
        for _ in range(8):
            await client.publish("x", "x" * 10_000)
        await client.request("barrier")
        (event,) = told(events)
        assert event.dropped == slow.dropped == 0 and 5 <= event.unread <= 8


async def test_a_slow_subscription_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(server := with_barrier(Bus())) as client, server.subscribe("x", queue=4):
        clock = Hours(server)
        with caplog.at_level(logging.INFO, "polybus"):
            for _ in range(20):
                await publish_all(client, 10)
                clock.pass_by(1.1)
        slow = [record for record in caplog.records if "too slowly" in record.getMessage() and record.levelno > logging.INFO]
        assert [record.levelname for record in slow] == ["WARNING"]
        line = slow[0].getMessage()
        assert "'x'" in line and "queue=4" in line and "dropped" in line and "Read faster" in line
        caplog.clear()
        clock.pass_by(60)
        await publish_all(client, 10)
        assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_subscription_that_is_left_before_its_losses_are_told_tells_them(caplog: pytest.LogCaptureFixture) -> None:
    async with Bus() as bus:
        async with bus.subscribe("news", queue=10):
            for number in range(30):
                await bus.publish("news", number)
            assert not caplog.records  # it was told at half, at INFO; what followed is told after a second
        (record,) = caplog.records
    assert "20 were dropped" in record.getMessage()


async def test_unread_is_what_waits_in_all_queues_also_what_is_held_back() -> None:
    server = with_barrier(Bus())
    gated = Gated(server)
    server.on("x")(gated.wait)
    async with pair(server) as client:
        async with server.subscribe("x", queue=3, when_full="block"), server.subscribe("x", queue=3):
            await publish_all(client, 10)
            assert server.stats().unread == 9 + 10 + 3
        assert server.stats().unread == 9
        gated.go.set()
        await eventually(lambda: server.stats().unread == 0)
    assert server.stats().unread == 0


@pytest.mark.parametrize("protocol", ["ubre", "jrep", "csb", "nats"])
async def test_a_burst_of_small_publications_is_kept_whole_by_a_slow_handler(protocol: str) -> None:
    bus = Bus()
    gated = Gated(bus)
    bus.on("burst")(gated.wait)
    async with pair(bus, protocol=protocol) as client, bus.subscribe("burst", returns=int) as unread:
        for number in range(5000):
            await client.publish("burst", number)
        await eventually(lambda: len(unread) == 5000)
        gated.go.set()
        await eventually(lambda: len(gated.begun) == 5000)
        assert gated.begun == list(range(5000))
        assert bus.stats().dropped == 0


async def test_what_a_queue_keeps_by_default_is_bounded_in_bytes_also_where_bodies_have_none() -> None:
    bus = Bus(limits=Limits(queue_bytes=10_000))
    async with pair(bus, protocol="ubre") as client, bus.subscribe("x") as unread:
        for _ in range(200):
            await client.publish("x")
        await client.publish("x", "last")
        await eventually(lambda: bus.stats().dropped == 151)
        assert len(unread) == unread._source.queue == 50  # 200 bytes each
