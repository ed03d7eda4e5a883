"""Readers of stores at an engine that lies, forgets and is silent, in virtual time."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from polybus import Bus, Cluster, Context, DeadlineExceeded, LocalProtocolError, QueueFull, Retry, Store
from polybus._core.bus.bus import parts_of
from polybus.cluster.durable.administration import Administration
from polybus.cluster.durable.jetstream import JetStream
from polybus.protocols.nats.operations import NatsOperation
from polybus.testing import NatsEngine
from polybus.testing.nats_engine import EngineClient
from tests.loops import virtual_asyncio  # noqa: F401
from tests.support import eventually
from tests.unit.answering import noting, publish_each
from tests.unit.cluster.handlers import failing

WORK = Store("work", "work.>")
ASKED = "$JS.API."
NEXT = f"{ASKED}CONSUMER.MSG.NEXT."
INFO = f"{ASKED}CONSUMER.INFO."


class Liar(NatsEngine):
    """An engine that asks `lie` first what to do with what a client says: True where that was all."""

    def __init__(self, version: str = "2.15.1") -> None:
        super().__init__()
        self.version = version
        self.lie: Callable[[NatsOperation], bool]
        self.honest()
        self.heard: list[tuple[float, NatsOperation]] = []
        self.asker: EngineClient

    @property
    def info(self) -> dict[str, Any]:
        return {**super().info, "version": self.version}

    def route(self, sender: EngineClient, operation: NatsOperation, block: bytes) -> None:
        self.heard.append((anyio.current_time(), operation))
        self.asker = sender
        if not self.lie(operation):
            super().route(sender, operation, block)

    def answer(self, operation: NatsOperation, said: Any) -> bool:
        assert operation.reply is not None
        return self.hand(operation.reply, NatsOperation("PUB", operation.reply, payload=msgspec.json.encode(said)), b"")

    def store(self, subject: str, payload: bytes) -> bool:
        super().route(self.asker, NatsOperation("PUB", subject, payload=payload), b"")
        return True

    def status(self, operation: NatsOperation, status: str) -> bool:
        assert operation.reply is not None
        return self.hand(operation.reply, NatsOperation("PUB", operation.reply), f"NATS/1.0 {status}\r\n\r\n".encode())

    def lies(self, subject: str, said: Any) -> None:
        """Answer all questions to these subjects so, or not at all for `None`."""
        self.lie = lambda operation: operation.subject.startswith(subject) and (said is None or self.answer(operation, said))

    def honest(self) -> None:
        self.lie = lambda operation: False

    def times(self, subject: str, word: bytes = b"") -> list[float]:
        """When something was said to a subject."""
        return [at for at, said in self.heard if said.subject.startswith(subject) and said.payload.startswith(word)]


@pytest.fixture
async def engine() -> AsyncIterator[Liar]:
    async with Liar() as running:
        yield running


def shop(engine: NatsEngine) -> Bus:
    return Bus(cluster=Cluster(engine.url, name="shop", stores=[WORK]))


@pytest.mark.parametrize("said", [{"error": {"err_code": [1]}}, {"error": "no"}, [1], None, {"config": 7}])
async def test_whatever_an_engine_answers_a_handler_goes_on(engine: Liar, said: Any, caplog: pytest.LogCaptureFixture) -> None:
    bus = shop(engine)
    handled = noting(bus, "work.x", durable="billing")
    async with bus:
        engine.lies(INFO, said)
        await engine.cut()
        with anyio.fail_after(60):
            await eventually(lambda: "the durable handler billing waits for its store" in caplog.text)
            engine.honest()
            await bus.publish("work.x", 1)
            await eventually(lambda: handled == [1])


@pytest.mark.parametrize("status", ["404 No Messages", "408 Request Timeout", "409 Exceeded MaxRequestBatch of 1"])
async def test_an_engine_that_refuses_is_asked_once_a_second(
    engine: Liar, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = shop(engine)
    bus.on("work.x", durable="billing")(lambda number: None)
    engine.lie = lambda asked: asked.subject.startswith(NEXT) and len(engine.times(NEXT)) < 200 and engine.status(asked, status)
    async with bus:
        began = anyio.current_time()
        await anyio.sleep(10)
        asked = [at for at in engine.times(NEXT) if at >= began]
    assert 5 <= len(asked) <= 12
    assert (f"the durable handler billing: the engine refuses: {status}" in caplog.text) == status.startswith("409")


async def test_a_pull_that_is_forgotten_is_noticed_however_long_ack_wait_is(engine: Liar) -> None:
    bus, handled = shop(engine), list[int]()

    @bus.on("work.x", durable="billing", ack_wait=3600)
    async def bill(number: int) -> None:
        engine.lies(NEXT, None)
        handled.append(number)

    async with bus:
        await bus.publish("work.x", 1)
        await eventually(lambda: handled == [1])
        await eventually(lambda: len(engine.times("$JS.ACK.", b"+ACK")) == 1)
        engine.honest()
        await bus.publish("work.x", 2)
        with anyio.fail_after(30):
            await eventually(lambda: handled == [1, 2])


async def test_a_handler_that_may_not_acknowledge_leaves_its_work_to_others(
    engine: Liar, caplog: pytest.LogCaptureFixture
) -> None:
    bus = shop(engine)
    handled = noting(bus, "work.x", durable="billing", ack_wait=5, concurrency=8)

    def forbid(operation: NatsOperation) -> bool:
        if not operation.subject.startswith("$JS.ACK."):
            return False
        engine.say(f'Permissions Violation for Publish to "{operation.subject}"')
        return engine.store("shop.p.work.x", b"2")  # and hands it on before it has read that nobody wants it

    async with bus:
        engine.lie = forbid
        await bus.publish("work.x", 1)
        with anyio.fail_after(20):
            await eventually(lambda: "may not acknowledge its publications" in caplog.text)
        await anyio.sleep(1)
        engine.honest()
        assert handled == [1]
        await engine.cut()  # on another connection, another user may be allowed
        with anyio.fail_after(60):
            await eventually(lambda: {*handled} == {1, 2})


async def test_what_comes_again_while_it_is_worked_on_runs_once(engine: Liar) -> None:
    bus, attempts = shop(engine), list[int]()

    @bus.on("work.x", durable="billing", ack_wait=1, concurrency=4)
    async def bill(number: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        await anyio.sleep(10)

    async with bus:
        engine.lie = lambda operation: operation.payload == b"+WPI" and anyio.current_time() < until
        until = anyio.current_time() + 5  # a network that loses the word that it is worked on
        await bus.publish("work.x", 1)
        await eventually(lambda: len(engine.times("$JS.ACK.", b"+ACK")) == 1)
        found = await Administration.of(bus).store("work")
        assert found.durables == {"billing": (0, 0)}
    assert attempts == [1]
    assert len({said.subject for _, said in engine.heard if said.subject.startswith("$JS.ACK.")}) > 1, "it came again"


async def test_what_waits_for_room_in_one_reader_is_not_given_to_another(engine: Liar) -> None:
    async with shop(engine) as bus, shop(engine) as other:
        for number in range(12):
            await bus.publish("work.x", [number, "x" * 600_000])
        async with bus.subscribe("work.>", durable="audit", queue=12, ack_wait=1) as work:
            await eventually(lambda: work._source.full)
            async with other.subscribe("work.>", durable="audit", queue=12, ack_wait=1) as idle:
                with pytest.raises(TimeoutError):
                    await idle.receive(2.5)  # longer than the engine waits for a word
                for number in range(12):
                    message = await work.receive(10)
                    assert (message.body[0], message.attempt) == (number, 1)
                    message.ack()
            await eventually(lambda: len(engine.times("$JS.ACK.", b"+ACK")) == 12)


async def test_what_is_worked_on_is_said_while_the_consumer_is_looked_for(engine: Liar) -> None:
    bus, other, begun = shop(engine), shop(engine), list[int]()

    async def bill(number: int, ctx: Context) -> None:
        begun.append(ctx.attempt)
        await anyio.sleep(20)

    for worker in (bus, other):
        worker.on("work.x", durable="billing", ack_wait=3, retry=Retry(attempts=2))(bill)
    async with bus, other:
        await bus.publish("work.x", 1)
        await eventually(lambda: begun == [1])
        silent_until = anyio.current_time() + 12
        engine.lie = lambda operation: operation.subject.startswith(INFO) and anyio.current_time() < silent_until
        await engine.cut()
        await eventually(lambda: len(engine.times("$JS.ACK.", b"+ACK")) == 1)
    assert begun == [1]


async def test_a_store_that_is_made_again_is_read_from_its_beginning_by_those_who_were_there(engine: Liar) -> None:
    bus = shop(engine)
    handled = noting(bus, "work.x", durable="billing", start="new")
    async with bus, bus.subscribe("work.>", start="new", returns=int) as replay:
        for number in range(3):
            await bus.publish("work.x", number)
            assert (await replay.receive(20)).body == number
        await Administration.of(bus).remove("work")  # with its numbers, as when its engine has lost it
        await engine.cut()
        with anyio.fail_after(60):
            for number in range(3, 5):
                await bus.publish("work.x", number, timeout=20)
                assert (await replay.receive(20)).body == number
            await eventually(lambda: handled == [0, 1, 2, 3, 4])


FULL = {"error": {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}}


async def test_of_letters_without_room_a_few_lines_a_minute_are_written(engine: Liar, caplog: pytest.LogCaptureFixture) -> None:
    bus = shop(engine)
    failing(bus, "work.*", concurrency=4)
    engine.lies("shop.dead.", FULL)
    async with bus:
        await publish_each(bus, "work.x", range(4))
        await anyio.sleep(50)
        assert len(engine.times("shop.dead.")) > 20
        assert caplog.text.count("the letter cannot be stored, so the publication is redelivered") == 3
        engine.honest()
        with anyio.fail_after(60):
            stored = re.compile(r"'work.x' .* failed: RuntimeError: \d$")
            await eventually(lambda: len([*filter(stored.match, caplog.messages)]) == 4)


@pytest.mark.parametrize("reader", ["handler", "ordered handler", "subscription"])
async def test_without_room_for_letters_what_has_no_attempts_left_is_tried_again(engine: Liar, reader: str) -> None:
    store, retry = Store("work", "work.>", work=True), Retry(attempts=2, backoff=0.1)
    broken, done = [True], set[int]()

    @asynccontextmanager
    async def worker() -> AsyncIterator[Bus]:
        bus = Bus(cluster=Cluster(engine.url, name="shop", stores=[store]))

        async def bill(number: int) -> None:
            if broken[0]:
                raise RuntimeError(number)
            done.add(number)

        async def read() -> None:
            async with bus.subscribe("work.>", durable="billing", retry=retry, returns=int, queue=2) as publications:
                async for publication in publications:
                    if broken[0]:
                        publication.retry()
                    else:
                        publication.ack()
                        done.add(publication.body)

        if reader != "subscription":
            bus.on("work.>", durable="billing", retry=retry, ordered=reader != "handler")(bill)
        async with bus, anyio.create_task_group() as tasks:
            if reader == "subscription":
                tasks.start_soon(read)
            yield bus
            tasks.cancel_scope.cancel()

    engine.lies("shop.dead.", FULL)
    async with worker() as bus:
        await publish_each(bus, "work.x", range(5))
        await anyio.sleep(60)
        assert len(engine.times("shop.dead.")) > 5
        assert done == set()
    broken[0] = False
    async with worker():  # and another one than that which has seen why
        with anyio.fail_after(300):
            await eventually(lambda: done == {0, 1, 2, 3, 4})
            await eventually(lambda: len(engine.times("$JS.ACK.", b"+ACK")) == 5)


def copies(engine: Liar, operation: NatsOperation) -> bool:
    """Have no room for a long letter, and answer what is asked about a copy of the first publication as if there were one."""
    if operation.subject.startswith("shop.dead.") and len(operation.payload) > 100:
        return engine.answer(
            operation, {"error": {"code": 400, "err_code": 10054, "description": "message size exceeds maximum"}}
        )
    said = {"description": "A copy of publication 1 of shop-work, whose dead letter has not all of it."}
    about = operation.subject.startswith(ASKED) and operation.subject.endswith(".shop-work-rest-1")
    return about and engine.answer(operation, {"config": said, "state": {"messages": 1}})


@asynccontextmanager
async def ordered(engine: Liar) -> AsyncIterator[list[str]]:
    """A node whose ordered handler fails for the first publication, which is long; what it has done."""
    bus = Bus(cluster=Cluster(engine.url, name="shop", stores=[Store("work", "work.>", work=True)]))
    done = list[str]()

    @bus.on("work.x", durable="billing", ordered=True, retry=Retry(attempts=1))
    async def bill(text: str) -> None:
        if len(text) > 1:
            raise ValueError("too long")
        done.append(text)

    async with bus:
        await publish_each(bus, "work.x", ["x" * 1000, "x"])
        yield done


@pytest.mark.parametrize("word", ["STREAM.INFO.shop-work-rest-", "STREAM.UPDATE.", "CONSUMER.NAMES."])
async def test_an_ordered_handler_goes_on_when_an_engine_that_was_silent_about_a_copy_answers(engine: Liar, word: str) -> None:
    engine.lie = lambda operation: operation.subject.startswith(f"{ASKED}{word}") or copies(engine, operation)
    async with ordered(engine) as done:
        await anyio.sleep(60)
        assert done == []
        engine.lie = lambda operation: copies(engine, operation)
        with anyio.fail_after(60):
            await eventually(lambda: done == ["x"])


@pytest.mark.parametrize(("version", "seconds"), [("2.9.10", 7), ("2.12.8", 12), ("2.14.0", 0)])
async def test_an_ordered_handler_goes_on_behind_a_copy_when_no_server_copies_any_more(version: str, seconds: float) -> None:
    async with Liar(version) as engine:
        engine.lie = lambda operation: copies(engine, operation)
        async with ordered(engine) as done:
            with anyio.fail_after(60):
                await eventually(lambda: done == ["x"])
            [ended], [over] = engine.times(f"{ASKED}STREAM.UPDATE."), engine.times("$JS.ACK.", b"+TERM")
            assert seconds <= over - ended < seconds + 1


async def test_a_store_without_a_leader_is_asked_again_what_it_does_with_what_is_acknowledged(engine: Liar) -> None:
    bus, leaderless = shop(engine), {"error": {"code": 503, "err_code": 10008, "description": "temporarily unavailable"}}

    @bus.on("work.x", durable="billing", retry=Retry(attempts=1))
    async def bill(text: str) -> None:
        raise ValueError("too long")

    async with bus:
        engine.lie = lambda asked: (
            copies(engine, asked) or (asked.subject == f"{ASKED}STREAM.INFO.shop-work" and engine.answer(asked, leaderless))
        )
        await bus.publish("work.x", "x" * 1000)
        await anyio.sleep(60)
        assert not engine.times("$JS.ACK.", b"+TERM")
        engine.lie = lambda operation: copies(engine, operation)
        with anyio.fail_after(60):
            await eventually(lambda: engine.times("$JS.ACK.", b"+TERM"))


async def test_a_store_of_dead_letters_that_is_gone_is_made_again_for_the_next_one(engine: Liar) -> None:
    bus = shop(engine)
    failing(bus, "work.x")
    async with bus:
        administration = Administration.of(bus)
        await administration.remove("dead")
        await bus.publish("work.x", 7)
        with anyio.fail_after(60):
            await eventually(lambda: _letters(administration, 1))
        assert (await administration.letter(1)).body == b"7"


async def test_what_an_engine_gives_out_again_minutes_later_has_one_letter(engine: Liar) -> None:
    bus, attempts = shop(engine), list[int]()

    @bus.on("work.x", durable="billing", retry=Retry(attempts=1))
    async def bill(number: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(number)

    async with bus:
        administration = Administration.of(bus)
        await bus.publish("work.x", 7)
        with anyio.fail_after(60):
            await eventually(lambda: _letters(administration, 1))
        await anyio.sleep(600)  # longer than an engine usually knows an id
        await JetStream(parts_of(bus).links.mesh).ask("CONSUMER.DELETE.shop-work.billing")  # type: ignore[arg-type]  # a killed server forgets so
        with anyio.fail_after(60):
            await eventually(lambda: attempts == [1, 1])
            await eventually(lambda: len(engine.times("$JS.ACK.", b"+TERM")) == 2)
        assert len([letter async for letter in administration.letters()]) == 1
        await administration.remove("work")  # another store begins its numbers anew: its letters are others
        await administration.add(WORK)
        with anyio.fail_after(60):
            await bus.publish("work.x", 8, timeout=20)
            await eventually(lambda: _letters(administration, 2))


async def _letters(administration: Administration, count: int) -> bool:
    return len([letter async for letter in administration.letters()]) == count


# -- publications ----------------------------------------------------------------------------------------------------------


async def test_a_publication_to_a_store_without_a_leader_is_told_as_that(engine: Liar) -> None:
    bus = shop(engine)
    engine.lie = lambda operation: operation.subject == "shop.p.work.x" and engine.status(operation, "503")
    async with bus:
        with pytest.raises(DeadlineExceeded, match="no stream accepted it, so it is not stored: its stream .* has no leader"):
            await bus.publish("work.x", 1, timeout=5)
        assert len(engine.times("shop.p.work.x")) > 5


async def test_a_publication_to_an_engine_that_keeps_nothing_any_more_says_what_to_start(engine: Liar) -> None:
    bus = shop(engine)
    async with bus:
        engine.lie = lambda said: said.subject in ("shop.p.work.x", f"{ASKED}STREAM.NAMES") and engine.status(said, "503")
        with pytest.raises(LocalProtocolError, match="JetStream is not enabled in the cluster's NATS server: start it with"):
            await bus.publish("work.x", 1, timeout=5)


async def test_what_is_refused_after_it_was_sent_without_an_answer_may_be_stored(engine: Liar) -> None:
    bus = shop(engine)
    engine.lie = lambda operation: (
        operation.subject == "shop.p.work.x" and (len(engine.times("shop.p.work.x")) == 1 or engine.answer(operation, FULL))
    )
    async with bus:
        with pytest.raises(QueueFull, match="'work.x' may be stored, as it was sent before without an answer; now the NATS"):
            await bus.publish("work.x", 1, timeout=10)
        with pytest.raises(QueueFull, match="'work.x' is not stored: the NATS server says: maximum bytes"):
            await bus.publish("work.x", 2, timeout=10)
