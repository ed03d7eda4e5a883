"""Statistics and events."""

import datetime
from typing import Any

import anyio
import attrs
import pytest

from polybus import Backoff, Bus, ConnectFailed, Kind, Message, NoHandler, RemoteError, connect
from polybus.events import BusEvent, DeadLettered, HandlerFailed, LinkDown, LinkRetrying, LinkUp
from polybus.plugins.extensions import core_of
from polybus.stats import Stats
from polybus.testing import pair
from polybus.testing.virtual_time import VirtualLoop
from tests.refusal import refused
from tests.support import eventually
from tests.unit.answering import answering, publish_each


def failing() -> Bus:
    bus = Bus()

    @bus.on("x")
    async def on_x(body: int) -> None:
        raise ValueError(body)

    return bus


async def test_statistics_are_a_snapshot() -> None:
    bus = Bus()
    before = bus.stats()
    async with pair(bus):
        assert bus.stats().links == bus.stats().peers == 1
        assert before.links == 0
    assert bus.stats().links == 0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        before.links = 7  # type: ignore[misc]  # on purpose
    names = "links peers pending running waiting queued unread sent received dropped late malformed refused failed reconnects"
    assert [each.name for each in attrs.fields(Stats)] == [*names.split(), "durables"]


async def test_messages_are_counted_on_both_sides() -> None:
    bus = answering()
    async with pair(bus) as client, bus.subscribe("news"):
        for number in range(10):
            await client.request("echo", number)
            await client.publish("news", number)
        with pytest.raises(NoHandler):
            await client.request("nobody")
        here, there = client.stats(), bus.stats()
        assert (here.sent, here.received) == (21, 11)
        assert (there.sent, there.received) == (11, 21)
        assert there.refused == 1


async def test_links_that_come_and_go_are_events_with_their_peer_and_time() -> None:
    bus = Bus()
    events = bus.events()
    async with pair(bus):
        pass
    up, down = [event async for event in events]
    assert isinstance(up, LinkUp) and isinstance(down, LinkDown)
    assert not up.again
    assert up.peer is down.peer is not None
    assert up.url.startswith("ubre+memory://")
    assert up.at.tzinfo is datetime.UTC
    assert up.at <= down.at


async def test_a_link_that_is_lost_is_retried_and_comes_back() -> None:
    bus, client = Bus(), Bus()
    events = client.events()
    async with pair(bus, client=client, reconnect=True):
        await bus.peers[0].aclose("a hiccup")
        kinds: list[type] = []
        async for event in events:
            kinds.append(type(event))
            if isinstance(event, LinkDown):
                assert event.reason == "a hiccup"
            if isinstance(event, LinkUp) and event.again:
                break
        assert kinds == [LinkUp, LinkDown, LinkRetrying, LinkUp]
        await eventually(lambda: client.stats().reconnects == 1)


@pytest.mark.native
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=["virtual time"], scope="module")
@pytest.mark.parametrize(("pause", "attempts"), [(0.001, 10), (100, 1)])
async def test_a_first_connect_that_waits_tells_of_attempts_with_pauses_within_the_wait(
    pause: float, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "polybus.link")
    client = Bus()
    events = client.events()
    connecting = connect("ubre+memory://nobody-at-all", bus=client, wait=0.01, backoff=Backoff(pause, pause, jitter=False))
    await refused(connecting, ConnectFailed, match="in this event loop$")  # who has waited is not told to wait
    retries = [event for event in [each async for each in events] if isinstance(event, LinkRetrying)]
    assert [retry.attempt for retry in retries] == list(range(1, attempts + 1))
    assert all(retry.delay <= 0.01 for retry in retries)
    assert caplog.messages[0].startswith("no link to ubre+memory://nobody-at-all yet, attempt 1 in 0.0 s: ")


async def test_each_reader_of_events_gets_them_all_and_only_from_then_on() -> None:
    bus = failing()
    async with bus:
        early = bus.events()
        await bus.publish("x", 1)
        await eventually(lambda: bus.stats().failed == 1)
        late = bus.events()
        await bus.publish("x", 2)
        await eventually(lambda: bus.stats().failed == 2)
    for events, wanted in ((early, [1, 2]), (late, [2])):
        got = [event async for event in events]
        assert [event.error.args[0] for event in got if isinstance(event, HandlerFailed) and event.error] == wanted


async def test_events_that_nobody_reads_give_way_to_new_ones_and_several_tasks_may_read_them() -> None:
    bus, got = failing(), list[int]()

    async def read() -> None:
        got.extend([event.error.args[0] async for event in events if isinstance(event, HandlerFailed) and event.error])

    async with bus:
        events = bus.events()
        await publish_each(bus, "x", range(1100))
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(read)
    assert sorted(got) == list(range(100, 1100))


async def test_each_of_several_tasks_that_wait_for_events_is_given_some() -> None:
    bus, got = failing(), list[BusEvent]()

    async def take() -> None:
        got.append(await anext(events))

    async with bus, anyio.create_task_group() as group:
        events: Any = bus.events()
        for _ in range(2):
            group.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        await publish_each(bus, "x", range(2))
        with anyio.move_on_after(0):
            await anext(events)
    assert (len(got), events._changed.waiting) == (2, [])  # who gave up is forgotten


async def test_a_notification_without_a_handler_is_a_dead_letter() -> None:
    bus = Bus()

    @bus.handle("many")
    async def many() -> Any:
        yield 1

    async with pair(bus) as client:
        events = bus.events()
        peer = bus.peers[0]
        for subject, raw in (("nobody", b'"small"'), ("many", b'"' + b"x" * 5000 + b'"')):
            core_of(peer).receive(Message(Kind.NOTIFY, subject, None, raw, peer=peer), 0.0)
        letters = [await anext(events) for _ in range(2)]
        assert [(letter.subject, letter.reason) for letter in letters if isinstance(letter, DeadLettered)] == [
            ("nobody", "no handler"),
            ("many", "a stream handler"),
        ]
        small, large = letters
        assert isinstance(small, DeadLettered) and small.message.body == "small" and small.peer is peer
        assert isinstance(large, DeadLettered) and large.message is None  # a thousand unread ones must not fill the memory
        assert client.stats().refused == 0


async def test_a_reader_of_events_that_is_behind_keeps_no_large_body_alive() -> None:
    bus = Bus()

    @bus.handle("parse")
    async def parse(body: str) -> None:
        raise ValueError("no number")

    async with pair(bus) as client:
        events = bus.events()
        for text in [*["x" * 5000] * 20, "small"]:
            with pytest.raises(RemoteError):
                await client.request("parse", text)
        failed = [event for event in [await anext(events) for _ in range(21)] if isinstance(event, HandlerFailed)]
    assert [event.error is None for event in failed] == [False] * 17 + [True] * 3 + [False]
    assert all(event.error_id for event in failed)
