"""Subscriptions to what a store keeps: the same tests over the engine in memory and over real servers."""

from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import Bus, Cluster, LocalProtocolError, Message, Retry, Store
from polybus.events import DeadLettered
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.answering import noting, publish_each
from tests.unit.cluster.test_durable import all_done, node, state

WORK = Store("work", "work.>")
AT_ONCE = Retry(attempts=3, backoff=0)


async def test_what_is_stored_is_read_and_what_is_acknowledged_does_not_come_again(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop, node(engine, name=name) as clerk:
        for number in range(5):
            await shop.publish("work.do", number, id=f"order-{number}")
        async with clerk.subscribe("work.>", durable="audit") as work:
            for number in range(3):
                message = await work.receive(10)
                assert (message.body, message.attempt, message.id) == (number, 1, f"order-{number}")
                message.ack()
        async with clerk.subscribe("work.>", durable="audit", returns=int) as work:  # goes on where it was
            for number in range(3, 5):
                message = await work.receive(10)
                assert message.body == number
                message.ack()
            await all_done(clerk, f"{name}-work", "audit")
        assert clerk.stats().unread == 0


async def test_what_was_read_and_not_settled_when_the_block_is_left_comes_again_at_once(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        await publish_each(shop, "work.do", range(4))
        async with shop.subscribe("work.do", durable="audit", queue=4, ack_wait=600) as work:
            first = await work.receive(10)
            assert first.body == 0
        with pytest.raises(LocalProtocolError, match="was given back when its subscription was closed already"):
            first.ack()
        found: set[tuple[int, int]] = set()
        async with shop.subscribe("work.do", durable="audit", queue=4, ack_wait=600) as work:
            while {number for number, _ in found} != {0, 1, 2, 3}:
                message = await work.receive(10)
                found.add((message.body, message.attempt))
                message.ack()
        assert (0, 2) in found


async def test_one_comes_after_the_other_is_settled_and_several_where_the_queue_is_larger(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        await publish_each(shop, "work.do", range(6))
        async with shop.subscribe("work.do", durable="one") as work:
            message = await work.receive(10)
            with pytest.raises(TimeoutError):
                await work.receive(0.05)
            message.ack()
            assert (await work.receive(10)).body == 1
        async with shop.subscribe("work.do", durable="many", queue=4) as work:
            messages = [await work.receive(10) for _ in range(4)]
            assert [message.body for message in messages] == [0, 1, 2, 3]
            with pytest.raises(TimeoutError):
                await work.receive(0.05)
            for message in messages:
                message.ack()
            assert [(await work.receive(10)).body for _ in range(2)] == [4, 5]


async def test_what_is_to_be_tried_again_comes_again_until_its_last_attempt(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        events = shop.events()
        await shop.publish("work.do", 7, id="seven")
        async with shop.subscribe("work.do", durable="audit", retry=AT_ONCE) as work:
            for attempt in (1, 2, 3):
                message = await work.receive(10)
                assert (message.body, message.attempt, message.id) == (7, attempt, "seven")
                message.retry()
            dead = await next_event(events, DeadLettered)
            assert dead.reason == "durable audit: retry() after the last attempt"
            await all_done(shop, f"{name}-work", "audit")
        assert (await state(shop, f"{name}-dead"))["messages"] == 1


async def test_a_pause_of_its_own_holds(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        await shop.publish("work.do", 7)
        async with shop.subscribe("work.do", durable="audit", retry=Retry(backoff=600)) as work:
            message = await work.receive(10)
            with pytest.raises(ValueError, match="delay=1e.300 must be less than 290 years, in seconds"):
                message.retry(1e300)
            message.retry(0.1)
            assert (await work.receive(10)).attempt == 2


async def test_what_is_rejected_is_a_dead_letter_with_its_reason(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        events = shop.events()
        await shop.publish("work.do", 7)
        async with shop.subscribe("work.do", durable="audit") as work:
            message = await work.receive(10)
            message.reject("nobody knows that order")
            with pytest.raises(LocalProtocolError, match="is rejected already"):
                message.ack()
            dead = await next_event(events, DeadLettered)
            assert (dead.subject, dead.reason) == ("work.do", "durable audit: nobody knows that order")
            await all_done(shop, f"{name}-work", "audit")


async def test_what_does_not_fit_is_a_dead_letter_at_once(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        events = shop.events()
        await shop.publish("work.do", "seven")
        await shop.publish("work.do", 8)
        async with shop.subscribe("work.do", durable="audit", returns=int) as work:
            message = await work.receive(10)
            assert message.body == 8
            message.ack()
            assert work.skipped == 1
            assert "invalid body for returns=int" in (await next_event(events, DeadLettered)).reason
            await all_done(shop, f"{name}-work", "audit")


async def test_readers_of_one_name_share_and_a_handler_is_one_of_them(engine: Any, name: str) -> None:
    worker = node(engine, name=name)
    handled = noting(worker, "work.>", durable="audit")
    async with node(engine, WORK, name=name) as shop, shop.subscribe("work.>", durable="audit") as mine, worker:
        await publish_each(shop, "work.do", range(20))
        first = await mine.receive(10)
        await eventually(lambda: len(handled) == 19)
        assert first.body not in handled
        first.ack()
        await all_done(shop, f"{name}-work", "audit")


async def test_a_replay_reads_what_is_stored_in_its_order_and_then_what_comes(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        await publish_each(shop, "work.do", range(300))
        async with shop.subscribe("work.>", start="all") as replay:
            assert [(await replay.receive(10)).body for _ in range(300)] == list(range(300))
            await shop.publish("work.do", 300)
            message = await replay.receive(10)
            assert message.body == 300
            with pytest.raises(LocalProtocolError, match="is only read, without storing a position"):
                message.ack()
        async with shop.subscribe("work.>", start=299, returns=int) as replay:
            assert [(await replay.receive(10)).body for _ in range(3)] == [298, 299, 300]
        async with shop.subscribe("work.>", start=timedelta(hours=1)) as replay:
            assert (await replay.receive(10)).body == 0
        async with shop.subscribe("work.>", start="new") as replay:
            await shop.publish("work.do", 301)
            assert (await replay.receive(10)).body == 301
        await eventually(lambda: _consumers(shop, f"{name}-work", 0))


async def _consumers(bus: Bus, stream: str, count: int) -> bool:
    return bool((await state(bus, stream))["consumer_count"] == count)


async def test_a_replay_misses_nothing_of_what_waits_for_room_while_the_link_is_cut(engine: Any, name: str) -> None:
    large = "x" * 600_000
    async with node(engine, WORK, name=name) as shop:
        for number in range(24):
            await shop.publish("work.do", [number, large])
        async with shop.subscribe("work.>", start="all", queue=24) as replay:
            await eventually(lambda: replay._source.full)
            await engine.cut()
            assert [(await replay.receive(10)).body[0] for _ in range(24)] == list(range(24))


async def test_what_a_replay_has_not_read_holds_up_no_drain(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as shop:
        await publish_each(shop, "work.do", range(3))
        async with shop.subscribe("work.>", start="all") as replay:
            await eventually(lambda: len(replay) == 3)
            with anyio.fail_after(5):
                await shop.drain(60)


async def test_a_drain_ends_the_iteration_after_what_has_come(engine: Any, name: str) -> None:
    read: list[int] = []
    async with node(engine, WORK, name=name) as shop, node(engine, name=name) as clerk, anyio.create_task_group() as tasks:
        await publish_each(shop, "work.do", range(3))
        begun = anyio.Event()

        async def audit() -> None:
            async with clerk.subscribe("work.do", durable="audit", queue=2) as work:
                async for message in work:
                    read.append(message.body)
                    begun.set()
                    await anyio.lowlevel.checkpoint()
                    message.ack()

        tasks.start_soon(audit)
        await begun.wait()
        await clerk.drain()
    assert read == sorted(read)
    assert len(read) >= 1


async def test_without_a_cluster_or_a_store_it_is_one_clear_error(engine: Any, name: str) -> None:
    async with Bus() as alone:
        await refused(alone.subscribe("work.do", durable="audit"), LocalProtocolError, match="requires the engine of a cluster")
    async with node(engine, name=name) as bus:
        for subscription in (bus.subscribe("work.do", durable="audit"), bus.subscribe("work.do", start="all")):
            await refused(subscription, LocalProtocolError, match="'work.do': no store has this subject")


async def test_a_message_of_another_kind_cannot_be_settled() -> None:
    bus = Bus()
    async with bus, bus.subscribe("news") as news:
        await bus.publish("news", 1)
        message: Message[Any] = await news.receive(5)
        assert message.attempt == 1
        for settle in (message.ack, message.retry, message.reject):
            with pytest.raises(LocalProtocolError, match="is for bus.subscribe"):
                settle()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"start": "all", "group": "b"}, "to share stored publications, use only durable="),
        ({"start": "all", "ordered": True}, "ordered=True requires durable="),
        ({"start": "yesterday"}, "'all', 'new', a timedelta"),
        ({"durable": "a", "when_full": "latest"}, "leave out when_full= and local="),
        ({"durable": "a", "local": False}, "leave out when_full= and local="),
        ({"durable": "a", "queue": 0}, "queue=0"),
    ],
)
def test_what_it_cannot_be_is_said_at_once(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Bus(cluster=Cluster("nats+tcp://127.0.0.1:1")).subscribe("work.do", **options)
