"""A peer that asks and does not read: what is made for it stays small, and one that reads gets everything."""

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from polybus import Bus, Disconnected, Limits, TooManyRequests
from polybus._core.peer import inbound_calls
from polybus._core.rpc.reply import Reply
from polybus.plugins.extensions import core_of
from polybus.testing import pair
from tests.support import eventually
from tests.unit.answering import Gated

MIB = 1024 * 1024
ANSWER = 900_000
MOST = 8 * MIB


class Library:
    """Handlers of every kind that answer with as many bytes as they are asked for, and what they have made."""

    def __init__(self, bus: Bus) -> None:
        self.made = 0
        bus.handle("at.once")(self.at_once)
        bus.handle("after.a.wait")(self.after_a_wait)
        bus.handle("after.some.waits")(self.after_some_waits)
        bus.handle("in.a.thread")(self.in_a_thread)
        bus.handle("in.place", inline=True)(self.in_place)

    async def at_once(self, body: int) -> str:
        return self.in_place(body)

    async def after_a_wait(self, body: int) -> str:
        await anyio.lowlevel.checkpoint()
        return self.in_place(body)

    async def after_some_waits(self, body: int) -> str:
        for _ in range(9):
            await anyio.lowlevel.checkpoint()
        return self.in_place(body)

    def in_a_thread(self, body: int) -> str:
        return self.in_place(body)

    def in_place(self, body: int) -> str:
        self.made += body
        return "x" * body


KINDS = pytest.mark.parametrize("subject", ["at.once", "after.a.wait", "in.a.thread", "in.place"])


@asynccontextmanager
async def not_reading(client: Bus) -> AsyncIterator[None]:
    """As long as the block lasts, nothing that comes to a client is read."""
    transport: Any = core_of(client.peers[0]).link.transport
    transport.pause_reading()
    try:
        yield
    finally:
        transport.resume_reading()


async def at_rest(bus: Bus) -> None:
    """Wait until a server does nothing more: what it does next needs somebody else."""
    quiet, seen = 0, None
    threads: Any = bus._services.executor._threads
    while quiet < 50 or threads._free < bus.limits.threads:
        await anyio.lowlevel.checkpoint()
        now = (bus.stats(), bus._services.running.buffered)
        quiet, seen = (quiet + 1 if now == seen else 0), now


async def all_of(replies: list[Reply[Any]], size: int) -> None:
    for reply in replies:
        assert len(await reply) == size


@KINDS
async def test_for_a_peer_that_asks_and_does_not_read_no_more_than_8_mib_of_answers_are_made(subject: str) -> None:
    bus = Bus()
    library = Library(bus)
    async with pair(bus) as client:
        assert len(await client.request(subject, ANSWER)) == ANSWER
        before = library.made
        async with not_reading(client):
            replies = [client.request(subject, ANSWER) for _ in range(80)]
            await eventually(lambda: bus.stats().waiting >= 70)
            await at_rest(bus)
            assert ANSWER < library.made - before <= MOST
            assert bus._services.running.buffered <= MOST
        await all_of(replies, ANSWER)
        await eventually(lambda: bus._services.running.buffered == 0)


@asynccontextmanager
async def busy(bus: Bus) -> AsyncIterator[None]:
    """As long as the block lasts, each turn of the event loop takes a tenth of a second."""
    runtime = bus._services.running
    time, behind = runtime.time, 0.0

    async def take_time() -> None:
        nonlocal behind
        while True:
            behind += 0.1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        runtime.time = lambda: time() + behind
        group.start_soon(take_time)
        yield
        group.cancel_scope.cancel()


FOREVER = Limits(write_timeout=1e6, ping_interval=1e6)


# The mark keeps it out of a scope: requests have no more time than the scope that they are made in, and here time goes fast.
@pytest.mark.timeout(120)
@pytest.mark.parametrize("subject", ["at.once", "after.a.wait", "after.some.waits", "in.place"])
async def test_nor_are_more_made_of_the_very_first_answers_of_a_handler_however_busy_the_machine_is(subject: str) -> None:
    bus = Bus(limits=FOREVER)
    library = Library(bus)
    async with pair(bus, client=Bus(limits=FOREVER)) as client:
        async with not_reading(client), busy(bus):
            replies = [client.request(subject, ANSWER, timeout=1e6) for _ in range(80)]
            await eventually(lambda: library.made)
            await at_rest(bus)
            assert library.made <= MOST
        await all_of(replies, ANSWER)


