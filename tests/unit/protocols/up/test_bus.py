"""Buses that speak UMessage: what is dropped is counted, and what a wire without extensions cannot carry is said."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from polybus import (
    AmbiguousRoute,
    Bus,
    Context,
    DeadlineExceeded,
    LocalProtocolError,
    NoHandler,
    Unsupported,
    connect,
)
from polybus.events import DeadLettered, FrameRefused
from polybus.message import Message
from polybus.protocols import Up
from polybus.testing import pair
from tests.support import eventually, next_event

NAMES = {"UpdateDoor": 0xB, "door.opened": 0x80CD, "slow": 0xC}
CAR, PHONE = "//car/10AB/3", "//phone/CD/4"


async def test_two_entities_know_each_other_by_what_they_show() -> None:
    bus, seen = Bus(), list[Any]()

    @bus.handle("UpdateDoor")
    async def update(body: int, ctx: Context, message: Message) -> int:
        seen.append((message.attributes["source"], message.attributes["sink"]))
        assert ctx.peer is not None
        await ctx.peer.notify("door.opened", body)
        return body + 1

    phone, told = Bus(), list[Any]()

    @phone.handle("door.opened")
    async def opened(body: int, message: Message) -> None:
        told.append((body, message.attributes["source"], message.attributes["sink"]))

    async with bus.serve("up+memory://entities", protocol=Up(entity=CAR, names=NAMES)) as listener:
        assert "entity" not in listener.url
        async with connect(listener.url, bus=phone, protocol=Up(entity=PHONE, peer=CAR, names=NAMES)):
            assert await phone.request("UpdateDoor", 1) == 2
            assert await phone.request(f"{CAR}/B", 2) == 3  # an address as it stands
            await eventually(lambda: len(told) == 2)
    assert seen == [(f"{PHONE}/0", f"{CAR}/B")] * 2
    assert told == [(1, f"{CAR}/80CD", f"{PHONE}/0"), (2, f"{CAR}/80CD", f"{PHONE}/0")]


async def test_what_is_bad_or_late_is_counted_and_the_link_goes_on() -> None:
    bus = Bus()
    bus.handle("UpdateDoor")(lambda: None)
    ms = 1_700_000_000_000
    old = Up(names=NAMES, ttl=1, clock=lambda: ms * 1_000_000)
    async with bus.serve("up+memory://counted", protocol=Up(names=NAMES)) as listener:
        events = bus.events()
        async with connect(listener.url, protocol=old) as late:
            await late.publish("door.opened", 1)
            dead = await next_event(events, DeadLettered)
            assert dead.subject == "door.opened"
            assert dead.reason.startswith("expired: made ")
            with pytest.raises(DeadlineExceeded):
                await late.request("UpdateDoor", timeout=5)
            assert bus.stats().malformed == 0
        ahead = Up(names=NAMES, ttl=1, clock=lambda: 4_000_000_000_000 * 1_000_000)
        async with connect(listener.url, protocol=ahead) as early:
            await early.publish("door.opened", 1)
            refused = await next_event(events, FrameRefused)
            assert refused.reason == "clock_skew"
            assert (bus.stats().malformed, len(early.peers)) == (1, 1)


async def test_notifications_go_to_addresses_behind_one_link_of_a_bus_and_of_a_peer() -> None:
    fabric, told = Bus(), list[Any]()

    @fabric.handle("door.opened")
    async def opened(body: int, message: Message) -> None:
        told.append((body, message.attributes["sink"]))

    async with pair(fabric, protocol=Up(entity=CAR, peer=PHONE, names=NAMES)) as car:
        car.handle("door.opened")(lambda: told.append("here"))
        await car.notify("door.opened", 1, to="//seat/1A/1")
        (peer,) = car.peers
        await peer.notify("door.opened", 2, to="//seat/1A/2/0")
        await peer.notify("door.opened", 3)
        await car.notify("door.opened", 4)  # its own handler takes it, where no other is named
        await eventually(lambda: len(told) == 4)
        with pytest.raises(LocalProtocolError, match="is not an entity"):
            await car.notify("door.opened", to="ann")
        not_text: Any = 7
        with pytest.raises(TypeError, match=r"^to=7 must be str, not int"):
            await peer.notify("door.opened", to=not_text)
    assert sorted(told, key=str) == [(1, "//seat/1A/1/0"), (2, "//seat/1A/2/0"), (3, f"{PHONE}/0"), "here"]


HUBS = [f"//hub{number}/1/1" for number in range(3)]
NEWS = {"news": "//talker/2/1/8001"}


async def test_a_relay_passes_publications_on_as_they_are() -> None:
    hub = Bus()
    hub.relay("news")
    async with hub.serve("up+memory://relaying", protocol=Up(entity=HUBS[0], names=NEWS)) as listener:
        talking = Up(entity="//talker/2/1", names=NEWS, priorities={"news": "CS5"}, ttl=60)
        async with (
            connect(listener.url, protocol=Up(entity="//listener/3/1", names=NEWS)) as reader,
            reader.subscribe("news") as news,
            hub.subscribe("news") as own,
            connect(listener.url, protocol=talking) as talker,
        ):
            for number in range(3):
                await talker.publish("news", number)
            heard, first = [await anext(news) for _ in range(3)], [await anext(own) for _ in range(3)]
            assert [message.body for message in heard] == [0, 1, 2]
            for far, near in zip(heard, first, strict=True):
                for name in ("id", "source", "priority"):
                    assert far.attributes[name] == near.attributes[name], name
            assert heard[0].attributes["priority"] == "CS5"
            assert (hub.stats().dropped, hub.stats().malformed) == (0, 0)


async def test_a_ring_of_relays_comes_to_an_end() -> None:
    hubs, talker = [Bus() for _ in HUBS], Bus()
    async with AsyncExitStack() as stack:
        heard = []
        for hub, entity in zip(hubs, HUBS, strict=True):
            hub.relay(">")
            await stack.enter_async_context(hub.serve(f"up+memory:{entity[:6]}", protocol=Up(entity=entity, names=NEWS)))
            heard.append(await stack.enter_async_context(hub.subscribe("news")))
        for hub, entity, following in zip(hubs, HUBS, HUBS[1:] + HUBS[:1], strict=True):
            joined = connect(f"up+memory:{following[:6]}", bus=hub, protocol=Up(entity=entity, names=NEWS))
            await stack.enter_async_context(joined)
        joined = connect(f"up+memory:{HUBS[0][:6]}", bus=talker, protocol=Up(entity="//talker/2/1", names=NEWS))
        await stack.enter_async_context(joined)
        for number in range(20):
            await talker.publish("news", number)
        for news in heard:
            assert {(await anext(news)).body for _ in range(20)} <= {*range(20)}

        async def is_quiet() -> bool:
            before = [hub.stats().received for hub in hubs]
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            return before == [hub.stats().received for hub in hubs]

        await eventually(is_quiet)
        assert sum(hub.stats().received for hub in hubs) <= 20 * 6  # each way of the ring once in each direction


async def test_what_comes_from_another_wire_is_not_relayed_and_the_dead_letter_says_why() -> None:
    hub = Bus()
    hub.relay("news")
    async with (
        hub.serve("up+memory://news-up", protocol=Up(entity=HUBS[0], names=NEWS)) as new,
        hub.serve("ubre+memory://news-ubre") as old,
        connect(new.url, protocol=Up(entity="//listener/3/1", names=NEWS)),
        connect(old.url) as talker,
    ):
        events = hub.events()
        await talker.publish("news", 1)
        dead = await next_event(events, DeadLettered)
        assert "a ring of relays would have no end: publish it from a handler, or over a bridge" in dead.reason


async def test_a_bus_that_serves_tells_an_address_behind_its_only_peer_and_asks_which_of_several() -> None:
    car, told = Bus(), list[Any]()

    def told_by(bus: Bus) -> Bus:
        @bus.handle("door.opened")
        async def opened(message: Message) -> None:
            told.append((message.body, message.attributes["sink"]))

        return bus

    async with car.serve("up+memory://serving", protocol=Up(entity=CAR, names=NAMES)) as listener:
        with pytest.raises(NoHandler, match="has not opened a link"):
            await car.notify("door.opened", 1, to=PHONE)
        phone = Up(entity=PHONE, names=NAMES)
        async with connect(listener.url, bus=told_by(Bus()), protocol=phone):
            await car.notify("door.opened", 2, to=f"{PHONE}/0")
            await eventually(lambda: told == [(2, f"{PHONE}/0")])
            async with connect(listener.url, bus=told_by(Bus()), protocol=phone):
                await eventually(lambda: len(car.peers) == 2)
                with pytest.raises(AmbiguousRoute, match=r"several peers .*, as in bus\.peers\[0\]\.notify"):
                    await car.notify("door.opened", 3, to=PHONE)
                await car.peers[1].notify("door.opened", 4, to=PHONE)
                await eventually(lambda: len(told) == 2)
    assert told == [(2, f"{PHONE}/0"), (4, f"{PHONE}/0")]


@pytest.mark.parametrize("protocol", ["ubre", "csb", "jrep", "uprotocol"])
async def test_a_wire_without_addresses_says_what_to_write(protocol: str) -> None:
    bus, told = Bus(), list[int]()
    bus.handle("lights")(lambda body: told.append(body))
    async with pair(bus, protocol=protocol) as client:
        (peer,) = client.peers
        for tell in (client.notify, peer.notify):
            text = "has no addresses behind a peer; leave out to=, or pass a Peer from bus.peers"
            with pytest.raises(Unsupported, match=f"^to='//seat/1A/1': {protocol} {text}"):
                await tell("lights", 1, to="//seat/1A/1")
        await client.notify("lights", 2, to=peer)
        await peer.notify("lights", 3)
        await eventually(lambda: len(told) == 2)
    assert sorted(told) == [2, 3]
