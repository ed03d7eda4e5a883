"""What a bus does with publications: policies of full queues, order, concurrency, relays, both sides of a link."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from polybus import Bus, Context, Kind, Limits, Message, Peer, Subject, Subscription, connect
from polybus._core.bus.bus import parts_of
from polybus._core.runtime.loop_prevention import Deduplicator, ViaHeader
from polybus.errors import BadRequest, LocalProtocolError, QueueFull, ReservedSubject, SlowConsumer, TooLarge
from polybus.events import HandlerFailed
from polybus.plugins.extensions import core_of
from polybus.stats import Counters
from polybus.testing import pair
from tests.support import eventually
from tests.unit.answering import Gated, answering
from tests.unit.pubsub.reading import bodies, with_barrier


@attrs.frozen
class News:
    title: str


# -- who gets it ---------------------------------------------------------------------------------------------------------


async def test_a_typed_subscription_converts_and_skips_what_does_not_fit() -> None:
    topic: Subject[News, Any] = Subject("news", News)
    async with (
        Bus() as bus,
        bus.subscribe("news", returns=News) as typed,
        bus.subscribe("news") as plain,
        bus.subscribe(topic) as by_subject,
    ):
        for body in ({"title": "a"}, {"title": 7}, News("b"), None):
            await bus.publish("news", body)
        for subscription in (typed, by_subject):
            assert [(await anext(subscription)).body for _ in range(2)] == [News("a"), News("b")]
        assert typed.skipped == 1  # the last is skipped when it is its turn
        assert len(plain) == 4
        assert (await anext(plain)).body == {"title": "a"}


async def test_what_cannot_be_subscribed_to_and_headers_of_others_are_said_by_the_call() -> None:
    async with pair(Bus()) as bus:
        with pytest.raises(ReservedSubject, match="ReplyTo"):
            await bus.publish("x", headers={"ReplyTo": "me"})
        for subscribe in (bus.subscribe, bus.peers[0].subscribe):
            for pattern in ("a.>.b", "", "_polybus.x"):
                with pytest.raises((LocalProtocolError, ReservedSubject)):
                    subscribe(pattern)
            with pytest.raises(ValueError, match="queue=0"):
                subscribe("x", queue=0)
            with pytest.raises(ValueError, match="when_full"):
                subscribe("x", when_full="sometimes")  # type: ignore[call-overload]  # on purpose


async def test_a_subscription_can_be_entered_again_after_it_was_left_but_not_twice() -> None:
    async with Bus() as bus:
        subscription = bus.subscribe("x")
        async with subscription:
            with pytest.raises(LocalProtocolError):
                await subscription.__aenter__()
        await bus.publish("x", "nobody")
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)


async def test_several_readers_of_one_subscription_share_its_messages() -> None:
    async with Bus() as bus, bus.subscribe("x") as shared, anyio.create_task_group() as group:
        got: list[int] = []

        async def read() -> None:
            async for message in shared:
                got.append(message.body)  # noqa: PERF401  # each as it comes

        for _ in range(3):
            group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        for number in range(10):
            await bus.publish("x", number)
        await eventually(lambda: len(got) == 10)
        assert sorted(got) == list(range(10))
        group.cancel_scope.cancel()


async def test_a_reader_that_is_cancelled_leaves_the_message_to_another() -> None:
    async with Bus() as bus, bus.subscribe("x") as shared:
        for _ in range(20):
            async with anyio.create_task_group() as group:
                group.start_soon(anext, shared)
                await anyio.wait_all_tasks_blocked()
                await bus.publish("x", 1)
                group.cancel_scope.cancel()
            got = bodies(shared)
            await bus.publish("x", 2)
            assert (await anext(shared)).body == 2
            assert got in ([], [1])


# -- full queues ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("when_full", "kept"), [("drop_oldest", [7, 8, 9]), ("drop_newest", [0, 1, 2])])
async def test_a_full_queue_keeps_the_newest_or_the_oldest(when_full: Any, kept: list[int]) -> None:
    async with Bus() as bus, bus.subscribe("x", queue=3, when_full=when_full) as subscription:
        for number in range(10):
            await bus.publish("x", number)
        assert subscription.dropped == bus.stats().dropped == 7
        assert bodies(subscription) == kept


async def test_a_full_queue_of_latest_keeps_the_newest_of_each_subject() -> None:
    async with Bus() as bus, bus.subscribe("x.*", queue=3, when_full="latest") as kept:
        for number in range(10):
            for name in ("a", "b", "c"):
                await bus.publish(f"x.{name}", f"{name}{number}")
        assert sorted(bodies(kept)) == ["a9", "b9", "c9"]


async def test_a_full_queue_that_blocks_holds_the_publishers_of_this_process_back() -> None:
    async with Bus() as bus, bus.subscribe("x", queue=2, when_full="block") as slow, anyio.create_task_group() as group:
        published: list[int] = []

        async def publish() -> None:
            for number in range(20):
                await bus.publish("x", number)
                published.append(number)

        group.start_soon(publish)
        await eventually(lambda: published)
        await anyio.wait_all_tasks_blocked()
        assert published == [0, 1]
        with pytest.raises(QueueFull, match="'x'"):
            bus.publish_nowait("x", "no room")
        with pytest.raises(QueueFull):
            await bus.publish("x", "no room in time", timeout=0.01)
        assert [(await anext(slow)).body for _ in range(20)] == list(range(20))
        assert len(slow) == bus.stats().dropped == 0


async def test_members_of_a_group_in_one_process_take_turns_and_who_has_room_is_next() -> None:
    async with (
        Bus() as bus,
        bus.subscribe("x", group="g", queue=1, when_full="block") as one,
        bus.subscribe("x", group="g", queue=2, when_full="block") as two,
        anyio.create_task_group() as group,
    ):
        for number in range(3):
            bus.publish_nowait("x", number)
        assert (len(one), len(two)) == (1, 2)
        with pytest.raises(QueueFull, match=r"the queue of 'x' \(1\)"):
            bus.publish_nowait("x", "no room")
        with pytest.raises(QueueFull, match=r"the queue of 'x' \(1\)"):
            await bus.publish("x", "no room in time", timeout=0.01)
        group.start_soon(bus.publish, "x", 3)
        await anyio.wait_all_tasks_blocked()
        assert [(await anext(one)).body for _ in range(2)] == [0, 3]
        assert [(await anext(two)).body for _ in range(2)] == [1, 2]


async def test_leaving_a_full_subscription_lets_the_publisher_go_on() -> None:
    async with Bus() as bus, anyio.create_task_group() as group, bus.subscribe("x", queue=1, when_full="block"):
        await bus.publish("x", 1)
        group.start_soon(bus.publish, "x", 2)
        await anyio.wait_all_tasks_blocked()


async def test_a_subscriber_of_one_place_may_publish_and_ask_in_its_own_loop() -> None:
    async with pair(server := answering()) as client, client.subscribe("x", queue=1, when_full="block") as news:
        for number in range(50):
            await server.publish("x", number)
        for number in range(50):
            message = await anext(news)
            assert await client.request("echo", message.body) == number


async def test_too_much_held_back_ends_that_subscription_and_neither_its_link_nor_another() -> None:
    server = with_barrier(Bus(limits=Limits(queue_bytes=20_000)))
    async with (
        pair(server) as client,
        server.subscribe("x", queue=1, when_full="block") as slow,
        server.subscribe("x", queue=20, when_full="block") as patient,
        server.subscribe("x") as newest,
    ):
        for number in range(30):
            await client.publish("x", f"{number:03}" + "x" * 997)
        await client.request("barrier")
        for _ in range(2):
            with pytest.raises(SlowConsumer, match=r"'x' is read too slowly.*queue_bytes"):
                await anext(slow)
        assert numbers(patient, 3) == list(range(30))
        assert numbers(newest, 3) == list(range(13, 30))  # each costs 200 bytes beside its body
        assert slow.dropped == server.stats().dropped - newest.dropped == 18
        assert len(slow) == 0
        await client.publish("x", "more of it")
        await client.request("barrier")
        assert bodies(newest) == ["more of it"]
        assert (len(slow), len(patient)) == (0, 1)
        assert server._services.running.buffered < 2000, "only what the subscription costs"
        assert client.stats().reconnects == 0


KIB = 1024


def large(number: int) -> str:
    return f"{number:04}" + "x" * (100 * KIB - 4)


def numbers(subscription: Subscription, digits: int = 4) -> list[int]:
    return [int(body[:digits]) for body in bodies(subscription)]


async def test_a_queue_is_full_of_bytes_too_and_holds_the_publishers_of_this_process_back() -> None:
    limits = Limits(queue_bytes=1024 * KIB)
    async with Bus(limits=limits) as bus, bus.subscribe("x", when_full="block") as slow, anyio.create_task_group() as group:

        async def publish() -> None:
            for number in range(30):
                await bus.publish("x", large(number))

        group.start_soon(publish)
        await anyio.wait_all_tasks_blocked()
        assert len(slow) == 11
        assert 1000 * KIB < bus._services.running.buffered < 1200 * KIB
        with pytest.raises(QueueFull, match="'x'"):
            bus.publish_nowait("x", "no room")
        assert [int((await anext(slow)).body[:4]) for _ in range(30)] == list(range(30))
        assert bus._services.running.buffered == 0
        await bus.publish("x", "y" * 5000 * KIB)  # one of any size fits
        assert len((await anext(slow)).body) == 5000 * KIB
        assert bus.stats().dropped == 0


async def test_the_policies_obey_the_bytes_of_a_queue_too() -> None:
    limits = Limits(queue_bytes=1024 * KIB)
    async with (
        Bus(limits=limits) as bus,
        bus.subscribe("x", when_full="drop_oldest") as newest,
        bus.subscribe("x", when_full="drop_newest") as oldest,
        bus.subscribe("x", when_full="latest") as latest,
    ):
        for number in range(30):
            await bus.publish("x", large(number))
        assert bus._services.running.buffered < 3 * 1200 * KIB
        assert numbers(newest) == list(range(19, 30))
        assert numbers(oldest) == list(range(11))
        assert numbers(latest)[-1] == 29 and len(latest) == 0
        assert newest.dropped == oldest.dropped == latest.dropped == 19
        await bus.publish("x", 1)
        assert (len(newest), len(oldest), len(latest)) == (1, 1, 1)


async def test_small_messages_that_wait_behind_large_ones_do_not_hide_them() -> None:
    server = with_barrier(Bus(limits=Limits(queue_bytes=1024 * KIB)))
    async with pair(server) as client, server.subscribe("x", queue=100, when_full="block") as slow:
        for _ in range(100):
            await client.publish("x", 1)
        for number in range(10):  # beyond the queue, and held back
            await client.publish("x", large(number))
            await client.request("barrier")
        for _ in range(10):
            await anext(slow)
        assert len(slow) == 100
        for number in range(10, 20):  # beyond its bytes
            client.publish_nowait("x", large(number))
            await client.request("barrier")
        assert server._services.running.buffered > 1900 * KIB
        assert len(slow) == 110
        client.publish_nowait("x", large(0))
        await client.request("barrier")
        with pytest.raises(SlowConsumer):
            await anext(slow)


async def test_queues_stay_within_total_bytes() -> None:
    async with (
        Bus(limits=Limits(total_bytes=500 * KIB)) as bus,
        bus.subscribe("x", when_full="drop_oldest") as slow,
        bus.subscribe("x", when_full="drop_oldest") as other,
    ):
        for number in range(30):
            await bus.publish("x", large(number))
        assert bus._services.running.buffered <= 500 * KIB
        assert sum(map(len, (slow, other))) <= 8
        assert numbers(slow)[-1] == numbers(other)[-1] == 29
        assert bus._services.running.buffered == 0


# -- while `authorize` thinks --------------------------------------------------------------------------------------------


class Thinking:
    """An asynchronous `authorize` that is asked about each subject once, and answers when it is told."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: dict[Any, anyio.Event] = {}

    async def authorize(self, peer: Peer, verb: str, subject: str | int) -> bool:
        if verb == "deliver":
            self.asked.append(subject)
            await self.answers.setdefault(subject, anyio.Event()).wait()
        return subject != "news.secret"

    def answer(self, *subjects: str) -> None:
        for subject in subjects:
            self.answers.setdefault(subject, anyio.Event()).set()


