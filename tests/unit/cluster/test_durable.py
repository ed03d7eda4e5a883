"""Stored publications and durable handlers: the same tests over the engine in memory and over real servers."""

import base64
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import Bus, Cluster, Context, DeadlineExceeded, LocalProtocolError, Message, QueueFull, Retry, Store, connect
from polybus._core.bus.bus import parts_of
from polybus.cluster.backbone import Backbone
from polybus.cluster.durable.consumers import DurableConsumer
from polybus.cluster.durable.jetstream import JetStream, JetStreamError
from polybus.cluster.durable.storage import DurableSpec
from polybus.events import DeadLettered
from polybus.testing import NatsEngine
from tests.refusal import refused
from tests.support import BOUND, eventually, next_event
from tests.unit.answering import noting, publish_each

WORK, QUEUE = Store("work", "work.>"), Store("work", "work.>", work=True)
SOON = Retry(attempts=3, backoff=(0.01, 0.02))


def node(engine: Any, *stores: Store, name: str = "shop", **options: Any) -> Bus:
    return Bus(cluster=Cluster(f"{engine.url}", name=name, stores=stores), **options)


def backbone_of(bus: Bus) -> Backbone:
    backbone = parts_of(bus).links.mesh
    assert isinstance(backbone, Backbone)
    return backbone


def jetstream(bus: Bus) -> JetStream:
    return JetStream(backbone_of(bus))


