"""Contract tests for streams, channels, deadlines and cancellation. Every request ends, and abandoned handlers stop."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import anyio
import attrs
import pytest

from ... import Bus, Channel, Code, Context, DeadlineExceeded, RequestCancelled
from ...errors import BadReply, BadRequest, Disconnected, LocalProtocolError, NoHandler, NotFound, RemoteError, RequestError
from ._base import Contract, Endless, echo, eventually, let_expire, needs


@attrs.frozen
class NumberedLine:
    number: int


class ChannelContract(Contract):
    requires: ClassVar[tuple[str, ...]] = ("extensions",)

    async def test_a_stream_yields_every_item_in_order_and_ends(self) -> None:
        async def lines(body: int) -> AsyncIterator[Any]:
            for number in range(body):
                yield {"number": number}

        async with self.handling(lines) as (bus, client, subject):
            for count in (0, 1, 500):
                async with client.stream(subject, count, returns=NumberedLine) as items:
                    assert [line async for line in items] == [NumberedLine(n) for n in range(count)]
            await eventually(lambda: bus.stats().running == 0)

    async def test_a_stream_item_can_be_bytes_or_null(self) -> None:
        sent: list[Any] = [b"\x00\xff", b"", None, "text", {"a": 1}]

        async def items() -> AsyncIterator[Any]:
            for item in sent:
                yield item

        async with self.handling(items) as (_, client, subject), client.stream(subject) as got:
            first = await anext(got)
            rest = [item async for item in got]
            # JSON cannot represent bytes, so a protocol may send them unchanged or in base64.
            assert first in (b"\x00\xff", "AP8=")
            assert rest[1:] == [None, "text", {"a": 1}]

    async def test_a_stream_item_of_the_wrong_type_raises_bad_reply(self) -> None:
        async def lines() -> AsyncIterator[Any]:
            yield {"number": "one"}

        async with self.handling(lines) as (_, client, subject), client.stream(subject, returns=NumberedLine) as items:
            with pytest.raises(BadReply, match=r"\$\.number"):
                await anext(items)

    async def test_a_slow_reader_pauses_the_sender(self) -> None:
        made: list[int] = []

        async def fast() -> AsyncIterator[int]:
            for number in range(1000):
                made.append(number)
                yield number

        async with self.handling(fast) as (_, client, subject), client.stream(subject) as items:
            assert await anext(items) == 0
            await anyio.wait_all_tasks_blocked()
            assert len(made) < 200
            assert [item async for item in items] == list(range(1, 1000))
            assert len(made) == 1000

    async def test_leaving_a_stream_stops_the_handler_and_runs_its_clean_up(self) -> None:
        cleaned = anyio.Event()

        async def endless() -> AsyncIterator[int]:
            try:
                for number in itertools.count():
                    yield number
            finally:
                await anyio.lowlevel.checkpoint()
                cleaned.set()

        async with self.handling(endless) as (bus, client, subject):
            async with client.stream(subject) as items:
                assert [await anext(items) for _ in range(3)] == [0, 1, 2]
            await cleaned.wait()
            await eventually(lambda: bus.stats().running == 0)

    async def test_a_failing_stream_yields_its_items_before_the_error(self) -> None:
        async def fails(body: bool) -> AsyncIterator[int]:
            yield 1
            yield 2
            raise NotFound("no more") if body else ValueError("secret")

        async with self.handling(fails) as (_, client, subject):
            for chosen, kind in ((True, NotFound), (False, RemoteError)):
                with pytest.raises(kind) as caught:
                    async with client.stream(subject, chosen) as items:
                        assert [await anext(items), await anext(items)] == [1, 2]
                        await anext(items)
                assert "secret" not in str(caught.value)

    async def test_a_stream_without_a_handler_raises_no_handler(self) -> None:
        async with self.joined(Bus()) as client:
            with pytest.raises(NoHandler):
                async with client.stream(self.subject("nobody")) as items:
                    await anext(items)

    async def test_mixing_up_request_stream_and_channel_raises_bad_request(self) -> None:
        bus, lines, one, talk = Bus(), self.subject("lines"), self.subject("one"), self.subject("talk")

        @bus.handle(lines)
        async def many() -> AsyncIterator[int]:
            yield 1

        @bus.handle(talk)
        async def converse(ch: Channel[Any, Any]) -> None:
            pass

        bus.handle(one)(echo)
        async with self.joined(bus) as client:
            for subject in (lines, talk):
                with pytest.raises(BadRequest, match="use bus"):
                    await client.request(subject)
            for subject in (one, talk):
                with pytest.raises(BadRequest):
                    async with client.stream(subject) as items:
                        await anext(items)
            for subject in (one, lines):
                with pytest.raises(BadRequest):
                    async with client.channel(subject) as ch:
                        await anext(ch)

    async def test_a_channel_carries_both_directions_and_their_ends(self) -> None:
        async def double(ch: Channel[int, int]) -> None:
            total = 0
            async for number in ch:
                total += number
                await ch.send(number * 2)
            await ch.send(total)

        async with self.handling(double) as (_, client, subject), client.channel(subject, receives=int) as ch:
            for number in range(self.turns):
                await ch.send(number)
                assert await anext(ch) == number * 2
            await ch.send_eof()
            assert [item async for item in ch] == [sum(range(self.turns))]
            with pytest.raises(LocalProtocolError):
                await ch.send(1)

    async def test_a_channel_item_of_the_wrong_type_ends_the_channel(self) -> None:
        async def take(ch: Channel[NumberedLine, int]) -> None:
            async for line in ch:
                await ch.send(line.number)

        async with self.handling(take) as (_, client, subject), client.channel(subject) as ch:
            await ch.send({"number": 1})
            assert await anext(ch) == 1
            await ch.send({"number": "two"})
            with pytest.raises(RequestError):
                await anext(ch)

    async def test_a_slow_channel_handler_pauses_the_caller(self) -> None:
        go = anyio.Event()

        async def slow(ch: Channel[int, int]) -> None:
            await go.wait()
            await ch.send(sum([number async for number in ch]))

        async with self.handling(slow) as (_, client, subject), client.channel(subject) as ch:
            sent: list[int] = []

            async def send() -> None:
                for number in range(1000):
                    await ch.send(number)
                    sent.append(number)
                await ch.send_eof()

            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await eventually(lambda: sent)
                await anyio.wait_all_tasks_blocked()
                assert len(sent) < 200
                go.set()
            assert await anext(ch) == sum(range(1000))

    async def test_aborting_a_channel_stops_its_handler(self) -> None:
        stopped = anyio.Event()

        async def wait(ch: Channel[int, int]) -> None:
            await ch.send(1)
            try:
                async for _ in ch:
                    pass
            finally:
                stopped.set()

        async with self.handling(wait) as (_, client, subject), client.channel(subject) as ch:
            assert await anext(ch) == 1
            ch.abort(Code.ABORTED, "changed my mind")
            await stopped.wait()

    async def test_a_failing_channel_handler_ends_both_directions(self) -> None:
        async def fail(ch: Channel[int, int]) -> None:
            await anext(ch)
            raise NotFound("nothing here")

        async with self.handling(fail) as (_, client, subject), client.channel(subject) as ch:
            await ch.send(1)
            with pytest.raises(NotFound, match="nothing here"):
                await anext(ch)
            with pytest.raises(NotFound):
                await ch.send(2)

    async def test_a_lost_link_ends_channels_on_both_sides(self) -> None:
        stopped = anyio.Event()

        async def wait(ch: Channel[int, int], ctx: Context) -> None:
            await ch.send(1)
            try:
                await anyio.sleep_forever()
            finally:
                stopped.set()

        async with self.handling(wait) as (bus, client, subject), client.channel(subject) as ch:
            assert await anext(ch) == 1
            await bus.peers[0].aclose("enough")
            with pytest.raises(Disconnected):
                await anext(ch)
            await stopped.wait()

    async def test_a_server_can_request_a_stream_from_a_client(self) -> None:
        bus, client, subject = Bus(), Bus(), self.subject("lines")

        @client.handle(subject)
        async def lines() -> AsyncIterator[int]:
            for number in range(3):
                yield number

        async with self.joined(bus, client):
            async with bus.peers[0].stream(subject) as items:
                assert [item async for item in items] == [0, 1, 2]


class DeadlineContract(Contract):
    async def test_a_deadline_ends_the_request_and_the_handler(self) -> None:
        handler = Endless()
        async with self.handling(handler.endless) as (bus, client, subject):
            error = await let_expire(lambda seconds: client.request(subject, timeout=seconds), handler.started.is_set)
            assert isinstance(error, DeadlineExceeded)
            assert error.subject == subject
            await handler.stopped.wait()
            await eventually(lambda: client.stats().pending == 0)
            await eventually(lambda: bus.stats().running == 0)

    @needs("deadlines")
    async def test_the_deadline_is_sent_with_the_request(self) -> None:
        async def ttl(ctx: Context) -> Any:
            assert ctx.deadline is not None
            return [ctx.message.ttl, ctx.deadline - anyio.current_time()]

        async with self.handling(ttl) as (_, client, subject):
            ttl_, left = await client.request(subject, timeout=20)
            # The difference of two clock readings has a rounding error.
            assert 0 < left <= ttl_ + 1e-6
            assert ttl_ <= 20

    @needs("deadlines")
    async def test_a_nested_request_inherits_the_deadline_of_the_handler(self) -> None:
        bus, client = Bus(), Bus()
        outer, inner = self.subject("outer"), self.subject("inner")

        @client.handle(inner)
        async def left(ctx: Context) -> Any:
            return ctx.message.ttl

        @bus.handle(outer)
        async def ask(ctx: Context) -> Any:
            assert ctx.peer is not None
            return await ctx.peer.request(inner, timeout=1000)

        async with self.joined(bus, client):
            assert 0 < await client.request(outer, timeout=20) <= 20

    @needs("extensions")
    async def test_cancelling_a_reply_stops_the_handler(self) -> None:
        handler = Endless()
        async with self.handling(handler.endless) as (_, client, subject):
            reply = client.request(subject)
            await handler.started.wait()
            assert reply.cancel()
            assert reply.done()
            assert not reply.cancel()
            for _ in range(2):
                with pytest.raises(RequestCancelled):
                    await reply
            await handler.stopped.wait()
            await eventually(lambda: client.stats().pending == 0)

    async def test_a_late_answer_does_not_disturb_other_requests(self) -> None:
        go = anyio.Event()

        async def stubborn(body: str) -> str:
            if body == "late":
                with anyio.CancelScope(shield=True):
                    await go.wait()
            return body

        async with self.handling(stubborn) as (_, client, subject):
            reply = client.request(subject, "late")
            other = client.request(subject, "other")
            assert await other == "other"
            reply.cancel()
            go.set()
            assert await client.request(subject, "next") == "next"
            with pytest.raises(RequestCancelled):
                await reply