@asynccontextmanager
async def heard(limits: Limits | None = None) -> AsyncIterator[tuple[Bus, Subscription, Thinking]]:
    thinking = Thinking()
    server = with_barrier(Bus(authorize=thinking.authorize, limits=limits))
    async with pair(server) as client, client.subscribe("news.>") as news:
        yield server, news, thinking


async def test_publications_keep_their_order_while_authorize_thinks_about_one() -> None:
    decided = anyio.Event()
    async with heard() as (server, news, thinking), anyio.create_task_group() as group:

        async def publish() -> None:
            await server.publish("news.a", 3)
            decided.set()

        thinking.answer("news.b", "news.secret")
        server.publish_nowait("news.a", 1)
        server.publish_nowait("news.b", 2)
        server.publish_nowait("news.secret", "what it refuses costs the others nothing")
        group.start_soon(publish)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(server.publish, "news.b", 4)
        await anyio.wait_all_tasks_blocked()
        server.publish_nowait("news.a", 5)
        assert thinking.asked == ["news.a"] and not decided.is_set()
        thinking.answer("news.a")
        assert [(await anext(news)).body for _ in range(5)] == [1, 2, 3, 4, 5]
        await decided.wait()
        assert thinking.asked == ["news.a", "news.b", "news.secret"]
        await server.publish("news.secret", "nor does what it has refused before")
        await server.publish("news.a", 6)
        assert (await anext(news)).body == 6
        assert server._services.running.buffered < 1000, "only what the subscription costs"


