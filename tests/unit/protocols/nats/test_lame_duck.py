"""A server that is about to end, in virtual time: links go on over another connection before they leave the one they have."""

import random
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import Backoff, Bus, BusError, Disconnected, connect
from polybus._core.link.server_move import MovingSession, next_connection
from polybus.events import LinkDown
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.protocols.nats.operations import write_json
from polybus.testing.nats_engine import EngineClient, NatsEngine
from tests.loops import virtual_time as anyio_backend  # noqa: F401

BACKOFF = Backoff(initial=0.001, maximum=0.02)
ENDS: dict[str, Any] = {"ldm": True, "connect_urls": ["127.0.0.1:1"]}


class Program:
    """A bus that answers, publishes and hears."""

    def __init__(self, name: str, bus: Bus, rng: random.Random, work: float) -> None:
        self.name, self.bus, self.rng, self.work = name, bus, rng, work
        self.alone, self.grouped, self.failed = Counter[str](), Counter[str](), list[BusError]()
        bus.on("news.*")(self.hear)
        bus.on("news.>", group="workers")(self.hear_in_group)
        bus.handle(f"ask.{name}")(self.answer)

    async def hear(self, body: str) -> None:
        self.alone[body] += 1

    async def hear_in_group(self, body: str) -> None:
        self.grouped[body] += 1

    async def answer(self, n: int) -> int:
        await anyio.sleep(self.work * self.rng.random())
        return n

    async def talk(self, sent: list[str], until: float) -> None:
        while anyio.current_time() < until:
            await anyio.sleep(0.05 * self.rng.random())
            sent.append(f"{self.name} {len(sent)}")
            await self.bus.publish("news.x", sent[-1])

    async def ask(self, others: str, until: float) -> None:
        n = 0
        while anyio.current_time() < until:
            await anyio.sleep(0.05 * self.rng.random())
            n += 1
            try:
                assert await self.bus.request(f"ask.{self.rng.choice(others)}", n, timeout=20) == n
            except BusError as error:
                self.failed.append(error)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wire", ["native", "cluster"])
