"""Buses at a network of the tests' engine: handlers and subscriptions as the network has them, and losses."""

import anyio
import pytest

from polybus import Backoff, Bus, Limits, NoHandler, Route, Unsupported, bridge, connect
from polybus.events import LinkDown, LinkUp
from polybus.plugins import Closed
from polybus.testing import pair
from polybus.testing.nats_engine import NatsEngine
from tests.support import eventually, next_event

BACKOFF = Backoff(initial=0.001, maximum=0.02)


def answering(name: str, subject: str = "name") -> Bus:
    bus = Bus()

    @bus.handle(subject)
    async def tell() -> str:
        return name

    return bus


async def test_a_handler_that_comes_later_is_announced_and_one_that_leaves_is_gone() -> None:
    async with NatsEngine() as engine, connect(engine.url) as asker:
        bus = Bus()
        async with connect(engine.url, bus=bus):
            with pytest.raises(NoHandler):
                await asker.request("late")

            @bus.handle("late")
            async def late() -> int:
                return 7

            async with bus.subscribe("barrier"):
                assert await asker.request("late") == 7
        await eventually(lambda: len(engine.clients) == 1)
        with pytest.raises(NoHandler):
            await asker.request("late", timeout=1000)


async def test_subscriptions_and_handlers_are_there_again_before_other_traffic() -> None:
    bus = answering("here")
    async with NatsEngine() as engine, connect(engine.url) as other, connect(engine.url, bus=bus, backoff=BACKOFF):
        async with bus.subscribe("news.*") as news, bus.peers[0].subscribe("own") as own:
            for round_ in range(5):
                events = bus.events()
                list(engine.clients)[-1].transport.abort(Closed(1006, "cut"))
                await next_event(events, LinkDown)
                waiting = bus.request("nobody")
                await next_event(events, LinkUp)
                with pytest.raises(NoHandler):
                    await waiting
                assert await other.request("name") == "here"
                await other.publish("news.today", round_)
                await other.publish("own", round_)
                assert (await anext(news)).body == (await anext(own)).body == round_


async def test_entering_a_subscription_goes_on_when_the_link_is_lost_meanwhile() -> None:
    async with NatsEngine() as engine, connect(engine.url) as other, connect(engine.url, backoff=BACKOFF) as bus:
        entered = anyio.Event()

        async def enter() -> None:
            async with bus.subscribe("news") as news:
                entered.set()
                assert (await anext(news)).body == 1

        events = bus.events()
        async with anyio.create_task_group() as group:
            group.start_soon(enter)
            await anyio.lowlevel.checkpoint()  # SUB and PING are on their way
            list(engine.clients)[-1].transport.abort(Closed(1006, "cut"))
            await entered.wait()
            await next_event(events, LinkUp)
            async with bus.subscribe("barrier"):
                await other.publish("news", 1)


async def test_a_member_that_drains_leaves_its_group_and_finishes_what_it_has() -> None:
    one, started, go = Bus(), anyio.Event(), anyio.Event()

    @one.handle("name")
    async def slow() -> str:
        started.set()
        await go.wait()
        return "one"

    async with NatsEngine() as engine, connect(engine.url, bus=one), connect(engine.url) as asker:
        last = asker.request("name")
        await started.wait()
        async with connect(engine.url, bus=answering("two")), anyio.create_task_group() as group:
            group.start_soon(one.drain)
            await eventually(lambda: not one.ready)
            async with asker.subscribe("barrier"):
                pass
            assert [await asker.request("name") for _ in range(50)] == ["two"] * 50
            go.set()
            assert await last == "one"


async def test_streams_channels_and_tunnels_are_unsupported() -> None:
    async with NatsEngine() as engine, connect(engine.url) as bus:
        for opening in (bus.stream("lines"), bus.channel("talk")):
            with pytest.raises(Unsupported):
                async with opening:
                    raise AssertionError("opened")


async def test_a_bridge_takes_requests_with_wildcards_from_the_network_and_gives_them_up() -> None:
    async with NatsEngine() as engine, connect(engine.url) as asker, connect(engine.url) as network:
        async with pair(answering("inside", "door.front")) as client:
            async with bridge(network, client, routes=[Route("house.>", "door.{rest}")]):
                assert await asker.request("house.front") == "inside"
                with pytest.raises(NoHandler):
                    await asker.request("house.back")
            async with network.subscribe("barrier"):
                with pytest.raises(NoHandler, match="503"):
                    await asker.request("house.front")


async def test_what_a_server_says_of_every_kind_of_bytes_ends_or_is_counted() -> None:
    async with NatsEngine() as engine, connect(engine.url, backoff=BACKOFF, limits=Limits(bad_messages=1)) as bus:
        events = bus.events()
        [client] = engine.clients
        good = b"MSG a 99 1\r\n7\r\n", b"+OK\r\n"
        for frame in (*good, b"PONG\r\n", b"HMSG a 9 5 5\r\nhello\r\n", *[b"MSG a..b 9 1\r\n7\r\n"] * 5):
            client.transport.send(frame)
        await eventually(lambda: bus.stats().malformed == 6)  # publishers send those, and nobody knows which
        assert bus.peers[0].connected
        client.transport.send(b"CONNECT {}\r\n")
        await next_event(events, LinkDown)
        await next_event(events, LinkUp)