async def test_what_waits_for_authorize_is_bounded_and_charged(caplog: pytest.LogCaptureFixture) -> None:
    async with heard(Limits(outbox=10)) as (server, news, thinking):
        events = server.events()
        for number in range(50):
            server.publish_nowait("news.a", [number, "x" * 1000])
        assert 10_000 < server._services.running.buffered < 15_000
        assert server.stats().dropped == 39
        thinking.answer("news.a")
        assert [(await anext(news)).body[0] for _ in range(11)] == [0, *range(40, 50)]
        assert server._services.running.buffered < 1000, "only what the subscription costs"
        assert type(await anext(events)).__name__ == "PeerSlow"
    (line,) = [record.getMessage() for record in caplog.records if "too slowly" in record.getMessage()]
    assert line.endswith("publications to it are dropped (when_full='drop_oldest'), and counted in stats().dropped")


async def test_relayed_publications_keep_their_order_and_their_bound_too() -> None:
    async with heard(Limits(outbox=10)) as (server, news, thinking):
        server.relay("news.>")
        async with pair(server) as other:
            await other.publish("news.a", 0)
            await other.request("barrier")
            for number in range(1, 30):
                await other.publish(f"news.{'ab'[number % 2]}", number)
            await other.request("barrier")
            assert server._services.running.buffered < 5000
            thinking.answer("news.a", "news.b")
            assert [(await anext(news)).body for _ in range(11)] == [0, *range(20, 30)]


