"""A handler that blocks the event loop is named in the log."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.from_thread
import pytest

from polybus import Bus, Context, Forbidden, Message
from polybus._util.logs import Warnings
from polybus.testing import pair
from tests.loops import both_backends  # noqa: F401
from tests.support import eventually


class Clock:
    """A clock that only goes on when somebody says so: as if that had taken so long."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def block(self, seconds: float) -> None:
        self.now += seconds


@asynccontextmanager
async def timed(bus: Bus, clock: Clock) -> AsyncIterator[Bus]:
    async with bus:
        bus._services.running.workers.clock = clock
        async with pair(bus) as client:
            yield client


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "polybus.handlers"]


async def test_a_handler_that_blocks_the_loop_for_more_than_a_second_is_named(caplog: pytest.LogCaptureFixture) -> None:
    bus, clock = Bus(), Clock()

    @bus.handle("order.place")
    async def place_order(body: float) -> None:
        clock.block(body)

    async with timed(bus, clock) as client:
        await client.request("order.place", 1.0)
        assert told(caplog) == []
        await client.request("order.place", 6.0)
        (text,) = told(caplog)
    for part in ("place_order", "'order.place'", "6.0 s", "plain def", "anyio.to_thread.run_sync"):
        assert part in text
    assert caplog.records[-1].levelno == logging.WARNING


async def test_a_handler_is_not_blamed_for_an_authorize_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refuses = waits = False

    async def authorize(peer: Any, verb: str, subject: Any) -> bool:
        if verb == "request" and subject == "order.place":
            clock.block(6.0)
            if waits:
                await anyio.lowlevel.checkpoint()
        return not refuses

    bus = Bus(authorize=authorize)

    @bus.handle("order.place")
    async def place_order(body: float) -> None:
        await anyio.lowlevel.checkpoint()
        clock.block(body)
        await anyio.lowlevel.checkpoint()

    async def blamed(client: Bus, seconds: float) -> list[str]:
        bus._services.running.workers.warnings = Warnings(clock)
        bus._services.running.workers.clock = clock
        caplog.clear()
        with suppress(Forbidden):
            await client.request("order.place", seconds)
        return [text.partition(" has")[0] for text in told(caplog)]

    async with timed(bus, clock) as client:
        both, handler = "authorize or the handler test_", "the handler test_"
        (text,) = await blamed(client, 0.0)
        assert text.startswith(both), "they have run in one go"
        waits = True
        assert await blamed(client, 0.0) == ["authorize"]
        first, second = await blamed(client, 2.0)
        assert first == "authorize"
        assert second.startswith(handler)
        waits, refuses = False, True
        assert await blamed(client, 0.0) == ["authorize"]


async def test_a_stream_that_blocks_is_named_and_not_the_authorize_that_let_it_in(caplog: pytest.LogCaptureFixture) -> None:
    bus, clock = Bus(authorize=lambda peer, verb, subject: True), Clock()

    @bus.handle("numbers")
    async def give() -> AsyncIterator[int]:
        await anyio.lowlevel.checkpoint()
        clock.block(2.0)
        yield 1

    async with timed(bus, clock) as client, client.stream("numbers") as items:
        assert [item async for item in items] == [1]
    (text,) = told(caplog)
    assert text.startswith("the handler test_")


async def test_only_what_passes_between_two_waits_of_a_handler_counts(caplog: pytest.LogCaptureFixture) -> None:
    bus, clock, inside, go = Bus(), Clock(), anyio.Event(), anyio.Event()

    @bus.handle("wait")
    async def wait(body: Any) -> None:
        for _ in range(10):
            clock.block(0.6)
            await anyio.lowlevel.checkpoint()
        inside.set()
        await go.wait()
        for _ in range(10):
            clock.block(0.6)
            await anyio.lowlevel.checkpoint()

    async with timed(bus, clock) as client:
        reply = client.request("wait")
        await inside.wait()
        clock.block(100)  # somebody else
        go.set()
        await reply
        assert told(caplog) == []


async def test_a_handler_that_blocks_between_waits_at_its_end_or_when_cancelled_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, clock, inside = Bus(), Clock(), anyio.Event()
    seconds = {"begin": 5.0, "between": 2.0, "end": 3.0, "cancelled": 4.0}

    async def blocks(message: Message) -> None:
        for place in ("begin", "between", "end"):
            if message.subject == place:
                clock.block(seconds[place])
            if place != "end":
                await anyio.lowlevel.checkpoint()
        if message.subject == "cancelled":
            inside.set()
            try:
                await anyio.sleep_forever()
            finally:
                clock.block(seconds["cancelled"])

    for subject in seconds:
        bus.handle(subject)(blocks)
    async with timed(bus, clock) as client:
        for subject in ("begin", "between", "end"):
            await client.request(subject)
        reply = client.request("cancelled")
        await inside.wait()
        reply.cancel()
        await eventually(lambda: len(told(caplog)) == 4)
    for text, (place, spent) in zip(told(caplog), seconds.items(), strict=True):
        assert f"{place!r}" in text and f"{spent} s" in text


async def test_handlers_of_every_kind_and_middleware_are_named(caplog: pytest.LogCaptureFixture) -> None:
    bus, clock, heard = Bus(), Clock(), anyio.Event()

    @bus.on("news.*")
    async def read_news(body: Any) -> None:
        clock.block(2)
        heard.set()

    @bus.handle("inline", inline=True)
    def in_place() -> None:
        clock.block(2)

    @bus.handle("stream")
    async def give() -> AsyncIterator[int]:
        clock.block(2)
        yield 1

    @bus.handle("guarded")
    async def guarded() -> None:
        pass

    @bus.use
    async def middleware(message: Message, ctx: Context, call_next: Callable[[Message], Awaitable[Any]]) -> Any:
        if message.subject == "guarded":
            clock.block(2)
        return await call_next(message)

    async with timed(bus, clock) as client:
        await client.publish("news.today", 1)
        await heard.wait()
        await client.request("inline")
        async with client.stream("stream") as items:
            assert [item async for item in items] == [1]
        await client.request("guarded")
        await eventually(lambda: len(told(caplog)) == 4)
    named = ("read_news of 'news.*'", "in_place of", "give of 'stream'", "guarded of")
    assert [name in text for text, name in zip(told(caplog), named, strict=True)] == [True] * 4


def nothing() -> None:
    """Something that the event loop does for a thread."""


async def test_a_def_handler_that_runs_in_a_thread_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    bus, clock = Bus(), Clock()

    @bus.handle("thread")
    def in_a_thread() -> str:
        anyio.from_thread.run_sync(nothing)  # the event loop has gone on, and has looked at its clock before
        clock.block(100)
        return "done"

    async with timed(bus, clock) as client:
        assert await client.request("thread") == "done"
        assert told(caplog) == []


async def test_a_handler_that_blocks_again_is_named_once_a_minute_apart_from_its_namesakes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, clock = Bus(), Clock()

    def add(subject: str) -> None:
        @bus.handle(subject)
        async def get() -> None:
            clock.block(2)

    add("user.get")
    add("order.get")
    async with timed(bus, clock) as client:
        workers = bus._services.running.workers
        for subject in (*["user.get"] * 20, "order.get"):
            await client.request(subject)
        first, second = told(caplog)
        assert "get of 'user.get' has blocked" in first and "get of 'order.get' has blocked" in second
        workers.warnings.tell()
        assert told(caplog)[2].startswith("19 more within") and "get of 'user.get' has blocked" in told(caplog)[2]