async def state(bus: Bus, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = (await jetstream(bus).ask(f"STREAM.INFO.{stream}"))["state"]
    return found


async def all_done(bus: Bus, stream: str, durable: str) -> None:
    """Wait until nothing is left that a durable handler was not given, or has not acknowledged."""

    async def done() -> bool:
        found = await jetstream(bus).ask(f"CONSUMER.INFO.{stream}.{durable}")
        begun = found["delivered"]["consumer_seq"] > 0  # a server counts what is pending a little after it is stored
        return begun and (found["num_ack_pending"], found["num_pending"]) == (0, 0)

    await eventually(done)


# -- stored publications ---------------------------------------------------------------------------------------------------


async def test_what_is_published_to_a_store_is_stored_and_heard_once_by_everybody(engine: Any, name: str) -> None:
    bus, other, page = node(engine, WORK, name=name), node(engine, name=name), Bus()
    heard = [noting(hearer, "work.*") for hearer in (bus, other, page)]
    async with bus, other, other.serve(f"ubre+memory://{name}"), connect(f"ubre+memory://{name}", bus=page):
        await other.present("work.*")
        await publish_each(bus, "work.begun", range(3))
        assert (await state(bus, f"{name}-work"))["messages"] == 3
        await eventually(lambda: sum(map(len, heard)) >= 9)
        await other.publish("work.begun", 3)  # a node that names no store has it stored, too, and is not told
        await eventually(lambda: sum(map(len, heard)) >= 12)
    assert [*map(sorted, heard)] == [[0, 1, 2, 3]] * 3


async def test_what_is_published_twice_under_an_id_is_stored_once_and_the_id_is_for_one_subject(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as bus:
        for number in range(4):
            await bus.publish("work.placed", number, id=f"order {number // 2}")
        with pytest.raises(LocalProtocolError, match="has id='order 1' for 'work.placed'.*for example id='work.paid:order 1'"):
            await bus.publish("work.paid", 1, id="order 1")
        assert (await state(bus, f"{name}-work"))["messages"] == 2


async def test_an_id_is_for_what_is_stored(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as bus:
        with pytest.raises(LocalProtocolError, match=r"publish\('other', id='7'\): id= is only for stores"):
            await bus.publish("other", 1, id="7")
        with pytest.raises(LocalProtocolError, match=r"leave out to="):
            await bus.publish("work.begun", 1, id="7", to=[])
        with pytest.raises(TypeError, match=r"id=7 must be str, not int; for example id=str\(order.id\)"):
            await bus.publish("work.begun", 1, id=7)  # type: ignore[call-overload]
        for wrong in ("", " 7", "7\r\n", "7" * 257):
            with pytest.raises(ValueError, match="1 to 256 printable characters"):
                await bus.publish("work.begun", 1, id=wrong)
        with pytest.raises(LocalProtocolError, match=r"is stored, which requires waiting: use await bus.publish"):
            bus.publish_nowait("work.begun", 1)
        assert (await state(bus, f"{name}-work"))["messages"] == 0


async def test_a_store_that_is_full_says_so(engine: Any, name: str) -> None:
    bus = node(engine, Store("small", "small.>", max_bytes=2000), name=name)
    if "sbin" in getattr(engine, "binary", ""):  # Debian's: it may drop the oldest, whatever it was told
        await refused(bus, LocalProtocolError, match=r"NATS servers before 2.10 may drop the oldest .* and this server is 2.9")
        return
    async with bus:
        with pytest.raises(QueueFull, match=r"'small.x' is not stored: .*maximum bytes exceeded.*max_bytes="):
            for _ in range(20):
                await bus.publish("small.x", "x" * 300)
        found = await state(bus, f"{name}-small")
        assert 0 < found["messages"] < 7
        assert found["first_seq"] == 1


@pytest.mark.parametrize(
    ("other", "argument"),
    [
        (Store("work", "work.*"), "subjects"),
        (Store("work", "work.>", max_age=timedelta(days=1)), "max_age"),
        (Store("work", "work.>", max_age=timedelta(days=2), dedup=1), "max_age"),
        (Store("work", "work.>", dedup=60), "dedup"),
        (Store("work", "work.>", work=True), "work"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_store_that_differs_is_named_with_the_argument(engine: Any, name: str, other: Store, argument: str) -> None:
    for _ in range(2):
        async with node(engine, WORK, name=name):
            pass
    text = f"the store 'work' already exists with a different {argument}: .*, not "
    await refused(node(engine, other, name=name), LocalProtocolError, match=text)


async def test_publications_under_way_when_the_engine_is_lost_are_stored_once(engine: NatsEngine, name: str) -> None:
    async with node(engine, WORK, name=name) as bus:
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(bus.publish, "work.begun", number)
            await anyio.lowlevel.checkpoint()
            await engine.cut()
        assert (await state(bus, f"{name}-work"))["messages"] == 200


async def test_a_publication_that_is_not_known_to_be_stored_ends_at_its_deadline(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as bus, node(engine, Store("gone", "gone.>"), name=name) as other:
        await jetstream(other).ask(f"STREAM.DELETE.{name}-gone")
        with pytest.raises(LocalProtocolError, match="'gone.x' is not stored: its store was removed or lost"):
            with anyio.fail_after(BOUND):
                await other.publish("gone.x", 1, timeout=2 * BOUND)  # said at once, as the engine knows
        async with bus.subscribe("gone.x"):  # so that somebody hears it, and the engine does not say that nobody does
            with pytest.raises(DeadlineExceeded, match="publish it again with the same id="):
                await other.publish("gone.x", 1, timeout=0.3)


async def test_a_listener_that_takes_nothing_keeps_nothing_from_the_store(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as bus, bus.subscribe("work.x", queue=1, when_full="block"):
        await bus.publish("work.x", 1)
        with pytest.raises(QueueFull):
            await bus.publish("work.x", 2, timeout=0.3)
        assert (await state(bus, f"{name}-work"))["messages"] == 2


# -- durable handlers ------------------------------------------------------------------------------------------------------


async def test_each_publication_is_for_one_worker_of_each_durable_handler(engine: Any, name: str) -> None:
    bus, workers = node(engine, WORK, name=name), [node(engine, name=name) for _ in range(2)]
    billed = [noting(worker, "work.*", durable="billing", concurrency=4) for worker in workers]
    mailed: list[int] = []

    @workers[0].on("work.{kind}", durable="mail")
    async def mail(kind: str, number: int, message: Message) -> None:
        assert (kind, message.subject, message.id) == ("begun", "work.begun", f"id{number}")
        mailed.append(number)

    async with bus:
        await bus.publish("work.begun", 0, id="id0")  # before there is a worker
        async with workers[0], workers[1]:
            for number in range(1, 50):
                await bus.publish("work.begun", number, id=f"id{number}")
            for durable in ("billing", "mail"):
                await all_done(bus, f"{name}-work", durable)
    assert sorted(billed[0] + billed[1]) == sorted(mailed) == list(range(50))


async def test_what_no_attempt_can_deal_with_is_a_dead_letter(engine: Any, name: str) -> None:
    bus = node(engine, WORK, name=name)
    attempts: list[int] = []

    @bus.on("work.hard", durable="billing", retry=SOON)
    async def bill(number: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        early = {1: SystemExit(3), 2: BaseExceptionGroup("several", [KeyError("x"), SystemExit(3)])}
        raise early.get(ctx.attempt, ValueError(f"never\n at https://ann:geheim@bank.example/ {300 * 'x'}"))

    @bus.on("work.misfit", durable="misfits", retry=SOON)
    async def misfit(number: int) -> None:
        attempts.append(0)

    async with bus:
        events = bus.events()
        await bus.publish("work.hard", 1, headers={"x-shop": "7"})
        await bus.publish("work.misfit", "no number")
        told = [await next_event(events, DeadLettered) for _ in range(2)]
        reasons = {event.subject: event.reason.partition(":")[0] for event in told}
        assert reasons == {"work.hard": "durable billing", "work.misfit": "durable misfits"}
        assert attempts == [1, 2, 3]
        for durable in ("billing", "misfits"):
            await all_done(bus, f"{name}-work", durable)
        letters = [await letter(bus, f"{name}-dead", number) for number in (1, 2)]
    by_handler = {headers["Polybus-Durable"]: (subject, body, headers) for subject, body, headers in letters}
    subject, body, headers = by_handler["billing"]
    assert (subject, body, headers["x-shop"], headers["Polybus-Attempts"]) == (f"{name}.dead.billing.work.hard", b"1", "7", "3")
    death = headers["Polybus-Death"].partition(" failed: ")[2]
    assert death.startswith("ValueError: never\\n at https://ann:***@bank.example/ xxx")
    assert len(death) == 203 and death.endswith("x...")
    assert len(headers["Polybus-Error-Id"]) == 8
    subject, body, headers = by_handler["misfits"]
    assert (subject, body) == (f"{name}.dead.misfits.work.misfit", b'"no number"')
    assert headers["Polybus-Attempts"] == "1"
    assert "invalid body" in headers["Polybus-Death"]


@pytest.mark.parametrize("what", ["headers", "body"])
async def test_what_is_too_large_to_be_kept_with_its_story_dies_all_the_same(engine: Any, name: str, what: str) -> None:
    bus = node(engine, WORK, name=name)

    @bus.on("work.hard", durable="billing", retry=Retry(attempts=1))
    async def bill(body: str) -> None:
        raise ValueError("x" * 1000)

    async with bus:
        headers = {"x-long": "7" * (bus.limits.headers - 20)} if what == "headers" else None
        body = "b" * ((1 << 20) - 200) if what == "body" else "short"
        await bus.publish("work.hard", body, headers=headers)

        async def dead() -> bool:
            return bool((await state(bus, f"{name}-dead"))["messages"] == 2)

        await eventually(dead)
        await all_done(bus, f"{name}-work", "billing")
        subject, kept, facts = await letter(bus, f"{name}-dead", 2)
        if what == "headers":  # an answer with the body would be over the limits of this bus
            at, whole, fields = await letter(bus, f"{name}-dead", 1)
            assert (at, whole, fields["x-long"]) == (f"{name}.dead.billing", b'"short"', (headers or {})["x-long"])
    assert subject == f"{name}.dead.billing.work.hard"
    assert (facts["Polybus-Origin"], facts["Polybus-Left-Out"], facts["Polybus-Whole"]) == (f"{name}-work 1", what, "1")
    assert kept == (b"" if what == "body" else b'"short"')


async def letter(bus: Bus, stream: str, number: int) -> tuple[str, bytes, dict[str, str]]:
    message = (await jetstream(bus).ask(f"STREAM.MSG.GET.{stream}", {"seq": number}))["message"]
    lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:-2]
    return message["subject"], base64.b64decode(message.get("data", "")), dict(line.split(": ", 1) for line in lines)


async def test_what_a_worker_is_at_when_it_is_closed_comes_to_others_at_once(engine: Any, name: str) -> None:
    shop, first, second = node(engine, WORK, name=name), node(engine, name=name), node(engine, name=name)
    begun, done = anyio.Event(), anyio.Event()

    @first.on("work.x", durable="billing", ack_wait=600)
    async def never(body: int) -> None:
        begun.set()
        await anyio.sleep_forever()

    @second.on("work.x", durable="billing", ack_wait=600)
    async def at_once(body: int, ctx: Context) -> None:
        assert ctx.attempt == 2
        done.set()

    async with shop:
        async with first:
            await shop.publish("work.x", 1)
            await begun.wait()
            await first.aclose()
        async with second:
            with anyio.fail_after(BOUND):
                await done.wait()


async def test_a_consumer_that_was_removed_is_made_again(engine: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    shop, worker = node(engine, WORK, name=name), node(engine, name=name)
    handled = noting(worker, "work.x", durable="billing", start="new")
    async with shop, worker:
        await shop.publish("work.x", 1)
        await eventually(lambda: handled == [1])
        await all_done(shop, f"{name}-work", "billing")
        await jetstream(shop).ask(f"CONSUMER.DELETE.{name}-work.billing")
        await shop.publish("work.x", 2)  # what comes meanwhile is not missed
        await eventually(lambda: handled == [1, 2])
    assert f"the durable handler billing of the store {name}-work was removed: it begins again" in caplog.text


async def test_large_publications_come_as_many_at_a_time_as_are_good_for_the_link(engine: Any, name: str) -> None:
    shop, worker = node(engine, WORK, name=name), node(engine, name=name)
    handled: list[int] = []
    attempts: set[int] = set()

    @worker.on("work.x", durable="billing", concurrency=100, retry=Retry(attempts=1))
    async def bill(body: list[Any], ctx: Context) -> None:
        attempts.add(ctx.attempt)
        handled.append(body[0])
        await anyio.lowlevel.checkpoint()

    large = "x" * 900_000
    async with shop:
        for number in range(100):
            await shop.publish("work.x", [number, large])
        async with worker:
            await eventually(lambda: len(handled) == 100)
            await all_done(shop, f"{name}-work", "billing")
            assert attempts == {1}


async def test_of_two_versions_that_make_a_consumer_at_once_the_later_is_told_that_it_differs(engine: Any, name: str) -> None:
    async with node(engine, WORK, name=name) as bus:
        theirs = {"durable_name": "billing", "ack_policy": "explicit", "ack_wait": 7_000_000_000, "max_deliver": -1}
        theirs |= {"filter_subject": f"{name}.p.work.other", "max_waiting": 20_000, "max_ack_pending": 20_000}
        make = f"CONSUMER.DURABLE.CREATE.{name}-work.billing"
        await jetstream(bus).ask(make, {"stream_name": f"{name}-work", "config": theirs})

        class BeforeTheirs(JetStream):
            """Asks whether it is there just before the others make it."""

            async def ask(self, word: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
                if word.startswith("CONSUMER.INFO.") and not asked:
                    asked.append(word)
                    raise JetStreamError(10014, "consumer not found")
                return await super().ask(word, members)

        asked: list[str] = []
        late = DurableConsumer(BeforeTheirs(backbone_of(bus)), f"{name}.p.work.>", "work.>", DurableSpec("billing"))
        with pytest.raises(LocalProtocolError, match="durable='billing' already exists with a different pattern"):
            await late.prepare()
        there = await jetstream(bus).ask(f"CONSUMER.INFO.{name}-work.billing")
        assert there["config"]["filter_subject"] == f"{name}.p.work.other"


@pytest.mark.parametrize(
    ("stores", "handlers", "text"),
    [
        ([WORK, Store("more", "work.begun")], [], "cannot be created: the NATS server says: subjects overlap"),
        ([Store("many", "many.>", replicas=3)], [], "the store '.*many' cannot be created: .*replicas > 1 not supported"),
        ([], [("work.>", {})], r"'work.>': no store has this subject. Add it to a store, for example Cluster\(stores="),
        ([Store("part", "work.x")], [("work.>", {})], "the store .*-part only has some of these subjects"),
        ([Store("part", "work.x")], [("*.x", {})], "the store .*-part only has some of these subjects"),
        ([Store("all", "/vehicle/1/2/3")], [("/vehicle/1/2/*", {})], "a pattern of URIs would also acknowledge publications"),
        ([QUEUE], [("work.x", {}), ("work.*", {"durable": "mail"})], "in a store with work=True, durable= names"),
        ([QUEUE], [("work.x", {"start": "new"})], "a store with work=True requires start="),
    ],
)
async def test_what_stores_and_durable_handlers_cannot_be_is_one_clear_error(
    engine: Any, name: str, stores: list[Store], handlers: list[tuple[str, dict[str, Any]]], text: str
) -> None:
    nodes = [node(engine, store, name=name) for store in stores] or [node(engine, name=name)]
    worker = node(engine, name=name)
    for pattern, options in handlers:
        worker.on(pattern, **{"durable": "billing", **options})(lambda body: None)
    with pytest.raises(LocalProtocolError, match=text):
        async with AsyncExitStack() as stack:
            for bus in (*nodes, worker):
                await stack.enter_async_context(bus)


@pytest.mark.parametrize(
    ("of", "member", "value"),
    [
        *(("stream", "storage", "memory"), ("stream", "discard", "old"), ("stream", "max_msgs", 2)),
        *(("stream", "max_msgs_per_subject", 1), ("stream", "no_ack", True)),
        *(("consumer", "ack_policy", "none"), ("consumer", "max_deliver", 2), ("consumer", "headers_only", True)),
    ],
)
async def test_what_others_made_that_would_lose_data_is_named(engine: Any, name: str, of: str, member: str, value: Any) -> None:
    stream: dict[str, Any] = {"name": f"{name}-work", "subjects": [f"{name}.p.work.>"], "retention": "limits", "max_age": 0}
    stream |= {"storage": "file", "discard": "new", "duplicate_window": 120_000_000_000, "num_replicas": 1, "max_bytes": -1}
    consumer: dict[str, Any] = {"durable_name": "billing", "ack_policy": "explicit", "ack_wait": 30_000_000_000}
    consumer |= {"max_deliver": -1, "filter_subject": f"{name}.p.work.>", "max_ack_pending": 20_000}
    {"stream": stream, "consumer": consumer}[of][member] = value
    if member == "ack_policy":
        del consumer["max_ack_pending"]
    async with node(engine, name=name) as bus:
        await jetstream(bus).ask(f"STREAM.CREATE.{name}-work", stream)
        make = f"CONSUMER.DURABLE.CREATE.{name}-work.billing"
        await jetstream(bus).ask(make, {"stream_name": f"{name}-work", "config": consumer})
        worker = node(engine, WORK, name=name)
        worker.on("work.>", durable="billing")(lambda body: None)
        await refused(worker, LocalProtocolError, match=f"was not created by polybus: {member} is {value!r}")


async def test_ordered_is_one_at_a_time_in_the_whole_cluster(engine: Any, name: str) -> None:
    bus, workers = node(engine, WORK, name=name), [node(engine, name=name) for _ in range(2)]
    handled, running = list[int](), list[int]()
    for worker in workers:

        @worker.on("work.*", durable="billing", ordered=True, retry=SOON)
        async def bill(number: int, ctx: Context) -> None:
            assert running == []
            running.append(number)
            await anyio.lowlevel.checkpoint()
            running.clear()
            if number == 3 and ctx.attempt == 1:
                raise ValueError("again, before the others")
            handled.append(number)

    async with bus, workers[0], workers[1]:
        await publish_each(bus, "work.begun", range(20))
        await all_done(bus, f"{name}-work", "billing")
    assert handled == list(range(20))


async def test_a_worker_that_drains_takes_no_attempt_of_what_it_does_not_handle(engine: Any, name: str) -> None:
    bus, workers = node(engine, WORK, name=name), [node(engine, name=name) for _ in range(2)]
    begun, go_on = list[tuple[int, int]](), anyio.Event()

    async def bill(number: int, ctx: Context) -> None:
        begun.append((number, ctx.attempt))
        if number < 2:
            await go_on.wait()

    for worker in workers:  # with places that are free, and have been asked for
        worker.on("work.*", durable="billing", concurrency=8, retry=Retry(attempts=1))(bill)
    async with bus:
        async with workers[0]:
            await publish_each(bus, "work.begun", range(2))
            await eventually(lambda: len(begun) == 2)
            async with anyio.create_task_group() as group:
                group.start_soon(workers[0].drain)
                await eventually(lambda: workers[0].leaving)
                await publish_each(bus, "work.begun", range(2, 6))
                go_on.set()
        async with workers[1]:
            await all_done(bus, f"{name}-work", "billing")
        assert (await state(bus, f"{name}-dead"))["messages"] == 0
    assert sorted(begun) == [(number, 1) for number in range(6)]


async def test_a_durable_handler_that_differs_is_named_with_the_argument(engine: Any, name: str) -> None:
    def billing(pattern: str = "work.>", **options: Any) -> Bus:
        bus = node(engine, name=name)
        bus.on(pattern, durable="billing", **options)(lambda number: None)
        return bus

    async with node(engine, WORK, name=name), billing():
        pass
    differing: dict[str, Any] = {"ack_wait": 7, "ordered": True, "pattern": "work.*"}
    for argument, value in differing.items():
        text = f"durable='billing' already exists with a different {argument}: .*, not "
        await refused(billing(**{argument: value}), LocalProtocolError, match=text)
