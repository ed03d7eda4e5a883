"""Streams and channels beyond what every protocol promises: deadlines, credits, limits, leaving."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from polybus import (
    BadRequest,
    Bus,
    BusError,
    Channel,
    Code,
    Context,
    DeadlineExceeded,
    EncodeError,
    Limits,
    LocalProtocolError,
    NoHandler,
    RequestError,
    TooManyRequests,
    Unavailable,
)
from polybus._core.peer import streams
from polybus._core.peer.streams import Streams
from polybus.body import JSON
from polybus.message import Kind, Message
from polybus.plugins import Closed
from polybus.plugins.extensions import core_of
from polybus.testing import Faults, pair
from tests.loops import virtual_time  # noqa: F401
from tests.support import eventually, let_expire
from tests.unit.answering import Gated, answering

LOCAL = pytest.mark.parametrize("local", [False, True], ids=["over a link", "to itself"])


class Counting:
    """A stream without end that knows how far it came and whether it was cleaned up."""

    def __init__(self, bus: Bus) -> None:
        self.made = 0
        self.cleaned = anyio.Event()
        bus.handle("count")(self.count)

    async def count(self) -> AsyncIterator[int]:
        try:
            while True:
                self.made += 1
                yield self.made
        finally:
            self.cleaned.set()


# -- deadlines -----------------------------------------------------------------------------------------------------------


@LOCAL
async def test_a_stream_ends_at_its_deadline_on_both_sides(local: bool) -> None:
    bus, started, stopped = Bus(), anyio.Event(), anyio.Event()

    @bus.handle("endless")
    async def endless(ctx: Context) -> AsyncIterator[int]:
        assert ctx.deadline is not None
        started.set()
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async with pair(bus) as client:

        async def read(seconds: float) -> None:
            async with (bus if local else client).stream("endless", timeout=seconds) as items:
                async for item in items:
                    assert item == 1

        assert isinstance(await let_expire(read, started.is_set), DeadlineExceeded)
        await stopped.wait()
        await eventually(lambda: bus.stats().running == 0)


async def test_a_stream_ends_at_its_deadline_even_when_the_peer_has_gone_silent() -> None:
    bus = Bus()

    @bus.handle("one")
    async def one() -> AsyncIterator[int]:
        yield 1
        await anyio.sleep_forever()

    async with pair(bus) as client:
        await client.peers[0].extended()
    silent = Faults(seed=1, drop=1.0)
    async with pair(bus, faults=silent) as client:
        core_of(client.peers[0]).negotiation.speaks_extensions = True  # as if it had answered before it fell silent
        with pytest.raises(DeadlineExceeded) as caught:
            async with client.stream("one", timeout=0.03) as items:
                await anext(items)
        assert caught.value.where == "local"
        with pytest.raises(DeadlineExceeded):
            await anext(items)


async def test_a_stream_without_a_deadline_has_none() -> None:
    bus = Bus()

    @bus.handle("deadline")
    async def deadline(ctx: Context) -> AsyncIterator[Any]:
        yield [ctx.deadline, ctx.message.ttl]

    with anyio.CancelScope(shield=True):  # from the bound of this test
        async with pair(bus) as client, client.stream("deadline") as items:
            assert await anext(items) == [None, None]


# -- credits -------------------------------------------------------------------------------------------------------------


async def test_credits_that_are_no_numbers_are_ignored() -> None:
    bus = Bus()
    counting = Counting(bus)
    async with pair(bus) as client, client.stream("count") as items:
        await anext(items)
        await anyio.wait_all_tasks_blocked()
        held = counting.made
        (channel,) = (core_of(bus.peers[0]).channels or {}).values()
        for odd in (-5, 0, "many", None, 1.5, 2**40):
            channel.received_credit(odd)
        await anyio.wait_all_tasks_blocked()
        assert counting.made == held


@LOCAL
async def test_tasks_that_send_at_once_share_credit_and_keep_order(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bus, got, go = Bus(), list[int](), anyio.Event()

    @bus.handle("upload")
    async def upload(ch: Channel[int, int]) -> None:
        await go.wait()
        async for item in ch:
            got.append(item)
        await ch.send(len(got))

    async with pair(bus) as client, (bus if local else client).channel("upload") as ch:
        _hold_back_writes(monkeypatch)
        async with anyio.create_task_group() as group:
            for number in range(300):
                group.start_soon(ch.send, number)
                if number % 50 == 49:
                    await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
            go.set()
        await ch.send_eof()
        assert [item async for item in ch] == [300]
    assert sorted(got) == list(range(300))
    assert [number // 50 for number in got] == sorted(number // 50 for number in got)


async def test_a_sender_that_is_cancelled_in_the_line_lets_the_next_one_go() -> None:
    bus, got, go = Bus(), list[str](), anyio.Event()

    @bus.handle("upload")
    async def upload(ch: Channel[str, int]) -> None:
        await go.wait()
        got.extend([item async for item in ch])

    async with pair(bus) as client, client.channel("upload") as ch:
        await eventually(lambda: ch._credit > 0)
        while ch._credit > 0:
            await ch.send("before")
        async with anyio.create_task_group() as group:
            scopes = [anyio.CancelScope() for _ in range(6)]

            async def one(number: int) -> None:
                with scopes[number]:
                    await ch.send(str(number))

            for number in range(6):
                group.start_soon(one, number)
                await anyio.wait_all_tasks_blocked()
            scopes[0].cancel()
            scopes[3].cancel()
            await anyio.wait_all_tasks_blocked()
            go.set()
        await ch.send_eof()
        async for _ in ch:
            pass
    assert [item for item in got if item != "before"] == ["1", "2", "4", "5"]


def _hold_back_writes(patch: pytest.MonkeyPatch) -> None:
    """Every item waits a turn for room in the outbox, as behind a slow peer."""
    patch.setattr(Streams, "channel_room", lambda streams: anyio.lowlevel.checkpoint())


# -- ends ----------------------------------------------------------------------------------------------------------------


async def test_a_handler_that_aborts_chooses_the_error_of_the_other_side() -> None:
    bus = Bus()

    @bus.handle("talk")
    async def talk(ch: Channel[int, int]) -> None:
        ch.abort(Code.FAILED_PRECONDITION, "not yet", reason="early", detail={"wait": 5})
        await anyio.sleep_forever()

    async with pair(bus) as client, client.channel("talk") as ch:
        with pytest.raises(RequestError, match="not yet") as caught:
            await anext(ch)
        assert (caught.value.code, caught.value.reason, caught.value.detail) == (Code.FAILED_PRECONDITION, "early", {"wait": 5})


async def test_a_sender_that_waits_for_credit_learns_of_the_end() -> None:
    bus, go = Bus(), anyio.Event()

    @bus.handle("deaf")
    async def deaf(ch: Channel[int, int]) -> None:
        await go.wait()
        raise RequestError(Code.ABORTED, "enough")

    async def fill() -> None:
        with pytest.raises(RequestError, match="enough"):
            while True:
                await ch.send(1)

    async with pair(bus) as client, client.channel("deaf") as ch, anyio.create_task_group() as group:
        group.start_soon(fill)
        await anyio.wait_all_tasks_blocked()
        go.set()
        with pytest.raises(RequestError, match="enough"):
            await anext(ch)


@pytest.mark.parametrize("protocol", ["csb", "jrep", "ubre"])
@pytest.mark.parametrize(
    "error",
    [{"text": "no \ud800"}, {"reason": "\ud800"}, {"detail": float("nan")}, {"detail": object()}, {"text": "no" * 1_000_000}],
    ids=["text", "reason", "nan", "object", "long"],
)
async def test_a_stream_ends_with_its_error_even_if_the_wire_cannot_carry_all_of_it(protocol: str, error: Any) -> None:
    bus = Bus()

    @bus.handle("fail")
    async def fail() -> AsyncIterator[int]:
        yield 1
        raise BadRequest(**{"text": "no", **error})

    async with pair(bus, protocol=protocol) as client:
        with pytest.raises(BadRequest):
            async with client.stream("fail") as items:
                assert [item async for item in items] == [1]
        await eventually(lambda: not core_of(bus.peers[0]).channels)


async def test_a_stream_whose_reader_went_while_its_handler_was_busy_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    bus, over = Bus(), anyio.Event()

    @bus.handle("lines")
    async def lines() -> AsyncIterator[int]:
        try:
            yield 1
            with anyio.CancelScope(shield=True):  # as one that computes, and hears of nothing meanwhile
                await eventually(lambda: not bus.peers)
            yield 2
        finally:
            over.set()

    async with bus:
        async with pair(bus) as client, client.stream("lines") as stream:
            assert await anext(aiter(stream)) == 1
            core_of(client.peers[0]).link.abort(Closed(1006, "the cable is cut"))
            await over.wait()
        await eventually(lambda: bus.stats().running == 0)
        assert bus.stats().failed == 0
    assert not caplog.records


class Upload:
    """A handler that has nothing to say, and reads to the end: how did that end?"""

    def __init__(self, bus: Bus) -> None:
        self.got: list[int] = []
        self.end = ""
        bus.handle("upload")(self.upload)

    async def upload(self, ch: Channel[int, int]) -> None:
        await ch.send_eof()
        try:
            async for item in ch:
                self.got.append(item)
            self.end = "complete"
        except BaseException:
            self.end = "broken off"
            raise


@pytest.mark.parametrize("says_eof", [True, False])
@pytest.mark.parametrize("fails", [True, False])
@LOCAL
async def test_an_upload_looks_complete_where_its_end_was_said(local: bool, fails: bool, says_eof: bool) -> None:
    bus = Bus()
    upload = Upload(bus)
    async with pair(bus) as client:
        with pytest.raises(KeyError) if fails else nullcontext():
            async with (bus if local else client).channel("upload") as ch:
                assert [item async for item in ch] == []
                for item in (1, 2):
                    await ch.send(item)
                if says_eof:
                    await ch.send_eof()
                    await ch.send_eof()
                    with pytest.raises(LocalProtocolError):
                        await ch.send(3)
                if fails:
                    raise KeyError
        await eventually(lambda: upload.end != "" and bus.stats().running == 0)
        assert upload.end == ("complete" if says_eof else "broken off")
        assert upload.got == [1, 2] or not says_eof
        assert not core_of(client.peers[0]).channels and not core_of(bus.peers[0]).channels


async def test_an_item_that_cannot_be_written_is_raised_by_send_and_the_channel_goes_on_until_its_handler_returns() -> None:
    bus = Bus()

    @bus.handle("echo")
    async def echo(ch: Channel[Any, Any]) -> None:
        while (item := await ch.receive()) != "bye":
            await ch.send(item)

    async with pair(bus) as client, client.channel("echo") as ch:
        with pytest.raises(EncodeError):
            await ch.send({"x": object()})
        await ch.send("fine")
        assert await ch.receive(timeout=5) == "fine"
        with pytest.raises(TimeoutError, match=r"nothing arrived within 0.01 s"), anyio.fail_after(5):
            await ch.receive(timeout=0.01)
        await ch.send("bye")
        with pytest.raises(EOFError):
            await ch.receive()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(LocalProtocolError, match="the handler has returned"):
            await ch.send("too late")


# -- limits --------------------------------------------------------------------------------------------------------------


async def test_a_peer_may_open_so_many_channels_and_no_more() -> None:
    bus = Bus(limits=Limits(channels=2))
    Counting(bus)
    async with pair(bus) as client, anyio.create_task_group() as group:
        opened: list[Any] = []
        refused: list[BusError] = []

        async def hold() -> None:
            try:
                async with client.stream("count") as items:
                    opened.append(await anext(items))
                    await anyio.sleep_forever()
            except BusError as error:
                refused.append(error)

        for _ in range(8):
            group.start_soon(hold)
        await eventually(lambda: len(opened) + len(refused) == 8)
        assert len(opened) <= 4
        assert {type(error) for error in refused} == {TooManyRequests}
        group.cancel_scope.cancel()


async def test_streams_count_as_requests_that_run_and_as_nothing_once_they_were_turned_away() -> None:
    bus = Bus(limits=Limits(running=2, waiting=1, channels=2))
    Counting(bus)
    slow = Gated(bus, "slow")
    async with pair(bus) as client:
        replies = [client.request("slow")]
        async with client.stream("count") as items:
            assert await anext(items) == 1
            replies.append(client.request("slow"))
            await eventually(lambda: (slow.inside, bus.stats().waiting) == (1, 1))
        await eventually(lambda: slow.inside == 2)
        replies.append(client.request("slow"))
        await eventually(lambda: bus.stats().waiting == 1)
        for _ in range(3):
            with pytest.raises(TooManyRequests, match=r"1 of your requests wait \(Limits\.waiting\) behind 2 that run"):
                async with client.stream("count") as items:
                    await anext(items)
        slow.go.set()
        for reply in replies:
            await reply
        async with client.stream("count") as items:
            assert await anext(items) > 1


async def test_a_drain_lets_streams_end_by_themselves_for_a_quarter_of_its_time_and_then_ends_them() -> None:
    bus, go, cleaned = Bus(), anyio.Event(), []

    @bus.handle("endless")
    async def endless() -> AsyncIterator[int]:
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            cleaned.append("stream")

    @bus.handle("talk")
    async def talk(ch: Channel[Any, Any]) -> None:
        try:
            async for item in ch:
                await ch.send(item)
            cleaned.append("looks complete")
        finally:
            with anyio.CancelScope(shield=True):
                for action in (anext(ch), ch.receive(), ch.send(1)):
                    with pytest.raises(Unavailable, match="draining"):
                        await action
            cleaned.append("channel")

    @bus.handle("finite")
    async def finite() -> AsyncIterator[int]:
        yield 1
        await go.wait()
        yield 2

    async with pair(bus) as client, anyio.create_task_group() as group:
        async with (
            client.stream("endless") as items,
            bus.stream("endless") as local,
            client.channel("talk") as ch,
            client.stream("finite") as some,
        ):
            assert [await anext(items), await anext(local), await anext(some)] == [1, 1, 1]
            await ch.send("hello")
            assert await anext(ch) == "hello"
            group.start_soon(bus.drain, 4.0)
            await eventually(lambda: not bus.ready)
            with pytest.raises(Unavailable):
                async with client.stream("finite") as late:
                    await anext(late)
            go.set()
            assert [item async for item in some] == [2]
            assert not cleaned
            for ended in (items, local, ch):
                with pytest.raises(Unavailable, match="drain"):
                    await anext(ended)
        await eventually(lambda: not bus.peers)
    assert sorted(cleaned) == ["channel", "stream", "stream"]


async def test_a_deadline_that_the_peer_tells_of_a_stream_says_how_long_it_took() -> None:
    bus = Bus()

    @bus.handle("late")
    async def late() -> AsyncIterator[int]:
        yield 1
        await anyio.sleep(1)
        raise RequestError(Code.DEADLINE_EXCEEDED, "too late")

    async with pair(bus) as client, client.stream("late") as items, bus.stream("late") as local:
        for stream in (items, local):
            assert await anext(stream) == 1
            with pytest.raises(DeadlineExceeded) as caught:
                await anext(stream)
            assert caught.value.where == "remote"
            assert caught.value.elapsed == pytest.approx(1, abs=0.1)


async def test_a_stream_is_opened_behind_publications_and_notifications_that_wait() -> None:
    bus, order = Bus(), list[str]()
    bus.on("news", inline=True)(lambda: order.append("news"))
    bus.handle("note", inline=True)(lambda: order.append("note"))

    @bus.handle("items")
    async def items() -> AsyncIterator[int]:
        order.append("items")
        yield 1

    async def read() -> None:
        async with client.stream("items") as stream:
            assert [item async for item in stream] == [1]

    async with pair(bus) as client, anyio.create_task_group() as group:
        await client.peers[0].extended()
        link = core_of(client.peers[0]).link
        link.pause_writing()
        client.publish_nowait("news")
        await client.notify("note")
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert order == []
        link.resume_writing()
    assert order == ["news", "note", "items"]


async def test_an_item_for_a_channel_that_is_not_there_harms_nobody() -> None:
    async with pair(bus := answering()) as client:
        core = core_of(client.peers[0])
        for kind in (Kind.ITEM, Kind.CREDIT, Kind.END, Kind.CANCEL):
            core.link.answer(Message(kind, "", "made-up-1", body=1), core)
        assert await client.request("echo", 1) == 1
        assert len(bus.peers) == 1


# -- bytes ---------------------------------------------------------------------------------------------------------------

KIB = 1024
UNREAD = 2 * 256 * KIB
"""What one side may send ahead of a reader that stands still, and one item more."""


class Large:
    """Streams of large items, and a handler that is sent some and does not read them."""

    def __init__(self, bus: Bus, size: int) -> None:
        self.size = size
        self.made = 0
        bus.handle("large")(self.large)
        bus.handle("deaf")(self.deaf)

    async def large(self, body: int) -> AsyncIterator[str]:
        for _ in range(body):
            self.made += 1
            yield "x" * self.size

    async def deaf(self, ch: Channel[bytes, int]) -> None:
        await anyio.sleep_forever()


@LOCAL
async def test_unread_items_are_held_back_by_their_bytes_and_charged(local: bool) -> None:
    bus, client = Bus(), Bus()
    large, asker = Large(bus, 64 * KIB), bus if local else client
    async with pair(bus, client=client):
        async with asker.stream("large", 200) as items:
            await anext(items)
            await anyio.wait_all_tasks_blocked()
            assert 4 <= large.made <= UNREAD // large.size
            with pytest.raises(NoHandler):  # others are answered meanwhile
                await asker.request("nobody")
            assert 100 * KIB < asker._services.running.buffered <= UNREAD
            count = 1
            async for _ in items:
                count += 1
            assert count == 200
        assert asker._services.running.buffered == 0


async def test_what_was_not_read_is_given_back_when_the_channel_is_left() -> None:
    bus, client = Bus(), Bus()
    Large(bus, 64 * KIB)
    async with pair(bus, client=client):
        async with client.stream("large", 200) as items:
            await anext(items)
            await anyio.wait_all_tasks_blocked()
            assert client._services.running.buffered > 0
        assert client._services.running.buffered == 0
        async with client.channel("deaf") as ch, anyio.create_task_group() as group:

            async def fill() -> None:
                while True:
                    await ch.send(bytes(64 * KIB))

            group.start_soon(fill)
            await eventually(lambda: bus._services.running.buffered > 100 * KIB)
            await anyio.wait_all_tasks_blocked()
            assert bus._services.running.buffered <= UNREAD
            group.cancel_scope.cancel()
        await eventually(lambda: bus._services.running.buffered == 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_reader_that_is_cancelled_leaves_the_item_to_the_next_one() -> None:
    bus = Bus()

    @bus.handle("late")
    async def late(ch: Channel[int, int]) -> None:
        await anyio.sleep_forever()

    async with bus, bus.channel("late") as items:
        readers = []
        for _ in range(3):
            readers.append(asyncio.ensure_future(anext(items)))
            await anyio.wait_all_tasks_blocked()
        readers[0].cancel()
        await anyio.wait_all_tasks_blocked()
        items.received_item(Message(Kind.ITEM, "", "1", body=1))
        readers[1].cancel()  # woken already, but did not run yet
        assert await readers[2] == 1
        assert readers[0].cancelled() and readers[1].cancelled()


async def test_a_channel_whose_call_is_cancelled_leaves_nothing_behind() -> None:
    Large(bus := Bus(), 1)
    async with pair(bus) as client, client.channel("deaf") as ch:
        core_of(client.peers[0])._send_cancel(ch.id, "deaf")
        with pytest.raises(RequestError, match="CANCELLED"):
            await ch.receive(60)
        assert not core_of(client.peers[0]).channels and not core_of(bus.peers[0]).channels


async def test_items_of_all_sizes_never_get_stuck() -> None:
    bus = Bus()
    sizes = [300 * KIB, *[1] * 15, 0, 70 * KIB, *[5] * 40, *[20 * KIB] * 30, 700 * KIB, *[2] * 7] * 3

    @bus.handle("mixed")
    async def mixed() -> AsyncIterator[str]:
        for size in sizes:
            yield "x" * size

    async with pair(bus) as client, client.stream("mixed") as items:
        assert [len(item) async for item in items] == sizes
    async with bus, bus.stream("mixed") as items:
        assert [len(item) async for item in items] == sizes


@pytest.mark.parametrize(("count", "size", "says"), [(1000, 1, "granted"), (60, 200 * KIB, "bytes")], ids=["items", "bytes"])
async def test_what_is_beyond_the_credit_or_may_not_be_sent_ahead_ends_the_channel(count: int, size: int, says: str) -> None:
    bus, client = Bus(), Bus()

    @bus.handle("stubborn")
    async def stubborn(ch: Channel[int, bytes]) -> None:
        for _ in range(count):
            ch._credit = 10  # a peer that counts as it likes
            ch._ahead.clear()
            ch._ahead_bytes = 0
            await ch.send(bytes(size))

    async with pair(bus, client=client):
        with pytest.raises(TooManyRequests, match=says):
            async with client.channel("stubborn") as ch:
                await eventually(lambda: ch.failed)  # the other side may pause between two items
                assert client._services.running.buffered <= 5 * 256 * KIB
                async for _ in ch:
                    pass
        await eventually(lambda: bus.stats().running == 0)
        assert client._services.running.buffered == 0


async def test_the_unread_items_of_all_channels_stay_within_total_bytes() -> None:
    bus, client = Bus(), Bus(limits=Limits(total_bytes=1024 * KIB))
    Large(bus, 64 * KIB)
    async with pair(bus, client=client):
        streams = [client.stream("large", 200) for _ in range(20)]
        ended = 0
        for stream in streams:
            await stream.__aenter__()
        await eventually(lambda: any(stream._channel is not None and stream._channel.failed for stream in streams))
        assert client._services.running.buffered <= 1024 * KIB
        for stream in streams:
            assert stream._channel is not None
            ended += isinstance(stream._channel.failed, TooManyRequests)
            await stream.__aexit__(None, None, None)
        assert ended > 0
        assert client._services.running.buffered == 0


async def test_a_bus_may_open_so_many_channels_to_itself_and_no_more_and_leave_each_early() -> None:
    bus = Bus(limits=Limits(channels=2))
    Large(bus, 64 * KIB)
    async with bus, AsyncExitStack() as stack:
        async with bus.stream("large", 200) as items:
            await anext(items)
            await anyio.wait_all_tasks_blocked()
        assert bus._services.running.buffered == 0, "what was on its way when it was left costs nothing"
        with pytest.raises(TooManyRequests, match=r"Limits\.channels"):
            for _ in range(5):
                await stack.enter_async_context(bus.stream("large", 9))


@pytest.mark.parametrize(
    ("id", "mode", "opened", "told"),
    [
        (5, "stream", 0, "duplicate"),
        (6, "nonsense", 0, Code.INVALID_ARGUMENT),
        (6, "stream", Limits().channels, Code.RESOURCE_EXHAUSTED),
        (6, "stream", Limits().channels - 1, "begun"),
    ],
)
async def test_a_channel_from_another_node_is_refused_as_one_from_a_peer_of_this_one(
    id: int, mode: str, opened: int, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(bus := Bus()):
        channels, said = core_of(bus.peers[0]).streams, list[Any]()
        monkeypatch.setattr(streams, "refuse_duplicate", lambda peer, message, now: said.append("duplicate"))
        monkeypatch.setattr(streams, "send_error", lambda peer, message, code, text, kind: said.append(code))
        monkeypatch.setattr(type(channels), "_begin", lambda *of: said.append("begun"))
        monkeypatch.setattr(type(channels), "_count_opened", lambda of: opened)
        channels.channels[5] = object()
        message = Message(Kind.OPEN, "count", id, None, JSON, attributes={"mode": mode})
        channels.opened(message, 0.0, SimpleNamespace(style="route"))
        del channels.channels[5]
        assert said == [told]