async def test_nor_are_more_made_of_the_very_first_answers_of_a_handler_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_calls, "_LOOK", 1e6)  # as long as the machine takes to run a thread
    bus = Bus()
    library = Library(bus)
    async with pair(bus) as client:
        async with not_reading(client):
            replies = [client.request("in.a.thread", ANSWER) for _ in range(80)]
            await eventually(lambda: library.made and bus.stats().waiting >= 70)
            await at_rest(bus)
            assert library.made <= MOST
        await all_of(replies, ANSWER)


async def test_the_first_requests_to_a_handler_that_waits_for_all_of_them_begin_after_a_moment() -> None:
    bus, inside, full = Bus(), 0, anyio.Event()

    @bus.handle("meet")
    async def meet() -> str:
        nonlocal inside
        inside += 1
        if inside == 40:
            full.set()
        await full.wait()
        return "x" * 100_000

    async with pair(bus) as client:
        for _ in range(2):  # the second time it is known that the answers are large, but 40 of these are not too much
            inside, full = 0, anyio.Event()
            await all_of([client.request("meet") for _ in range(40)], 100_000)


async def test_all_64_places_are_for_a_handler_that_waits_and_has_not_answered_yet_and_for_others_after_it() -> None:
    bus = Bus(limits=Limits(running=66))
    Library(bus)
    gated = Gated(bus, answer=lambda size: "x" * size)
    async with pair(bus) as client:
        replies = [client.request("wait", 20_000) for _ in range(64)]
        await eventually(lambda: gated.inside == 64)
        for _ in range(2):
            assert len(await client.request("at.once", ANSWER)) == ANSWER
        gated.go.set()
        await all_of(replies, 20_000)


async def test_who_asks_too_much_of_a_handler_that_has_not_answered_yet_is_told_that_answers_are_the_reason() -> None:
    bus = Bus(limits=Limits(waiting=1))
    gated = Gated(bus)
    async with pair(bus) as client:
        replies = [client.request("wait") for _ in range(10)]
        with pytest.raises(TooManyRequests, match=r"behind 8 that run, whose answers .* \(Limits.outbox_bytes\)"):
            await replies.pop()
        gated.go.set()
        for reply in replies:
            await reply


async def test_a_handler_that_has_not_answered_yet_begins_beside_others_that_wait_before_large_answers() -> None:
    bus, inside, go = Bus(), 0, anyio.Event()

    @bus.handle("wait")
    async def wait(body: bool) -> str:
        nonlocal inside
        inside += 1
        if body:
            await go.wait()
        return "x" * ANSWER

    bus.handle("go", inline=True)(lambda: go.set())
    async with pair(bus) as client:
        await client.request("wait", False)
        replies = [client.request("wait", True) for _ in range(8)]
        await eventually(lambda: inside == 9)
        await client.request("go")
        await all_of(replies, ANSWER)


async def test_what_is_set_aside_for_calls_that_wait_is_what_an_answer_of_their_handler_shows() -> None:
    bus, inside, go, some = Bus(), 0, anyio.Event(), anyio.Event()

    @bus.handle("wait")
    async def wait(body: int) -> str:
        nonlocal inside
        inside += 1
        await (go if body else some).wait()
        return "x" * 20_000

    async with pair(bus) as client:
        first = client.request("wait", 0)
        replies = [client.request("wait", 1) for _ in range(40)]
        await eventually(lambda: inside == 41)
        some.set()
        await first
        replies += [client.request("wait", 1) for _ in range(20)]
        await eventually(lambda: inside == 61)
        go.set()
        await all_of(replies, 20_000)


async def test_answers_that_are_not_large_for_a_minute_are_not_expected_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, inside, go = Bus(limits=Limits(running=3)), 0, anyio.Event()

    @bus.handle("page")
    async def page(body: int) -> str:
        nonlocal inside
        inside += 1
        if not body:
            await go.wait()
        return "x" * body

    async with pair(bus, client=Bus(limits=Limits(message=9 * MIB))) as client:
        link = core_of(bus.peers[0]).link
        assert link.transport is not None
        await client.request("page", ANSWER)
        bus._lookup.handlers["page"].answers.weight = 5 * MIB  # as if it had been that
        replies = [client.request("page", 0) for _ in range(3)]
        await eventually(lambda: inside == 2 and bus.stats().waiting == 2)
        bus._lookup.handlers["page"].answers._until = bus._services.running.time()
        bus._services.running.deadlines.watch(core_of(bus.peers[0]), bus._services.running.time())
        await eventually(lambda: inside == 4)
        go.set()
        await all_of(replies, 0)


