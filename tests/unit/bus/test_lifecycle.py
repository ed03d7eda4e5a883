"""Entering, leaving, draining and closing a bus."""

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from polybus import Bus, BusError, Channel, Context, Disconnected, Limits, LocalProtocolError, Peer, connect
from polybus.testing import pair
from tests.loops import both_backends  # noqa: F401
from tests.refusal import refused
from tests.support import BOUND, eventually
from tests.unit.answering import answering, publish_each

QUICK = Limits(close_timeout=0.1)


def everything_ended(bus: Bus) -> bool:
    stats = bus.stats()
    return (stats.links, stats.peers, stats.pending, stats.running, stats.waiting, stats.queued) == (0,) * 6


def loop_tasks() -> int:
    """Tasks of the running event loop besides this one."""
    try:
        return len(asyncio.all_tasks()) - 1
    except RuntimeError:
        import trio

        return trio.lowlevel.current_statistics().tasks_living


def open_files() -> int:
    """File descriptors of this process; 0 where the system does not list them."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


# -- entering and leaving ------------------------------------------------------------------------------------------------


async def test_a_bus_that_is_not_entered_says_what_to_do() -> None:
    bus = Bus()
    for verb in (bus.request, bus.publish):
        with pytest.raises(LocalProtocolError, match="async with bus"):
            await verb("x")
    with pytest.raises(LocalProtocolError, match="async with bus"):
        bus.publish_nowait("x")
    with pytest.raises(LocalProtocolError, match="async with bus"):
        await bus.wait_closed()
    await refused(bus.subscribe("x"), LocalProtocolError, match="async with bus")
    assert everything_ended(bus)


async def test_entering_is_counted_and_the_last_one_out_ends_it() -> None:
    bus = answering()
    async with bus:
        async with bus, bus:
            pass
        assert await bus.request("echo", 1) == 1
    with pytest.raises(LocalProtocolError):
        _ = bus.request("echo")


@pytest.mark.native
def test_a_bus_may_be_entered_again_on_another_loop_and_another_backend() -> None:
    bus, client = answering(), Bus()

    async def main() -> None:
        async with pair(bus, client=client), client.subscribe("news") as news:
            assert await client.request("echo", "x") == "x"
            await bus.publish("news", 1)
            assert (await anext(news)).body == 1

    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(main, backend=backend)


async def test_what_the_body_raises_comes_out_unchanged_and_alone_and_does_not_wait_for_handlers() -> None:
    several = ExceptionGroup("of a task group", [ValueError("mine")])
    for error in (LocalProtocolError("b"), StopAsyncIteration("c"), KeyError("d"), several):
        served = answering()
        for entered in (served, pair(served)):
            with pytest.raises(type(error)) as caught:
                async with entered as bus:
                    _ = bus.request("endless")
                    await eventually(lambda: served.stats().running == 1)  # noqa: B023
                    raise error
            assert caught.value is error
            assert everything_ended(served)


async def test_a_cancellation_goes_through_the_block() -> None:
    bus = answering()
    with anyio.move_on_after(0.02) as scope:
        async with pair(bus) as client:
            await client.request("endless")
    assert scope.cancelled_caught
    assert everything_ended(bus)


async def test_on_asyncio_a_bus_may_be_entered_in_one_task_and_left_in_another(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("trio's nurseries belong to one task")

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield
            group.cancel_scope.cancel()

    bus = answering(lifespan=lifespan)
    manager = pair(bus)
    async with asyncio.timeout(BOUND):
        client = await asyncio.create_task(manager.__aenter__())
        assert await client.request("echo", 1) == 1
        await asyncio.create_task(manager.__aexit__(None, None, None))
    assert everything_ended(bus)


# -- what is left --------------------------------------------------------------------------------------------------------


@pytest.mark.native
async def test_after_leaving_nothing_is_left(tmp_path: Path) -> None:
    bus = answering()

    @bus.handle("lines")
    async def lines() -> AsyncIterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    async def work(url: str) -> None:
        async with bus.serve(url) as listener, connect(listener.url) as client:
            replies = [client.request("endless") for _ in range(3)]
            async with client.subscribe("news.>") as news, client.stream("lines") as items:
                await anext(items)
                await bus.publish("news.today", 1)
                await anext(news)
            for reply in replies:
                reply.cancel()

    urls = ("ubre+memory://left", "ubre+tcp://127.0.0.1:0", f"ubre+unix://{tmp_path}/s", "ubre+ws://127.0.0.1:0/bus")
    await work(urls[1])  # what is made once stays
    gc.collect()
    tasks, files = loop_tasks(), open_files()
    for url in urls:
        await work(url)
        assert everything_ended(bus)
        await eventually(lambda: loop_tasks() <= tasks)  # what an earlier test left may have ended
        await eventually(lambda: open_files() <= files)
    gc.collect()


# -- draining and closing ------------------------------------------------------------------------------------------------


async def test_draining_handles_what_was_published() -> None:
    bus, heard, go = answering(), list[int](), anyio.Event()

    @bus.on("news")
    async def on_news(body: int) -> None:
        await go.wait()
        heard.append(body)

    async with pair(bus) as client, anyio.create_task_group() as group:
        await publish_each(client, "news", range(3))
        await client.request("echo", "all have come")
        group.start_soon(bus.drain)
        await eventually(lambda: not bus.ready)
        await anyio.wait_all_tasks_blocked()
        assert bus.peers and not heard, "it waits"
        go.set()
        await eventually(lambda: not bus.peers)
    assert heard == [0, 1, 2]


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_drain_that_takes_too_long_or_is_cancelled_is_cut_and_what_it_has_cut_may_have_run(cancelled: bool) -> None:
    bus = answering()
    async with pair(bus) as client:
        reply = client.request("endless")
        await eventually(lambda: bus.stats().running == 1)
        async with anyio.create_task_group() as group:
            group.start_soon(bus.drain, 1000 if cancelled else 0.02)
            await eventually(lambda: not bus.ready)
            if cancelled:
                group.cancel_scope.cancel()
        with pytest.raises(Disconnected) as caught:
            await reply
        assert caught.value.sent
        await eventually(lambda: bus.stats().running == 0)
        ready = [bus.ready]
        assert bus.peers == []
        async with bus:  # entering anew is what ends it
            ready.append(bus.ready)
        assert ready == [False, True]
    assert everything_ended(bus)


async def test_aclose_may_be_called_at_any_time_and_repeatedly() -> None:
    bus = answering()
    await bus.aclose()
    async with pair(bus) as client:
        reply = client.request("endless")
        await eventually(lambda: bus.stats().running == 1)
        await bus.aclose()
        await bus.aclose()
        with pytest.raises(Disconnected):
            await reply
        assert everything_ended(bus)
    await bus.aclose()
    async with bus:
        assert await bus.request("echo", 1) == 1


@pytest.mark.parametrize("reader", ["subscription", "receive", "peer", "events"])
@pytest.mark.parametrize("how", ["drained", "closed"])
async def test_what_a_task_of_the_lifespan_reads_ends_with_the_bus_and_so_does_the_lifespan(reader: str, how: str) -> None:
    read, left = list[object](), anyio.Event()

    async def loop(bus: Bus) -> None:
        if reader == "events":
            read.extend([event async for event in bus.events()])
            return
        async with bus.peers[0].subscribe("news") if reader == "peer" else bus.subscribe("news", local=True) as news:
            if reader == "receive":
                with pytest.raises(EOFError):
                    while True:
                        read.append((await news.receive()).body)
            read.extend([message.body async for message in news])

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async with bus.connect(server.url), anyio.create_task_group() as group:
            group.start_soon(loop, bus)
            yield
        left.set()

    async with Bus().serve("ubre+memory://news") as server:
        bus = Bus(lifespan=lifespan)
        async with bus:
            await anyio.wait_all_tasks_blocked()
            if reader != "peer":
                await bus.publish("news", 1)
            if how == "drained":
                await bus.drain(1000)
                assert not left.is_set()
            else:
                await bus.aclose()
        assert left.is_set()
    assert read or reader in ("peer", "events")


async def test_a_loop_over_a_subscription_reads_what_has_come_and_ends_when_its_bus_has_drained() -> None:
    bus, published, read = Bus(), anyio.Event(), list[object]()

    async def loop() -> None:
        async with bus.subscribe("news", local=True) as news:
            await published.wait()
            read.extend([message.body async for message in news])

    async with bus, anyio.create_task_group() as group:
        group.start_soon(loop)
        await anyio.wait_all_tasks_blocked()
        await publish_each(bus, "news", range(3))
        await bus.drain()
        published.set()
    assert read == [0, 1, 2]


async def test_a_handler_that_closes_its_own_bus_is_cancelled_at_its_next_wait() -> None:
    bus, ended = answering(), anyio.Event()

    @bus.handle("die")
    async def die(ctx: Context) -> None:
        await ctx.bus.aclose()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with pair(bus) as client:
        with pytest.raises(Disconnected):
            await client.request("die")
        await ended.wait()
        await eventually(lambda: everything_ended(bus))


async def test_a_handler_may_be_the_last_to_leave_its_bus() -> None:
    bus, entered, go = answering(), anyio.Event(), anyio.Event()

    @bus.handle("stay")
    async def stay(ctx: Context) -> None:
        async with ctx.bus:
            entered.set()
            await go.wait()

    async with bus:
        reply = bus.request("stay")
        await entered.wait()
    assert not reply.done()
    go.set()
    await reply
    await eventually(lambda: not bus.ready)
    await eventually(lambda: everything_ended(bus))


async def test_closing_cuts_a_drain_that_is_under_way() -> None:
    bus, begun = answering(), anyio.Event()
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            async with bus:
                _ = bus.request("endless")
                begun.set()

        group.start_soon(leave)
        await begun.wait()
        await eventually(lambda: not bus.ready)
        await bus.aclose()
        assert everything_ended(bus)


@pytest.mark.parametrize("verb", ["aclose", "drain"])
@pytest.mark.parametrize("where", ["handler", "publication", "lifespan", "thread"])
async def test_a_bus_may_be_ended_from_within_by_many_at_once(where: str, verb: str) -> None:
    go, inside, asked = anyio.Event(), list[str](), list[str]()

    async def end(bus: Bus) -> None:
        inside.append(where)
        await go.wait()
        asked.append(where)
        await getattr(bus, verb)()

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            for _ in range(5 if where == "lifespan" else 0):
                group.start_soon(end, bus)
            yield

    bus = Bus(lifespan=lifespan, limits=QUICK)

    @bus.handle("handler")
    async def by_request() -> None:
        await end(bus)

    @bus.handle("thread")
    def by_thread() -> None:
        anyio.from_thread.run(end, bus)

    @bus.on("publication", concurrency=5)
    async def by_publication() -> None:
        await end(bus)

    async with pair(bus) as client:
        replies = [client.request(where) for _ in range(5 if where in ("handler", "thread") else 0)]
        await publish_each(client, where, range(5))
        await eventually(lambda: len(inside) == 5)
        go.set()
        for reply in replies:
            try:
                await reply
            except BusError:
                assert verb == "aclose"
        await eventually(lambda: not bus.ready)
    await eventually(lambda: everything_ended(bus))
    assert len(asked) == 5 or verb == "aclose"
    async with bus:
        pass


# -- the lifespan --------------------------------------------------------------------------------------------------------


async def test_what_the_lifespan_yields_is_the_state_that_handlers_see() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[dict[str, int]]:
        assert not bus.ready
        log.append("in")
        yield {"n": 7}
        log.append("out")

    bus = Bus(lifespan=lifespan)

    @bus.handle("state")
    async def state(ctx: Context) -> Any:
        return ctx.state

    for _ in range(2):
        async with pair(bus) as client:
            assert await client.request("state") == {"n": 7}
        assert bus.state is None
    assert log == ["in", "out"] * 2


async def test_a_bus_that_cannot_listen_leaves_its_lifespan() -> None:
    steps = []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        steps.append("begun")
        try:
            yield
        finally:
            steps.append("left")

    async with Bus().serve("ubre+memory://taken-by-another"):
        with pytest.raises(OSError, match="taken-by-another"):
            async with Bus(lifespan=lifespan).serve("ubre+memory://taken-by-another"):
                pass
    assert steps == ["begun", "left"]


async def test_a_lifespan_that_fails_is_what_entering_raises_and_the_bus_is_not_entered() -> None:
    failures = [LookupError("no database"), SystemExit("no configuration"), None]

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        yield

    bus = Bus(lifespan=lifespan)
    for expected in failures[:2]:
        assert expected is not None
        with pytest.raises(type(expected)) as caught:
            await bus.__aenter__()
        assert caught.value is expected
        with pytest.raises(LocalProtocolError):
            _ = bus.request("echo")
        assert everything_ended(bus)
    async with bus:
        assert bus.ready


@pytest.mark.parametrize("raised", [LookupError("no goodbye"), KeyError("mine")], ids=repr)
async def test_a_lifespan_that_fails_on_leaving_says_so_but_does_not_hide_what_the_block_raised(raised: Exception) -> None:
    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        yield
        raise LookupError("no goodbye")

    bus = Bus(lifespan=lifespan)
    with pytest.raises(type(raised), match=str(raised)):
        async with bus:
            if isinstance(raised, KeyError):
                raise raised
    assert everything_ended(bus)
    with pytest.raises(LocalProtocolError):
        _ = bus.request("echo")
    async with bus:
        with pytest.raises(LookupError):
            await bus.aclose()
        assert everything_ended(bus)


async def test_the_end_of_a_lifespan_is_orderly_whatever_the_block_raised() -> None:
    log = []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        yield
        await anyio.lowlevel.checkpoint()
        log.append("orderly")

    with pytest.raises(KeyError):
        async with Bus(lifespan=lifespan):
            raise KeyError
    with anyio.CancelScope() as scope:
        async with Bus(lifespan=lifespan):
            scope.cancel()
            await anyio.sleep_forever()
    assert log == ["orderly", "orderly"]


async def test_a_task_group_of_the_lifespan_that_fails_closes_the_bus_and_comes_out_of_the_block() -> None:
    fail = anyio.Event()

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async def soon() -> None:
            await fail.wait()
            raise LookupError("the database has gone")

        async with anyio.create_task_group() as group:
            group.start_soon(soon)
            yield

    bus = Bus(lifespan=lifespan)
    with pytest.raises(ExceptionGroup) as caught:
        async with bus:
            fail.set()
            await bus.wait_closed()
    assert [type(error) for error in caught.value.exceptions] == [LookupError]
    assert everything_ended(bus)


async def test_a_lifespan_that_enters_its_own_bus_does_not_keep_it_entered() -> None:
    upstream, log = answering(), []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        async with bus, bus.serve("ubre+memory://inner"):
            async with bus.connect("ubre+memory://upstream") as passing:
                assert await passing.request("echo", "configuration") == "configuration"
            await eventually(lambda: len(upstream.peers) == 0)
            async with bus.connect("ubre+memory://upstream") as peer:
                yield
                # A link of the lifespan is there until its end.
                log.append(await peer.request("echo", "goodbye"))

    bus = Bus(lifespan=lifespan)
    async with upstream.serve("ubre+memory://upstream"):
        for _ in range(2):
            async with connect("ubre+memory://upstream", bus=bus):
                assert len(upstream.peers) == 2
            with pytest.raises(LocalProtocolError):
                _ = bus.request("echo")
            assert everything_ended(bus)
    assert log == ["goodbye", "goodbye"]


@pytest.mark.parametrize("itself", [False, True])
async def test_closing_a_bus_whose_lifespan_begins_stops_it_and_is_what_entering_raises(itself: bool) -> None:
    begun = anyio.Event()

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        begun.set()
        await (bus.aclose() if itself else anyio.sleep_forever())
        yield  # where it has closed the bus itself, it has not waited, so nothing has stopped it

    bus = Bus(lifespan=lifespan)
    async with anyio.create_task_group() as group:

        async def enter() -> None:
            for _ in range(2 if itself else 1):
                with pytest.raises(LocalProtocolError, match="closed while"):
                    await bus.__aenter__()

        group.start_soon(enter)
        await begun.wait()
        if not itself:
            await bus.aclose()
    assert everything_ended(bus)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_lifespan_that_does_not_end_is_cancelled_after_the_drain(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        yield
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")
            with anyio.CancelScope(shield=True):
                await anyio.wait_all_tasks_blocked()
            log.append("cleaned up")
            if fails:
                raise LookupError("in its end")

    bus = Bus(lifespan=lifespan, limits=Limits(close_timeout=0.01))
    with pytest.raises(LookupError) if fails else nullcontext():
        async with bus:
            await bus.drain(0.02)
            assert not log
    assert log == ["cancelled", "cleaned up"]
    assert "has not ended in 0.02 s" in caplog.text
    assert everything_ended(bus)


async def test_who_enters_during_a_drain_enters_anew_when_it_has_ended() -> None:
    bus, go, log = Bus(), anyio.Event(), []
    bus.handle("slow")(go.wait)

    async def enter() -> None:
        async with bus:
            log.append(bus.ready)
            assert bus._services.executor is not None

    async with anyio.create_task_group() as group, bus:
        reply = bus.request("slow")
        await anyio.lowlevel.checkpoint()
        group.start_soon(bus.drain)
        await eventually(lambda: not bus.ready)
        group.start_soon(enter)
        await anyio.wait_all_tasks_blocked()
        assert not log
        go.set()
        await reply
        await eventually(lambda: log)
    assert log == [True]
    assert everything_ended(bus)


async def test_who_has_entered_before_a_close_does_not_leave_what_others_have_entered_since() -> None:
    bus, closed, left = answering(), anyio.Event(), anyio.Event()

    async def stale() -> None:
        async with bus, bus.serve("ubre+memory://stale"), connect("ubre+memory://stale") as client:
            assert await client.request("echo", 1) == 1
            await bus.aclose()
            closed.set()
            await left.wait()
        again.set()

    again = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(stale)
        await closed.wait()
        async with bus:
            left.set()
            await again.wait()
            assert await bus.request("echo", 2) == 2
    assert everything_ended(bus)


# -- other threads -------------------------------------------------------------------------------------------------------


@pytest.mark.native
async def test_a_bus_that_is_used_from_another_thread_or_loop_says_so() -> None:
    bus, said = answering(), []

    async def enter(*blocks: Any) -> None:
        async with blocks[0]() as block:
            raise AssertionError(block)

    async def look() -> None:
        with pytest.raises(LocalProtocolError, match="another event loop"):
            bus.events()
        await anext(events)

    peer: Peer

    def plain() -> None:
        verbs: list[Callable[..., Any]] = [bus.request, bus.publish_nowait, peer.request]
        for verb in verbs:
            with pytest.raises(LocalProtocolError, match="another event loop"):
                verb("echo", 1)
        blocks = [lambda: bus, lambda: connect("ubre+memory://elsewhere", bus=bus), partial(bus.subscribe, "x")]
        waiting = [look, bus.drain, bus.aclose, bus.wait_closed, peer.aclose]
        waiting += [partial(enter, block) for block in (*blocks, partial(bus.stream, "echo"))]
        waiting += [partial(verb, "echo", 1) for verb in (bus.publish, bus.notify, peer.publish, peer.notify)]
        for backend in ("asyncio", "trio"):
            for attempt in waiting:
                with pytest.raises(LocalProtocolError, match="another event loop"):
                    anyio.run(attempt, backend=backend)
            for verb in verbs:

                async def inside(verb: Callable[..., Any] = verb) -> None:
                    verb("echo", 1)

                with pytest.raises(LocalProtocolError, match="another event loop"):
                    anyio.run(inside, backend=backend)
        said.append(1)

    async with bus.serve("ubre+memory://elsewhere") as listener, connect(listener.url) as client:
        peer, events, sent = client.peers[0], bus.events(), client.stats().sent
        await anyio.to_thread.run_sync(plain)
        assert client.stats().sent == sent
        assert said
        assert await bus.request("echo", 1) == 1
    assert everything_ended(bus)


@pytest.mark.native
def test_a_bus_whose_event_loop_went_down_with_it_may_be_entered_in_another() -> None:
    bus = answering()

    @bus.on("news")
    async def on_news() -> None:
        """Its interest has been told to the link of the loop that went down."""

    async def work() -> None:
        async with bus:
            assert await bus.request("echo", 1) == 1

    loop = asyncio.new_event_loop()
    loop.run_until_complete(pair(bus).__aenter__())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    for backend in ("asyncio", "trio"):
        anyio.run(work, backend=backend)


# -- context variables ---------------------------------------------------------------------------------------------------

mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="untouched")


async def test_handlers_see_the_context_in_which_the_bus_was_entered_and_never_each_other_s() -> None:
    bus = Bus()

    @bus.handle("set")
    async def set_(body: str) -> Any:
        before = mine.get()
        mine.set(body)
        await anyio.lowlevel.checkpoint()
        return [before, mine.get()]

    @bus.handle("set_at_once")
    async def set_at_once(body: str) -> Any:
        before = mine.get()
        mine.set(body)
        return [before, mine.get()]

    @bus.handle("talk")
    async def talk(ch: Channel[Any, Any]) -> None:
        await ch.send(mine.get())
        mine.set("by a channel")

    heard: list[str] = []

    @bus.on("news")
    async def on_news(body: str) -> None:
        heard.append(mine.get())
        mine.set(body)

    token = mine.set("entered")
    async with pair(bus) as client:
        for subject in ("set", "set_at_once"):
            replies = [client.request(subject, str(number)) for number in range(200)]
            assert [await reply for reply in replies] == [["entered", str(number)] for number in range(200)]
        for _ in range(3):
            async with client.channel("talk") as ch:
                assert [item async for item in ch] == ["entered"]
        for number in range(5):
            await client.publish("news", str(number))
        await eventually(lambda: len(heard) == 5)
    assert heard == ["entered"] * 5
    mine.reset(token)


async def test_who_asks_a_bus_that_is_being_left_is_told_so_and_not_that_nobody_handles_it() -> None:
    ends: list[BusError] = []

    @asynccontextmanager
    async def lifespan(bus: Bus) -> AsyncIterator[None]:
        yield
        try:
            await bus.request("echo", 1)  # the links that the bus was left with are closed
        except BusError as error:
            ends.append(error)

    async with pair(answering(), client=Bus(lifespan=lifespan)) as client:
        await client.request("echo", 1)
    assert [(type(error), "left" in str(error)) for error in ends] == [(Disconnected, True)]