# -- handlers of publications --------------------------------------------------------------------------------------------


async def test_with_concurrency_that_many_run_at_the_same_time_and_no_more() -> None:
    bus, done = Bus(), list[int]()
    gated = Gated(bus, answer=done.append)
    bus.on("x", concurrency=3)(gated.wait)
    async with bus:
        for number in range(10):
            await bus.publish("x", number)
        await anyio.wait_all_tasks_blocked()
        assert gated.inside == 3
        gated.go.set()
        await eventually(lambda: len(done) == 10)
    assert gated.most == 3
    assert sorted(done) == list(range(10))


async def test_an_on_handler_that_fails_is_logged_and_counted_and_gets_the_next(caplog: pytest.LogCaptureFixture) -> None:
    bus, heard = Bus(), []

    @bus.on("x")
    async def on_x(body: int) -> None:
        heard.append(body)
        if body == 1:
            raise ValueError("cannot do one")

    async with bus:
        events = bus.events()
        for number in range(3):
            await bus.publish("x", number)
        event = await anext(events)
    assert heard == [0, 1, 2]
    assert isinstance(event, HandlerFailed) and isinstance(event.error, ValueError)
    assert event.subject == "x" and event.at.tzinfo is not None
    assert event.error_id in caplog.text and "cannot do one" in caplog.text
    assert bus.stats().failed == 1