async def test_a_peer_that_reads_slowly_gets_all_it_has_asked_for_in_the_order_in_which_it_has_asked() -> None:
    bus = Bus()
    library, begun = Library(bus), list[int]()

    @bus.handle("number")
    async def number(body: int) -> str:
        begun.append(body)
        return await library.at_once(100_000)

    async with pair(bus) as client:
        await client.request("number", -1)
        transport: Any = core_of(client.peers[0]).link.transport
        replies = [client.request("number", number) for number in range(80)]
        while not replies[-1].done():
            transport.pause_reading()
            await at_rest(bus)
            assert library.made <= (sum(reply.done() for reply in replies) + 1) * 100_000 + MOST
            transport.resume_reading()
            await anyio.lowlevel.checkpoint()
        await all_of(replies, 100_000)
        assert begun == list(range(-1, 80))


@asynccontextmanager
async def four_unread(bus: Bus, client: Bus) -> AsyncIterator[list[Reply[Any]]]:
    """As long as the block lasts, a client does not read four large answers, which were made at the same time."""
    together = Gated(bus, "together", lambda _: "x" * 70_000)
    async with not_reading(client):
        replies = [client.request("together") for _ in range(4)]
        await eventually(lambda: together.inside == 4)
        together.go.set()
        await eventually(lambda: bus._services.running.buffered >= 3 * 70_000)
        await at_rest(bus)
        yield replies


async def test_who_does_not_read_takes_no_places_from_others_once_its_handlers_are_over() -> None:
    bus = Bus(limits=Limits(outbox_bytes=20_000, total_running=8))
    Library(bus)
    async with pair(bus) as greedy, pair(bus) as good:
        async with four_unread(bus, greedy) as replies:
            assert bus.stats().running == 0
            for _ in range(8):
                await good.request("at.once", 10)
        await all_of(replies, 70_000)
        assert bus.stats().running == 0


async def test_a_bus_that_drains_waits_for_answers_that_wait_to_be_read() -> None:
    async with pair(bus := Bus(limits=Limits(outbox_bytes=20_000))) as client, anyio.create_task_group() as group:
        async with four_unread(bus, client) as replies:
            group.start_soon(bus.drain)
            await eventually(lambda: not bus.ready)
            await at_rest(bus)
        await all_of(replies, 70_000)


async def test_requests_that_wait_for_their_peer_to_read_end_with_it() -> None:
    bus = Bus()
    Library(bus)
    async with pair(bus) as client:
        await client.request("at.once", ANSWER)
        link = core_of(bus.peers[0]).link
        async with not_reading(client):
            replies = [client.request("at.once", ANSWER) for _ in range(80)]
            await eventually(lambda: bus.stats().waiting >= 70)
            await at_rest(bus)
            await bus.peers[0].aclose()
        for reply in replies:
            with suppress(Disconnected):
                await reply
        await eventually(lambda: not bus.peers and bus._services.running.buffered == 0)
        assert bus._services.running.running == bus._services.running.answering == 0
        assert not link.stalled


@pytest.mark.parametrize("text", ["x" * ANSWER, "é" * (ANSWER // 2)], ids=["ASCII", "UTF-8"])
async def test_answers_that_wait_cost_the_memory_that_they_are_charged_with(text: str) -> None:
    """msgspec leaves its buffer as large as it has grown: up to two and a half times as large as what is in it."""
    bus = Bus(limits=Limits(outbox_bytes=128 * MIB))
    bus.handle("text", inline=True)(lambda: text)
    async with pair(bus) as client:
        assert await client.request("text") == text
        async with not_reading(client):
            await all_of_them_wait(bus, [client.request("text") for _ in range(4)])
            before = bus._services.running.buffered
            tracemalloc.start()
            try:
                replies = [client.request("text") for _ in range(20)]
                await all_of_them_wait(bus, replies)
                charged = bus._services.running.buffered - before
                assert charged > 20 * ANSWER
                assert tracemalloc.get_traced_memory()[0] < 1.05 * charged
            finally:
                tracemalloc.stop()


async def all_of_them_wait(bus: Bus, replies: list[Reply[Any]]) -> None:
    """Wait until all are answered, and no answer has been read."""
    await at_rest(bus)
    assert not any(reply.done() for reply in replies)
