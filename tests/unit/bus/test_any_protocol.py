"""What a bus does in the same way whatever the protocol: no line of a session, a codec or a transport decides about it.

So this is not in `protocol_suite`. It runs over one protocol, with the means of the suite.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import anyio
import attrs
import pytest

from polybus import (
    AmbiguousRoute,
    Bus,
    Context,
    Disconnected,
    Forbidden,
    NoHandler,
    Peer,
    RequestCancelled,
    errors,
    method,
)
from polybus.protocols import Ubre
from polybus.testing.contract._base import Contract, Endless, echo, eventually, ground_of, let_expire, suite, take
from polybus.testing.contract.links import named
from tests.loops import both_backends  # noqa: F401  # the fixture `anyio_backend`


@attrs.frozen
class User:
    id: int
    name: str


@attrs.frozen
class GetUser:
    id: int


class Users:
    watching: int = 0

    async def watch(self, query: GetUser) -> AsyncIterator[User]:
        self.watching += 1
        try:
            for number in range(query.id):
                yield User(number, "Ann")
        finally:
            self.watching -= 1


class AnyProtocol(Contract):
    async def test_a_contract_stream_yields_its_items_and_stops_when_left(self) -> None:
        class Watched(Protocol):
            @method(self.subject("user.watch"))
            def watch(self, query: GetUser) -> AsyncIterator[User]: ...

        bus, users = Bus(), Users()
        bus.implement(Watched, users)
        async with self.joined(bus) as client:
            watched: Any = client.client(Watched)
            assert [user.id async for user in watched.watch(GetUser(3))] == [0, 1, 2]
            async for user in watched.watch(GetUser(1_000_000)):
                if user.id == 3:
                    break
            await eventually(lambda: users.watching == 0)

    async def test_a_reply_can_be_awaited_repeatedly_and_by_several_tasks(self) -> None:
        go = anyio.Event()

        async def slow() -> list[int]:
            await go.wait()
            return [7]

        async with self.handling(slow) as (_, client, subject):
            reply = client.request(subject)
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await reply.wait())

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert not reply.done()
                go.set()
            assert answers == [[7]] * 3
            assert reply.done()
            assert await reply == [7]
            assert not reply.cancel()
            assert reply.message is not None

    async def test_debug_sends_the_text_of_an_exception(self) -> None:
        async def fail() -> None:
            raise ValueError("quite helpful")

        async with self.handling(fail, Bus(debug=True)) as (_, client, subject):
            with pytest.raises(errors.RemoteError, match="ValueError: quite helpful"):
                await client.request(subject)

    async def test_cancelling_the_last_waiter_cancels_the_request(self) -> None:
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

    async def test_cancelling_one_of_two_waiters_keeps_the_request(self) -> None:
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

    async def test_a_request_with_several_links_is_ambiguous(self) -> None:
        subject = self.subject("name")
        one, two, client = named("one", subject), named("two", subject), Bus()
        async with self.serving(one) as (_, dial_one), self.serving(two) as (_, dial_two):
            async with dial_one(client), dial_two(client, serves=[self.subject("vehicle.door")]):
                with pytest.raises(AmbiguousRoute):
                    _ = client.request(subject)
                with pytest.raises(NoHandler):
                    await client.request(self.subject("vehicle.door"))
                assert {await client.request(subject, to=peer) for peer in client.peers} == {"one", "two"}

    async def test_serves_chooses_the_link(self) -> None:
        subject = self.subject("name")
        one, two, client = named("one", subject), named("two", subject), Bus()
        async with self.serving(one) as (_, dial_one), self.serving(two) as (_, dial_two):
            async with dial_one(client), dial_two(client, serves=[subject]):
                assert await client.request(subject) == "two"

    async def test_an_exception_in_authorize_refuses_the_request(self, caplog: pytest.LogCaptureFixture) -> None:
        def authorize(peer: Peer, verb: str, subject: Any) -> bool:
            raise LookupError("no rules")

        async def handler() -> None:
            pass

        async with self.handling(handler, Bus(authorize=authorize)) as (_, client, subject):
            with pytest.raises(Forbidden) as caught:
                await client.request(subject)
        assert "no rules" not in str(caught.value)
        assert "no rules" in caplog.text

    async def test_an_on_handler_runs_one_publication_at_a_time_in_order(self) -> None:
        bus, subject = Bus(), self.subject("news.today")
        log: list[Any] = []
        done = anyio.Event()

        @bus.on(subject)
        async def on_news(body: int, ctx: Context) -> None:
            log.append(("in", body))
            await anyio.lowlevel.checkpoint()
            log.append(("out", body))
            if body == 49:
                done.set()

        async with self.joined(bus) as client:
            for number in range(50):
                await client.publish(subject, number)
            await done.wait()
        assert log == [(step, number) for number in range(50) for step in ("in", "out")]

    async def test_a_waiting_reader_fails_when_the_peer_disconnects(self) -> None:
        async with self.meeting() as (_, [client], [peer], _):
            async with peer.subscribe(self.subject("news.today")) as today, anyio.create_task_group() as group:
                group.start_soon(client.aclose)
                with pytest.raises(Disconnected):
                    await anext(today)

    async def test_an_enclosing_scope_times_out_and_stops_the_handler(self) -> None:
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

    async def test_a_client_with_several_server_subscriptions_sends_a_publication_once(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (bus, [client], [peer], settled):
            async with peer.subscribe(news) as one, peer.subscribe(news) as two, bus.subscribe(news) as three:
                await settled()
                before = client.stats().sent
                await client.publish(news, 1)
                assert client.stats().sent == before + 1
                await settled()
                assert [await take(each, 1) for each in (one, two, three)] == [[1], [1], [1]]
                assert len(one) == len(two) == len(three) == 0

    async def test_a_subscription_to_the_server_is_withdrawn_when_its_last_reader_leaves(self) -> None:
        news = self.subject("news.today")
        async with self.meeting() as (bus, [client], _, settled):
            (server,) = client.peers
            async with server.subscribe(news) as first, server.subscribe(news) as second:
                await client.publish(news, "the bus's own")
                await bus.publish(news, 1)
                message = await anext(first)
                assert (message.body, message.peer) == (1, server)
                assert await take(second, 1) == [1]
            await settled()
            before = client.stats().received
            await bus.publish(news, 2)
            await settled()
            assert client.stats().received == before + 1  # only the answer

    async def test_an_async_authorize_decides_as_a_plain_one_does_and_keeps_the_order(self) -> None:
        asked: list[Any] = []

        async def authorize(peer: Peer, verb: str, subject: Any) -> bool:
            await anyio.lowlevel.checkpoint()
            asked.append((verb, subject))
            return bool(subject != "no")

        bus = Bus(authorize=authorize)
        for subject in ("yes", "no"):
            bus.handle(subject)(echo)
        async with self.joined(bus) as client, bus.subscribe("yes") as allowed, bus.subscribe("no") as refused:
            assert await client.request("yes", 1) == 1
            with pytest.raises(Forbidden):
                await client.request("no", 1)
            assert asked == [("request", "yes"), ("request", "no")]
            for number in range(20):
                await client.publish("no", number)
                await client.publish("yes", number)
            assert await take(allowed, 20) == list(range(20))
            assert len(refused) == 0
            assert bus.stats().refused == 21


_MEMBERS = {"make": staticmethod(Ubre), "ground": staticmethod(ground_of("memory")), "subject": staticmethod(str)}
TestAnyProtocol = suite("AnyProtocol", (AnyProtocol,), _MEMBERS, None, {})