async def pass_on(message: Message, ctx: Context, call_next: Any) -> Any:
    return await call_next(message)


@pytest.mark.parametrize("around", [[], [pass_on]], ids=["alone", "behind a middleware"])
async def test_a_body_that_fits_no_on_handler_is_skipped_counted_and_no_failure(
    around: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    bus, heard = Bus(), list[News]()
    for middleware in around:
        bus.use(middleware)

    @bus.on("x.{number}")
    async def on_number(number: int, body: News) -> None:
        heard.append(body)

    def on_any(body: News) -> None:
        heard.append(body)

    async def on_body(body: News) -> None:
        heard.append(body)

    bus.on("x.*", inline=True)(on_any)
    bus.on("x.*")(on_body)
    async with bus:
        events = bus.events()
        for _ in range(100):
            await bus.publish("x.1", {"title": 1})
        await bus.publish("x.one", {"title": "a"})
        await bus.publish("x.1", {"title": "b"})
    assert sorted(news.title for news in heard) == ["a", "a", "b", "b", "b"]
    assert (bus.stats().dropped, bus.stats().failed) == (301, 0)
    assert not [event async for event in events if isinstance(event, HandlerFailed)]
    lines = [record.getMessage() for record in caplog.records]
    assert all("skipped" in line and ("x.1" in line or "x.one" in line) for line in lines)
    assert all("title" in line and "more" not in line for line in lines[:3]), "one of each handler at once"
    assert sorted(line.partition(" within ")[0] for line in lines[3:]) == ["100 more", "99 more", "99 more"]
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("style", ["async", "inline", "through a middleware"])
async def test_a_bad_request_that_an_on_handler_raises_is_a_failure_of_it(style: str) -> None:
    bus = Bus()

    def refuse(body: Any) -> None:
        raise BadRequest("not this one")

    async def refuse_later(body: Any) -> None:
        refuse(body)

    if style == "through a middleware":
        bus.use(pass_on)
    bus.on("x", inline=True)(refuse) if style == "inline" else bus.on("x")(refuse_later)
    async with bus:
        await bus.publish("x", 1)
    assert (bus.stats().dropped, bus.stats().failed) == (0, 1)


async def test_an_on_handler_that_is_registered_while_the_bus_runs_is_announced() -> None:
    server, client, heard = Bus(), Bus(), list[int]()
    async with pair(server, client=client):
        client.on("late.*")(lambda body: heard.append(body))
        await eventually(lambda: core_of(server.peers[0]).patterns)
        await server.publish("late.one", 1)
        await eventually(lambda: heard == [1])


# -- relays --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("subjects", "hints"), [(["chat.room"] * 3, 1), ([f"chat.{n}" for n in range(300)], 4)])
async def test_a_publication_that_a_relay_would_have_passed_on_is_hinted_at_once_but_does_not_fill_the_log(
    subjects: list[str], hints: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = with_barrier(Bus())
    async with server.serve("ubre+memory://hints"), pair(server) as ann, pair(server) as bob, bob.subscribe("chat.>") as room:
        for subject in subjects:
            await ann.publish(subject, 1)
        for client in (ann, bob):
            await client.request("barrier")
        assert bodies(room) == []
    found = [record for record in caplog.records if "bus.relay(" in record.getMessage()]
    assert len(found) == hints
    assert found[0].levelno == logging.WARNING and "--relay" in found[0].getMessage()
    if hints > 1:
        assert found[-1].getMessage().startswith("253 more within ")  # of the first 256 subjects


async def test_a_client_does_not_keep_the_last_body_that_it_published() -> None:
    async with Bus() as server, server.serve("ubre+memory://bodies?format=binary") as listener, connect(listener.url) as client:
        with pytest.raises(TooLarge):
            await client.publish("news", "x" * client.limits.message)
        await client.publish("news", {"title": "Rain"})
        route = parts_of(client).pubsub.publisher.routes["news"]
        assert route.only_peer is not None
        assert (route.blank.raw, route.blank.checked) == (None, None)


async def test_a_peer_that_is_named_twice_gets_a_publication_once() -> None:
    bus = with_barrier(Bus())
    async with pair(bus) as one, pair(bus) as other, one.subscribe("news") as first, other.subscribe("news") as second:
        await eventually(lambda: len(bus.peers) == 2)
        near, far = bus.peers
        await bus.publish("news", 1, to=[near, far, near])
        bus.publish_nowait("news", 2, to=(far, near, far))
        await bus.publish("news", 3, to=[near, far])
        for subscription in (first, second):
            assert [(await anext(subscription)).body for _ in range(3)] == [1, 2, 3]


async def test_who_may_publish_something_else_cannot_take_the_place_of_a_relayed_publication() -> None:
    """Its id is known to all whom it has reached; one of them could say it faster on another way."""

    def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
        return verb != "publish" or subject == "gossip" or peer.identity == "honest"

    bus = Bus(authorize=authorize)
    async with (
        pair(bus, identity="forger") as forger,
        pair(bus, identity="honest") as honest,
        bus.subscribe("alarm") as alarms,
        bus.subscribe("gossip") as gossip,
    ):

        def say(client: Bus, subject: str, via: str, body: bytes) -> None:
            (peer,) = client.peers
            core_of(peer).link.write(Message(Kind.PUBLISH, subject, None, body, headers={"polybus-via": via}), core_of(peer))

        say(forger, "gossip", "0123456789abcdef,a", b"1")
        say(forger, "alarm", "0123456789abcdef,a", b"2")
        assert (await anext(gossip)).body == 1
        for number, way in enumerate("abc", start=3):  # the same on three ways: once
            say(honest, "alarm", f"0123456789abcdef,{way}", b"%d" % number)
        say(honest, "alarm", "fedcba9876543210,a", b"9")
        assert [(await anext(alarms)).body for _ in range(2)] == [3, 9]


async def test_a_full_subscription_does_not_delay_a_publication_to_another_one_that_has_room_again() -> None:
    async with (
        Bus() as bus,
        bus.subscribe("x", queue=1, when_full="block") as slow,
        bus.subscribe("x", queue=1, when_full="block") as quick,
        anyio.create_task_group() as group,
    ):
        await bus.publish("x", 0)
        group.start_soon(bus.publish, "x", 1)  # both are full
        await anyio.wait_all_tasks_blocked()
        assert [(await anext(quick)).body for _ in range(2)] == [0, 1]
        assert [(await anext(slow)).body for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("protocol", ["csb", "jrep", "ubre"])
async def test_a_publication_to_a_peer_that_has_not_identified_itself_is_authorized(protocol: str, later: bool) -> None:
    asked = list[str]()

    def decide(peer: Peer, verb: str, subject: str | int) -> bool:
        asked.append(f"{verb} {subject}")
        return subject != "news.secret"

    async def decide_later(peer: Peer, verb: str, subject: str | int) -> bool:
        await anyio.lowlevel.checkpoint()
        return decide(peer, verb, subject)

    async with pair(server := Bus(authorize=decide_later if later else decide), protocol=protocol) as client:
        (peer,) = server.peers
        await server.publish("news.secret", 1, to=peer)
        assert "deliver news.secret" in asked
        received = client.stats().received
        await server.publish("news.open", 1, to=peer)
        await eventually(lambda: client.stats().received == received + 1)


def test_what_a_bus_remembers_of_relayed_publications_is_bounded() -> None:
    counters = Counters()
    known = Deduplicator("me", counters)
    for number in range(1, 20_000):
        assert known.is_news(ViaHeader.read(f"{number}.1.you-{number}.{number},you"), "x")
    assert len(known._ids) <= 16_384 and len(known._streams) <= 16_384
    assert known.is_news(ViaHeader.read("new,you"), "x") is True
    assert known.is_news(ViaHeader.read("new,you"), "x") is False
    assert known.is_news(ViaHeader.read("newer,you,me"), "x") is False
    assert counters.dropped == 0
    assert known.is_news(ViaHeader.read("other.1.you-19999.19999,you"), "x") is False  # as late as can be
    assert counters.dropped == 1


def test_nobody_makes_a_bus_forget_what_others_have_published() -> None:
    known = Deduplicator("me", Counters())
    alarms = [ViaHeader.read(f"{number}.1.gateway.{number},way") for number in (1, 2, 3)]
    assert all(known.is_news(alarm, "alarm", owner="gateway") for alarm in alarms)
    for number in range(1, 50_000):
        assert known.is_news(ViaHeader.read(f"x{number}.0.{number}.1,y"), "chat", owner="mallory")
    assert len(known._ids) <= 16_384 and len(known._streams) <= 16_384
    assert not any(known.is_news(alarm, "alarm", owner="gateway") for alarm in alarms)
    assert not known.is_news(ViaHeader.read("new.1.gateway.2,way"), "alarm", owner="gateway"), "it is late"
    assert known.is_news(ViaHeader.read("x1.0.1.1,y"), "chat", owner="mallory"), "his own he may have forgotten"


STRANGE = ["", ",", ".", "...", ".,", "a.b.c.d", "a.-1.b.9", "a.1.b.-2", "a.9.b.²", "x" * 5000, "a" + ".9" * 99]


@pytest.mark.parametrize("via", STRANGE)
def test_what_is_written_of_a_way_is_read_as_far_as_it_makes_sense(via: str) -> None:
    read = ViaHeader.read(via)
    assert read.hops >= 0
    assert read.number >= 0
    assert bool(read.origin) == (read.number > 0)
    assert len(str(read.extend("me"))) <= 64 * (2 + len(read.buses)) + 64


def test_a_way_keeps_a_bounded_number_of_names_and_counts_on() -> None:
    via = ViaHeader("0123", 0, "me-1", 7)
    for number in range(100):
        via = ViaHeader.read(str(via.extend(f"bus{number}").add_hops(1)))
    assert (via.id, via.hops, via.origin, via.number) == ("0123", 100, "me-1", 7)
    assert via.buses == ("bus0", *(f"bus{number}" for number in range(69, 100))), "the one that it began at, and the last"


@pytest.mark.parametrize("there", ["a link", "a subscription", "nobody"])
async def test_a_publisher_that_never_has_to_wait_lets_others_run(there: str) -> None:
    bus, turns = Bus(), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with pair(bus) as client, client.subscribe("local", when_full="drop_oldest"), anyio.create_task_group() as group:
        group.start_soon(others)
        for _ in range(2000):
            await (bus if there == "nobody" else client).publish("local" if there == "a subscription" else "news", "x")
        group.cancel_scope.cancel()
    assert turns >= 5


# -- one at a time -------------------------------------------------------------------------------------------------------


async def test_receive_gives_the_next_publication_or_gives_up_in_time_and_loses_nothing_by_it() -> None:
    async with pair(server := Bus()) as client:
        async with server.subscribe("x", returns=int) as numbers:
            with pytest.raises(TimeoutError, match=r"nothing arrived within 0\.01 s"):
                await numbers.receive(timeout=0.01)
            await client.publish("x", 1)
            await client.publish("x", 2)
            assert (await numbers.receive(timeout=20)).body == 1
            assert (await numbers.receive()).body == 2
            with pytest.raises(TypeError, match=r"timeout='1' must be a number of seconds, not str"):
                await numbers.receive(timeout="1")  # type: ignore[arg-type]
        with pytest.raises(EOFError, match="no more items will arrive"):
            await numbers.receive()
        with pytest.raises(LocalProtocolError, match="never entered"):
            await server.subscribe("x").receive(timeout=1)