async def test_no_request_fails_and_each_publication_comes_once_while_all_links_move(wire: str, seed: int) -> None:
    rng = random.Random(seed)
    async with NatsEngine(rng=rng) as engine, AsyncExitStack() as stack:
        programs = list[Program]()
        for name in "abc":
            bus = Bus(cluster=engine.url) if wire == "cluster" else Bus()
            programs.append(Program(name, bus, rng, (0.0, 0.05, 2.0)[(seed + len(programs)) % 3]))
            await stack.enter_async_context(bus if wire == "cluster" else connect(engine.url, bus=bus, backoff=BACKOFF))
        events = programs[0].bus.events()
        sent, before = list[str](), set(engine.clients)
        async with anyio.create_task_group() as group:
            for program in programs:
                for _ in range(1 + seed % 3):
                    group.start_soon(program.ask, "abc", 4.0)
                group.start_soon(program.talk, sent, 4.0)
            await anyio.sleep(1 + rng.random())
            engine.inform(**ENDS)
        await anyio.sleep(10)
        assert before.isdisjoint(engine.clients)
        assert [error for program in programs for error in program.failed] == []
        for heard in (*(program.alone for program in programs), sum((program.grouped for program in programs), Counter())):
            assert heard == Counter(sent)
        for program in programs:
            stats = program.bus.stats()
            assert (stats.reconnects, stats.dropped, stats.malformed, stats.pending) == (1, 0, 0, 0)
        await stack.aclose()
        assert [event async for event in events if isinstance(event, LinkDown) and "lame" in event.reason] == []


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What the log says of a server that is about to end."""
    return [(one.levelname, one.getMessage()) for one in caplog.records if "is about to end" in one.getMessage()]


async def test_publications_that_are_all_the_same_come_as_often_as_they_were_published(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, bus = list[str](), Bus()

    @bus.on("news")
    async def hear(body: str) -> None:
        heard.append(body)

    async with NatsEngine() as engine, AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        await stack.enter_async_context(connect(engine.url, bus=bus))
        (first,) = engine.clients
        other = await stack.enter_async_context(connect(engine.url))
        near, received = set(engine.clients), EngineClient.frames_received

        async def later(client: EngineClient, frames: Any) -> None:
            await anyio.sleep(0.1)
            received(client, frames)

        def far_away(client: EngineClient, frames: Any) -> None:
            if client in near:
                received(client, frames)
            else:
                tasks.start_soon(later, client, frames)

        monkeypatch.setattr(EngineClient, "frames_received", far_away)
        first.transport.send(write_json("INFO", {**engine.info, **ENDS}))
        for _ in range(400):
            await other.publish("news", "tick")
            await anyio.sleep(0.01)
        assert first not in engine.clients
        await anyio.sleep(1)
        monkeypatch.undo()
        assert len(heard) == 400


@pytest.mark.parametrize("said", [{"connect_urls": ENDS["connect_urls"]}, {"ldm": True}], ids=["it stays", "no other is there"])
async def test_a_link_stays_where_its_server_does_or_no_other_is_known(said: dict[str, Any]) -> None:
    async with NatsEngine() as engine, connect(engine.url, backoff=BACKOFF) as bus:
        before = list(engine.clients)
        engine.inform(**said)
        await anyio.sleep(10)
        assert list(engine.clients) == before
        assert bus.stats().reconnects == 0


async def test_a_link_that_no_other_server_lets_in_stays_until_it_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "polybus.link")
    async with NatsEngine() as engine, connect(engine.url, backoff=BACKOFF) as bus, bus.subscribe("news") as news:
        (first,), opened = engine.clients, engine.opened

        def refuse(transport: Any, admission: Any) -> None:
            transport.abort(Closed(1006, "not here"))

        engine.opened = refuse  # type: ignore[method-assign]
        engine.inform(**ENDS)
        await anyio.sleep(2)
        assert list(engine.clients) == [first]
        lines = told(caplog)
        assert [level for level, _ in lines[:4]] == ["INFO", "INFO", "WARNING", "WARNING"]  # attempts 1, 2, 4, 8
        assert len(lines) < 12
        assert "no other server accepts this bus (attempt 4): " in lines[2][1]
        await bus.publish("news", "still here")
        assert (await anext(news)).body == "still here"
        engine.opened = opened  # type: ignore[method-assign]
        first.transport.abort(Closed(1006, "ended"))
        await anyio.sleep(2)
        (second,) = engine.clients
        assert second is not first
        async with connect(engine.url) as other:
            await other.publish("news", "back")
        assert (await anext(news)).body == "back"


async def test_a_bus_that_is_left_while_it_moves_leaves_both_connections() -> None:
    async with NatsEngine() as engine:
        async with connect(engine.url):
            engine.inform(**ENDS)
            await anyio.sleep(0.3)
            assert len(engine.clients) == 2
        await anyio.sleep(1)
        assert len(engine.clients) == 0


class Late(NatsEngine):
    """An engine that lets nobody in before it is told to."""

    late = False
    waiting: list[Any]

    def admit(self, handshake: Any, decided: Any) -> None:
        if self.late:
            self.waiting.append(partial(super().admit, handshake, decided))
        else:
            super().admit(handshake, decided)


async def test_a_link_that_is_lost_before_it_could_move_leaves_the_connection_that_it_does_not_need() -> None:
    async with Late() as engine, connect(engine.url, backoff=BACKOFF) as bus, bus.subscribe("news") as news:
        engine.waiting, engine.late = [], True
        engine.inform(**ENDS)
        await anyio.sleep(0.1)
        await engine.cut()
        await anyio.sleep(0.1)
        beside, again = engine.waiting
        beside()
        await anyio.sleep(0.1)
        again()
        await anyio.sleep(1)
        assert len(engine.clients) == 1
        assert bus.stats().reconnects == 1
        await bus.publish("news", 1)
        assert (await anext(news)).body == 1


async def test_a_link_that_has_moved_moves_again_and_each_time_the_log_says_where_to(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "polybus.link")
    async with NatsEngine() as engine, connect(engine.url) as bus, bus.subscribe("news") as news:
        for n in range(3):
            before = set(engine.clients)
            engine.inform(**ENDS)
            await anyio.sleep(0.1 + n)  # while it moves, too
            engine.inform(**ENDS)
            await anyio.sleep(5)
            assert before.isdisjoint(engine.clients)
            assert len(engine.clients) == 1
            async with connect(engine.url) as other:
                await other.publish("news", n)
            assert (await anext(news)).body == n
        moved = f"the server of the link to {engine.url} is about to end: the link moves to {bus.peers[0].address}"
        assert set(told(caplog)) == {("INFO", moved)}
        assert len(told(caplog)) == bus.stats().reconnects


@pytest.mark.parametrize("end", ["cancelled", "the old connection is lost", "the new connection is lost"])
async def test_a_request_in_flight_while_its_link_moves_ends_where_it_began(end: str) -> None:
    async with NatsEngine() as engine, connect(engine.url, backoff=BACKOFF) as worker, AsyncExitStack() as stack:
        release, answered = anyio.Event(), list[str]()

        @worker.handle("slow")
        async def slow(body: str) -> str:
            await release.wait()
            answered.append(body)
            return body

        others = set(engine.clients)
        asker = await stack.enter_async_context(connect(engine.url, backoff=BACKOFF))
        (old,) = set(engine.clients) - others
        waiting, kept = asker.request("slow", "old", timeout=100), await stack.enter_async_context(asker.subscribe("news"))
        await anyio.sleep(0.1)
        old.transport.send(write_json("INFO", {**engine.info, **ENDS}))
        async with asker.subscribe("more"):
            await anyio.sleep(0.05)
            (new,) = set(engine.clients) - others - {old}
        await anyio.sleep(2)
        again = asker.request("slow", "new", timeout=100)
        if end == "cancelled":
            again.cancel()
            await anyio.sleep(1)
            assert {old, new} < set(engine.clients)  # the first one is still waited for
            waiting.cancel()
            await anyio.sleep(5)
            assert set(engine.clients) - others == {new}
            assert asker.stats().pending == asker.stats().dropped == 0
        elif end == "the old connection is lost":
            old.transport.abort(Closed(1006, "ended"))
            with pytest.raises(Disconnected):
                await waiting
            release.set()
            assert await again == "new"
            assert asker.stats().pending == 0
        else:
            new.transport.abort(Closed(1006, "ended"))
            for request in (waiting, again):
                with pytest.raises(Disconnected):
                    await request
            await anyio.sleep(1)
            assert {old, new}.isdisjoint(engine.clients)
        await asker.publish("news", 1)
        assert (await anext(kept)).body == 1


async def test_what_the_old_connection_reports_is_reported_by_the_link_which_takes_facts_from_the_new_one() -> None:
    async with NatsEngine() as engine, connect(engine.url, backoff=BACKOFF) as bus:
        link = core_of(bus.peers[0]).link
        engine.inform(**ENDS)
        await anyio.sleep(0.3)
        moving: Any = link.session
        assert isinstance(moving, MovingSession)
        assert (moving.codec, moving.start(0.0), moving.ending) == (moving.new.codec, (), False)
        moving.refused("unexpected", "nonsense", 0.0)
        moving.lost(3, "the reader was too slow")
        assert (bus.stats().malformed, bus.stats().dropped) == (1, 3)
        await anyio.sleep(3)
        assert (moving.ending, link.session) == (True, moving.new)


INFO = write_json("INFO", {"headers": True, "max_payload": 1000})


@pytest.mark.parametrize(
    ("happens", "why", "cut"),
    [
        (lambda new: new.closing(Closed(1001, "bye")), "bye", False),
        (lambda new: new.closed(Closed(1006, "")), "the connection ended", False),
        (lambda new: new.refused("malformed", "no NATS", 0.0), "no NATS", True),
        (lambda new: new.frames_received([INFO, b"-ERR 'Authorization Violation'\r\n"]), "Authorization Violation", True),
        (lambda new: new.frames_received([INFO, b"PONG\r\n"]), "the link was lost meanwhile", True),
    ],
    ids=["it leaves", "it ends", "malformed", "an error", "no link"],
)
async def test_a_second_connection_that_is_of_no_use_says_why(happens: Any, why: str, cut: bool) -> None:
    async with NatsEngine() as engine, connect(engine.url, backoff=BACKOFF) as bus:
        done: list[Any] = []
        transport: Any = SimpleNamespace(start=lambda receiver: None, send=done.append, abort=done.append)
        new = next_connection(core_of(bus.peers[0]).link, transport)
        assert new is not None
        new.start()
        await engine.cut()
        await anyio.lowlevel.checkpoint()
        happens(new)
        assert why in new.why
        assert (new.decided.is_set(), new.moving) == (True, None)
        assert [type(each) for each in done if not isinstance(each, bytes)] == [Closed] * cut


async def test_a_recorder_of_a_link_records_the_connection_that_it_moves_to_and_the_old_one_to_its_end() -> None:
    began, over = list[Any](), list[Any]()

    def tap(adapter: Any, transport: Any, **given: Any) -> Any:
        began.append(transport)
        return SimpleNamespace(
            recorder=recorder, around=lambda *both: both, over=lambda why: over.append((transport, why.reason[:15]))
        )

    recorder: Any = SimpleNamespace(tap=tap)
    async with NatsEngine() as engine, connect(engine.url, backoff=BACKOFF) as bus:
        link = core_of(bus.peers[0]).link
        link.record(recorder)
        link.services.recorders.append(recorder)
        engine.inform(**ENDS)
        await anyio.sleep(5)
        assert began[1:] == [link.transport]
        assert over == [(began[0], "the NATS server")]
        link.services.recorders.remove(recorder)
