"""Faults of a cluster in virtual time: nodes that lose their connection, an engine that goes away and comes back."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from polybus import Bus, Cluster, ConnectFailed, DeadlineExceeded, Disconnected, Reply, Store, connect
from polybus._core.runtime import workers
from polybus.cluster.durable.administration import Administration
from polybus.events import ClusterGap, LinkDown, NodeGone
from polybus.plugins import Admission, Closed, Transport
from polybus.protocols.nats.operations import NatsOperation, write_json
from polybus.testing import NatsEngine, cluster
from polybus.testing.nats_engine import EngineClient, met
from tests.loops import virtual_asyncio  # noqa: F401
from tests.refusal import refused
from tests.support import eventually, next_event
from tests.unit.answering import noting, publish_each
from tests.unit.cluster.handlers import Endless, double


async def test_what_a_node_had_ends_within_two_seconds_when_its_connection_is_gone(engine: NatsEngine) -> None:
    asker, worker, work = Bus(cluster=engine.url), Bus(cluster=engine.url), Endless()
    worker.handle("work")(work.run)

    @worker.handle("rows")
    async def rows() -> AsyncIterator[int]:
        yield 1
        await anyio.sleep_forever()

    async with cluster(asker, worker, url=engine.url), asker.stream("rows") as items:
        assert await anext(items) == 1
        replies = [asker.request("work", timeout=60) for _ in range(50)]
        await eventually(lambda: work.begun == 50)
        events = asker.events()
        _, client = engine.clients
        client.transport.abort(Closed(1006, "killed"))
        before = anyio.current_time()
        for reply in replies:
            with pytest.raises(Disconnected) as caught:
                await reply
            assert caught.value.sent
        with pytest.raises(Disconnected, match="is gone"):
            await anext(items)
        assert anyio.current_time() - before < 2
        await eventually(lambda: work.stopped == 50)
        assert asker.stats().pending == 0
        gone = await next_event(events, NodeGone)
        assert not gone.orderly


async def test_that_holds_on_a_quiet_connection_too_of_what_nobody_has_taken() -> None:
    class Deaf(NatsEngine):
        """An engine that loses what the handler was to get, and what a node says to all."""

        lost = False

        def route(self, sender: EngineClient, operation: NatsOperation, block: bytes) -> None:
            if not self.lost or operation.subject not in ("polybus.r.work", "polybus.a"):
                super().route(sender, operation, block)

    async with Deaf() as engine:
        asker, worker = Bus(cluster=engine.url), Bus(cluster=engine.url)
        worker.handle("work")(lambda: None)
        async with cluster(asker, worker, url=engine.url):
            await anyio.sleep(5)  # until all is quiet
            engine.lost = True
            reply = asker.request("work", timeout=60)
            await anyio.wait_all_tasks_blocked()
            _, client = engine.clients
            client.transport.abort(Closed(1006, "killed"))
            with anyio.fail_after(6), pytest.raises(Disconnected) as caught:
                await reply
            assert caught.value.sent


async def test_that_holds_on_a_busy_connection_too_which_has_come_back(engine: NatsEngine) -> None:
    asker, worker, other = (Bus(cluster=engine.url) for _ in range(3))
    work = Endless()
    worker.handle("work")(work.run)
    other.handle("double")(double)

    async def ask_on() -> None:
        while True:
            await asker.request("double", 1, timeout=60)
            await anyio.sleep(0.1)

    async with cluster(asker, worker, other, url=engine.url):
        first = asker.request("work", timeout=60)
        await eventually(lambda: work.begun == 1)
        await anyio.sleep(0.5)  # so that the next look is nearer than that of the connection to come
        await engine.cut()
        with pytest.raises(Disconnected):
            await first
        second = asker.request("work", timeout=60)
        await eventually(lambda: work.begun == 2)
        async with anyio.create_task_group() as group:
            group.start_soon(ask_on)
            await anyio.sleep(3)
            (subscription,) = engine.subscriptions.match("polybus.r.work")
            subscription.client.transport.abort(Closed(1006, "killed"))
            with anyio.fail_after(2), pytest.raises(Disconnected) as caught:
                await second
            assert caught.value.sent
            group.cancel_scope.cancel()


async def test_the_engine_goes_away_and_comes_back_and_nothing_that_waits_is_lost(engine: NatsEngine) -> None:
    asker, worker, hearer = (Bus(cluster=engine.url) for _ in range(3))
    endless = Endless()
    worker.handle("forever")(endless.run)
    worker.handle("double")(double)
    heard = noting(hearer, "news")
    async with cluster(asker, worker, hearer, url=engine.url):
        reply = asker.request("forever", timeout=60)
        await eventually(lambda: endless.begun)
        events = asker.events()
        await engine.cut()
        with pytest.raises(Disconnected) as caught:
            await reply
        assert caught.value.sent
        # These wait until the others are back, who may come later than this one.
        waiting = [asker.request("double", n, timeout=20) for n in range(20)]
        await publish_each(asker, "news", range(20))
        assert [await one for one in waiting] == [2 * n for n in range(20)]
        await eventually(lambda: len(heard) == 20)
        assert heard == list(range(20))
        gap = await next_event(events, ClusterGap)
        assert gap.seconds > 0
        assert asker.stats().pending == asker.stats().queued == 0


async def test_an_engine_that_goes_away_again_and_again_loses_nothing_that_waits(engine: NatsEngine) -> None:
    asker, worker, hearer = (Bus(cluster=engine.url) for _ in range(3))
    worker.handle("double")(double)
    heard = noting(hearer, "news")
    async with cluster(asker, worker, hearer, url=engine.url):
        waiting = list[Reply[int]]()
        for turn in range(4):
            await engine.cut()
            waiting += [asker.request("double", n, timeout=60) for n in range(10 * turn, 10 * turn + 10)]
            await publish_each(asker, "news", range(10 * turn, 10 * turn + 10))
            await anyio.sleep(0.05 * turn)  # one of them is back, and another not yet
        for n, reply in enumerate(waiting):
            try:
                assert await reply == 2 * n
            except Disconnected as error:
                assert error.sent
        await eventually(lambda: 39 in heard)
        assert heard == sorted(set(heard))
        assert asker.stats().pending == asker.stats().queued == 0


async def test_clients_are_sent_away_after_a_gap_where_that_is_wished(engine: NatsEngine) -> None:
    gateway, other = Bus(cluster=Cluster(engine.url, gap="disconnect")), Bus(cluster=engine.url)
    async with cluster(gateway, other, url=engine.url), gateway.serve("ubre+memory://cluster-gap"):
        async with connect("ubre+memory://cluster-gap") as client:
            events = client.events()
            await engine.cut()
            down = await next_event(events, LinkDown)
            assert down.code == 1012


async def test_an_engine_that_is_not_there_is_an_error_after_the_wait() -> None:
    bus = Bus(cluster=Cluster("nats+memory://nobody-there", wait=3))
    before = anyio.current_time()
    await refused(bus, ConnectFailed)
    assert 2.99 <= anyio.current_time() - before < 10


async def test_a_node_that_drains_answers_what_it_has_and_gets_nothing_more(engine: NatsEngine) -> None:
    asker, first, second = (Bus(cluster=engine.url) for _ in range(3))
    answered: Counter[str] = Counter()

    def handle_at(bus: Bus, name: str) -> None:
        @bus.handle("work")
        async def work(n: int) -> str:
            await anyio.sleep(0.05)
            answered[name] += 1
            return name

    handle_at(first, "first")
    handle_at(second, "second")
    async with cluster(asker, second, url=engine.url):
        async with first:
            await met(asker, first, second)
            replies = []
            for n in range(100):
                replies.append(asker.request("work", n))
                if n == 50:
                    await anyio.sleep(0.02)
        assert Counter([await reply for reply in replies]) == answered
        assert sum(answered.values()) == 100
        answered.clear()
        for n in range(10):
            assert await asker.request("work", n) == "second"
        found = await asker.nodes()
        assert (len(found), found.complete) == (2, True)


@pytest.mark.parametrize(("dedup", "sent"), [(120.0, [0, 2, 6, 14]), (10.0, [0, 2]), (1.0, [0])])
async def test_nothing_is_stored_twice_when_a_store_forgot_its_id(engine: NatsEngine, dedup: float, sent: list[int]) -> None:
    shop, native = Bus(cluster=Cluster(engine.url, stores=[Store("work", "work.>", dedup=dedup)])), Bus()
    heard: list[float] = []

    @native.handle("polybus.p.work.x")
    async def listen(body: int) -> None:
        heard.append(anyio.current_time())

    async with shop, connect(engine.url, bus=native):
        await Administration.of(shop).remove("work")  # so that nobody says that it is stored
        with pytest.raises(DeadlineExceeded, match="publish it again with the same id="):
            await shop.publish("work.x", 1, timeout=16)
    assert [round(at - heard[0]) for at in heard] == sent


async def test_a_node_takes_a_request_if_its_handler_waits_only(engine: NatsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_TURN", math.inf)  # a busy machine must not end a turn
    one, two = Bus(cluster=engine.url), Bus(cluster=engine.url)
    taken: Counter[str] = Counter()
    now = "at once"
    two.handle("double")(double)

    @two.handle("triple")
    async def triple(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 3 * n

    def count(sender: object, operation: object, block: bytes) -> None:
        taken[now] += block.startswith(b"NATS/1.0 102")
        route(sender, operation, block)  # type: ignore[arg-type]

    route = engine.route
    async with cluster(one, two, url=engine.url):
        monkeypatch.setattr(engine, "route", count)
        assert [await reply for reply in [one.request("double", n) for n in range(100)]] == [2 * n for n in range(100)]
        now = "later"
        assert [await reply for reply in [one.request("triple", n) for n in range(10)]] == [3 * n for n in range(10)]
        assert taken == {"at once": 0, "later": 1}  # of all that came in one turn


class Slow(NatsEngine):
    """An engine that reads what a client says a second later, and nothing more of one that has left by then."""

    def opened(self, transport: Transport, admission: Admission) -> None:
        client = SlowlyRead(self, transport)
        self.clients[client] = None
        transport.start(client)
        transport.send(write_json("INFO", self.info))


class SlowlyRead(EngineClient):
    reading: ClassVar[TaskGroup]

    def frames_received(self, frames: Sequence[bytes]) -> None:
        self.reading.start_soon(self.read_later, frames)

    async def read_later(self, frames: Sequence[bytes]) -> None:
        await anyio.sleep(1)
        if self in self.engine.clients:
            super().frames_received(frames)


async def test_the_last_acknowledgement_of_a_worker_that_leaves_reaches_an_engine_that_is_slow() -> None:
    async with anyio.create_task_group() as SlowlyRead.reading, Slow() as engine:
        shop, worker = (Bus(cluster=Cluster(engine.url, stores=[Store("work", "work.>", work=True)])) for _ in range(2))
        begun = anyio.Event()

        @worker.on("work.*", durable="billing")
        async def bill(number: int) -> None:
            begun.set()
            await eventually(lambda: worker.leaving)
            await anyio.sleep(5)  # until the engine has read that no more is taken

        async with shop:
            async with worker:
                await shop.publish("work.begun", 1)
                await begun.wait()
            assert (await Administration.of(shop).store("work")).publications == 0


async def test_the_last_publication_before_a_link_is_left_reaches_an_engine_that_is_slow() -> None:
    async with anyio.create_task_group() as SlowlyRead.reading, Slow() as engine, connect(engine.url) as hearer, Bus() as bus:
        async with hearer.subscribe("news") as news:
            async with connect(engine.url, bus=bus):
                await bus.publish("news", "last")
            with anyio.fail_after(5):
                assert (await anext(news)).body == "last"
