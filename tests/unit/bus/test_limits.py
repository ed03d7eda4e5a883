"""Every queue has a size: what happens at each limit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from polybus import Backoff, Bus, BusError, Disconnected, Forbidden, Limits, Peer, QueueFull, TooManyRequests, connect
from polybus._core.link.send_queue import SendQueue, WaitingMessage
from polybus._core.runtime.memory_budgets import cost
from polybus.events import PeerSlow
from polybus.message import Kind, Message
from polybus.plugins.extensions import core_of
from polybus.testing import Faults, pair
from tests.refusal import refused
from tests.support import BOUND, eventually
from tests.unit.answering import Gated


async def test_a_peer_may_subscribe_to_so_many_patterns_and_no_more() -> None:
    bus = Bus(limits=Limits(subscriptions=3))
    async with pair(bus) as client:
        async with client.subscribe("a"), client.subscribe("b"), client.subscribe("c"), client.subscribe("c"):
            await refused(client.subscribe("d"), Forbidden, r"Limits\.subscriptions")
        async with client.subscribe("d") as free_again:
            await bus.publish("d", 1)
            assert (await anext(free_again)).body == 1
        assert bus.stats().refused >= 1


async def test_what_a_peer_subscribes_to_is_charged_and_bounded_in_bytes() -> None:
    bus = Bus(limits=Limits(waiting_bytes=20_000))
    deep = ".".join("abcdefghijklmnopqrstuvwxyz" * 2)
    async with pair(bus) as client:
        async with client.subscribe("a.*"), client.subscribe("b"):
            assert 600 <= bus._services.running.buffered <= 700
            await refused(client.subscribe(deep + ".*"), Forbidden)
            async with client.subscribe(deep):  # no wildcard: one entry, however deep
                pass
        await eventually(lambda: bus._services.running.buffered == 0)
        async with client.subscribe("a.*"):
            await bus.peers[0].aclose()
            await eventually(lambda: not bus.peers)
            assert bus._services.running.buffered == 0


@pytest.mark.parametrize("local", [False, True], ids=["over a link", "to itself"])
async def test_requests_without_an_answer_are_bounded_here_too(local: bool) -> None:
    bus, client = Bus(limits=Limits(pending=5)), Bus(limits=Limits(pending=5))
    gated = Gated(bus)
    async with pair(bus, client=client):
        replies = [(bus if local else client).request("wait", number) for number in range(8)]
        for reply in replies[5:]:
            with pytest.raises(QueueFull, match=r"Limits\.pending"):
                await reply
        gated.go.set()
        assert [await reply for reply in replies[:5]] == [0, 1, 2, 3, 4]


@asynccontextmanager
async def outage(**limits: int) -> AsyncIterator[Bus]:
    """A client whose link is down, and stays so for a minute."""
    bus, client = Bus(), Bus(limits=Limits(**limits))
    patient = Backoff(initial=60, jitter=False)
    async with bus.serve("ubre+memory://outage") as listener, connect(listener.url, bus=client, backoff=patient):
        await bus.peers[0].aclose()
        await eventually(lambda: not client.peers[0].connected)
        yield client


async def test_in_an_outage_the_outbox_takes_so_many_messages_and_no_more() -> None:
    async with outage(outbox=3) as client:
        replies = [client.request("echo", number) for number in range(3)]
        for ask in (client.request, client.publish):
            with pytest.raises(QueueFull):
                await ask("echo", 3, timeout=0.01)
        with pytest.raises(QueueFull):
            client.publish_nowait("news", 1)
        assert client.stats().queued == 3
    for reply in replies:
        with pytest.raises(Disconnected) as caught:
            await reply
        assert not caught.value.sent


async def test_what_expires_in_an_outage_makes_room_for_who_waits() -> None:
    async with outage(outbox=2) as client:
        await client.publish("news", 1, timeout=0.05)
        await client.publish("news", 2, timeout=60)
        await client.publish("news", 3, timeout=60)  # waits for the first to expire
        assert client.stats().dropped == 1
        assert client.stats().queued == 2


async def test_a_request_that_gives_up_in_an_outage_was_never_sent_and_makes_room_for_who_waits() -> None:
    async with outage(outbox=2) as client:
        brief, long = client.request("x", timeout=0.05), client.request("x", timeout=60)
        await client.publish("news", 1)
        assert brief.done() and not long.done()
        with pytest.raises(Disconnected) as caught:
            await brief
        assert not caught.value.sent
        assert client.stats().pending == 1


async def test_doubled_frames_are_answered_or_refused_and_nothing_is_left() -> None:
    bus = Bus()

    @bus.handle("echo")
    async def echo(body: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return body

    async with pair(bus, faults=Faults(seed=3, duplicate=0.5)) as client:
        for number in range(50):
            try:
                assert await client.request("echo", number) == number
            except BusError as error:
                assert "in flight" in str(error)
        assert client.stats().pending == 0
        await eventually(lambda: bus.stats().running == 0)


async def test_urgent_messages_that_overtake_leave_nothing_behind_in_an_outbox() -> None:
    async with pair(Bus()) as client:
        peer = client.peers[0]
        box: Any = SendQueue(core_of(peer).link)

        def add(level: int) -> None:
            message = Message(Kind.PUBLISH, "x", raw=b"x")
            box.add(WaitingMessage(message, core_of(peer), None, 60.0, True, cost(message), level))

        for _ in range(1_000):
            add(0)
        for _ in range(5_000):
            add(1)
            assert box.pop() is not None
            assert len(box._shares[core_of(peer)].droppable) == len(box)
        assert len(box.clear()) == 1_000
        assert box.bytes == 0


def buffered(bus: Bus) -> int:
    return bus._services.running.buffered


async def test_a_peer_whose_results_exceed_the_total_loses_its_link_and_others_do_not(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus(limits=Limits(outbox_bytes=20_000, total_bytes=60_000))
    page = Gated(bus, "page", lambda _: "x" * 8000)
    async with pair(bus) as slow, pair(bus) as quick:
        events = bus.events()
        stalled = core_of(bus.peers[0]).link
        replies = [slow.request("page") for _ in range(20)]
        await eventually(lambda: page.inside == 20)
        stalled.pause_writing()
        page.go.set()
        for reply in replies:
            with pytest.raises(Disconnected):
                await reply
        assert isinstance(await anext(events), PeerSlow)
        (line,) = [record.getMessage() for record in caplog.records if "has ended" in record.getMessage()]
        assert "the peer is too slow: " in line
        await eventually(lambda: buffered(bus) == 0)
        assert len(await quick.request("page")) == 8000


async def test_large_bodies_of_requests_that_run_are_charged_and_more_than_the_total_is_turned_away() -> None:
    bus = Bus(limits=Limits(total_bytes=800_000, close_timeout=0.1))
    store = Gated(bus, "store", len)
    async with pair(bus) as client:
        first, second, third = [client.request("store", "x" * 100_000) for _ in range(3)]
        with pytest.raises(TooManyRequests, match=r"Limits\.total_bytes"):
            await third
        assert store.inside == 2
        assert 200_000 <= buffered(bus) <= 250_000
        small = client.request("store", "y")
        first.cancel()
        await eventually(lambda: buffered(bus) < 150_000)
        store.go.set()
        assert (await second, await small) == (100_000, 1)
        assert buffered(bus) == 0


async def test_a_large_body_is_charged_while_its_request_waits_and_while_it_runs() -> None:
    bus = Bus(limits=Limits(running=1))
    store = Gated(bus, "store", len)
    async with pair(bus) as client:
        replies = [client.request("store", "x" * 100_000) for _ in range(3)]
        await eventually(lambda: bus.stats().waiting == 2)
        assert 300_000 <= buffered(bus) <= 302_000
        store.go.set()
        assert [await reply for reply in replies] == [100_000] * 3
        assert buffered(bus) == 0


async def test_what_authorize_still_thinks_about_ends_with_its_peer_and_is_charged_until_then() -> None:
    thinking: list[str] = []

    async def authorize(peer: Any, verb: str, subject: Any) -> bool:
        if verb == "request":
            return True
        thinking.append(verb)
        try:
            await anyio.sleep_forever()
        finally:
            thinking.remove(verb)
        return True

    bus = Bus(authorize=authorize, limits=Limits(close_timeout=0.1))
    async with bus:
        for _ in range(5):
            async with pair(bus) as client:
                await client.publish("news", "x" * 5000)
                await eventually(lambda: thinking == ["publish"])
                await bus.publish("news", "y" * 3000, to=bus.peers[0], timeout=0.01)
                await eventually(lambda: len(thinking) == 2)
                assert buffered(bus) >= 8000
            await eventually(lambda: not thinking)
            assert buffered(bus) == 0


async def test_an_authorize_that_ends_the_peer_leaves_nothing_of_it_charged() -> None:
    asked: list[Any] = []

    async def later() -> bool:
        await anyio.lowlevel.checkpoint()
        return True

    def authorize(peer: Peer, verb: str, subject: Any) -> Any:
        asked.append(subject)
        if len(asked) == 2:
            core_of(peer).connection_lost("sent away", going_on=False)  # as a broker's client that is too slow
        return later()

    bus = Bus(authorize=authorize)
    async with bus, pair(bus) as client:
        for number in range(2):
            await client.publish("news", number)
        await eventually(lambda: len(asked) == 2)
        assert buffered(bus) == 0


@pytest.mark.native
async def test_requests_that_nobody_awaits_yet_leave_while_the_peer_has_room() -> None:
    count = 8_000  # twice an outbox; the socket takes that much
    bus = Bus(limits=Limits(waiting=count))

    @bus.handle("twice")
    async def twice(body: int) -> int:
        return 2 * body

    with anyio.fail_after(BOUND):
        async with bus.serve("ubre+tcp://127.0.0.1:0") as listener, connect(listener.url) as client:
            assert await client.request("twice", 1) == 2
            replies = [client.request("twice", number) for number in range(count)]
            assert [await reply for reply in replies] == [2 * number for number in range(count)]
