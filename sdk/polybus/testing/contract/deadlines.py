"""Deadlines and cancellation: every request ends, and what nobody waits for is stopped."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ... import Bus, Code, Context, DeadlineExceeded, RequestCancelled, RequestError
from ._base import Contract, Endless, echo, eventually, let_expire, needs


class DeadlineContract(Contract):
    """`timeout=`, scopes, and `Reply.cancel`."""

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
    async def test_the_deadline_travels_with_the_request(self) -> None:
        async def ttl(ctx: Context) -> Any:
            assert ctx.deadline is not None
            return [ctx.message.ttl, ctx.deadline - anyio.current_time()]

        async with self.handling(ttl) as (_, client, subject):
            ttl_, left = await client.request(subject, timeout=20)
            # A difference of two readings of a clock is exact to its last digits only.
            assert 0 < left <= ttl_ + 1e-6
            assert ttl_ <= 20

    @needs("deadlines")
    async def test_an_enclosing_scope_sets_the_deadline_on_the_wire(self) -> None:
        async def ttl(ctx: Context) -> Any:
            return ctx.message.ttl

        async with self.handling(ttl) as (_, client, subject):
            with anyio.move_on_after(20):
                assert 0 < await client.request(subject, timeout=30) <= 20

    async def test_an_enclosing_scope_fires_itself_and_stops_the_handler(self) -> None:
        handler = Endless()
        async with self.handling(handler.endless) as (_, client, subject):

            async def ask(seconds: float) -> None:
                with anyio.move_on_after(seconds) as scope:
                    await client.request(subject)
                assert scope.cancelled_caught
                raise TimeoutError

            await let_expire(ask, handler.started.is_set)
            await handler.stopped.wait()
            await eventually(lambda: client.stats().pending == 0)

    async def test_a_scope_that_is_over_fires_whatever_the_peer_says(self) -> None:
        async with self.handling(Endless().endless) as (_, client, subject):
            for left in (0.0004, 0.0, -1.0):
                with anyio.move_on_after(left) as scope:
                    await client.request(subject)
                assert scope.cancelled_caught

    @needs("deadlines")
    async def test_a_peer_that_gives_up_a_moment_early_does_not_forestall_the_scope(self) -> None:
        async def early(ctx: Context) -> None:
            assert ctx.deadline is not None
            await anyio.sleep_until(ctx.deadline - 0.02)
            raise RequestError(Code.DEADLINE_EXCEEDED, "no time left")

        async with self.handling(early) as (_, client, subject):
            with anyio.move_on_after(0.1) as scope:
                await client.request(subject)
            assert scope.cancelled_caught
            with anyio.move_on_after(30) as scope, pytest.raises(DeadlineExceeded):  # its own word, as ever
                await client.request(subject, timeout=0.1)
            assert not scope.cancelled_caught

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

    async def test_cancelling_an_answered_reply_changes_nothing(self) -> None:
        async with self.handling(echo) as (_, client, subject):
            reply = client.request(subject, 7)
            assert await reply == 7
            assert not reply.cancel()
            assert await reply == 7

    @needs("extensions")
    async def test_the_last_waiter_that_is_cancelled_cancels_the_request(self) -> None:
        handler = Endless()
        async with self.handling(handler.endless) as (_, client, subject):
            reply = client.request(subject)
            async with anyio.create_task_group() as group:
                for _ in range(2):
                    group.start_soon(reply.wait)
                await handler.started.wait()
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
            assert reply.done()
            with pytest.raises(RequestCancelled):
                await reply
            await handler.stopped.wait()

    async def test_one_of_two_waiters_that_is_cancelled_leaves_the_request_alone(self) -> None:
        go = anyio.Event()

        async def slow() -> int:
            await go.wait()
            return 7

        async with self.handling(slow) as (_, client, subject):
            reply = client.request(subject)
            answers: list[int] = []

            async def stay() -> None:
                answers.append(await reply)

            async def leave(scope: anyio.CancelScope) -> None:
                with scope:
                    await reply

            async with anyio.create_task_group() as group:
                group.start_soon(stay)
                group.start_soon(leave, scope := anyio.CancelScope())
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
                await anyio.wait_all_tasks_blocked()
                assert not reply.done()
                go.set()
            assert answers == [7]

    async def test_an_answer_after_its_time_is_counted_and_harms_nobody(self) -> None:
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
