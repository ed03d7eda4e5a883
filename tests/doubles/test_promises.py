"""One set of promises, over protocols that have little in common. Nothing here knows which one it runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from polybus import (
    Bus,
    Channel,
    Code,
    Context,
    DeadlineExceeded,
    Message,
    NoHandler,
    NotFound,
    RemoteError,
    Reply,
    RequestCancelled,
    RequestError,
    Unsupported,
)
from tests.support import BOUND, let_expire

from .settings import SETTINGS, Setting

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.id)]


class Server(Bus):
    """A bus with a few handlers, and what they saw."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.stopped, self.all_in = anyio.Event(), anyio.Event(), anyio.Event()
        self.inside = 0
        for handler in (self.echo, self.missing, self.broken, self.slow, self.together, self.upto, self.forever, self.shout):
            self.handle(handler.__name__)(handler)

    async def echo(self, body: Any) -> Any:
        return body

    async def missing(self) -> None:
        raise RequestError(Code.NOT_FOUND, "no such thing", reason="gone", detail={"id": 7})

    async def broken(self) -> None:
        raise ZeroDivisionError("secret")

    async def slow(self) -> None:
        self.started.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.stopped.set()

    async def together(self, body: int) -> int:
        self.inside += 1
        if self.inside == 50:
            self.all_in.set()
        await self.all_in.wait()
        return body * 2

    async def upto(self, body: int) -> AsyncIterator[int]:
        for number in range(body):
            yield number

    async def forever(self) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            self.stopped.set()

    async def shout(self, ch: Channel[str, str]) -> None:
        async for word in ch:
            await ch.send(word.upper())


async def test_a_request_is_answered(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        async with setting.linked(Server(), Bus()) as client:
            assert await client.request("echo", {"a": [1, "zwei", None]}) == {"a": [1, "zwei", None]}
            assert await client.request("echo") is None


async def test_an_error_arrives_with_its_code_reason_and_detail(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        async with setting.linked(Server(), Bus()) as client:
            with pytest.raises(NotFound, match="no such thing") as caught:
                await client.request("missing")
            assert (caught.value.reason, caught.value.detail) == ("gone", {"id": 7})
            with pytest.raises(NoHandler):
                await client.request("nobody.serves.this")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_a_handler_raises_by_accident_is_not_told(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        async with setting.linked(Server(), Bus()) as client:
            with pytest.raises(RemoteError) as caught:
                await client.request("broken")
            assert caught.value.code is Code.INTERNAL
            assert "secret" not in str(caught.value)


async def test_a_deadline_ends_the_request_and_the_handler(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        server = Server()
        async with setting.linked(server, Bus()) as client:
            error = await let_expire(lambda seconds: client.request("slow", timeout=seconds), server.started.is_set)
            assert isinstance(error, DeadlineExceeded)
            await server.stopped.wait()
            assert await client.request("echo", 1) == 1


async def test_cancelling_a_request_stops_its_handler(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        server = Server()
        async with setting.linked(server, Bus()) as client:
            reply: Reply[Any] = client.request("slow")
            await server.started.wait()
            reply.cancel()
            with pytest.raises(RequestCancelled):
                await reply
            await server.stopped.wait()


async def test_many_requests_run_at_the_same_time_and_get_each_its_own_answer(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        async with setting.linked(Server(), Bus()) as client:
            replies = [client.request("together", number) for number in range(50)]
            assert [await reply for reply in replies] == [2 * number for number in range(50)]


async def test_a_publication_of_the_client_reaches_the_server(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        server, heard, done = Server(), list[Any](), anyio.Event()

        @server.on("news.*")
        async def on_news(body: Any) -> None:
            heard.append(body)
            if len(heard) == 3:
                done.set()

        async with setting.linked(server, Bus()) as client:
            for number in range(3):
                await client.publish("news.today", number)
            await done.wait()
        assert heard == [0, 1, 2]
        assert server.stats().refused == 0


async def test_a_publication_of_the_server_reaches_who_subscribed(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        server = Server()
        async with setting.linked(server, Bus()) as client:
            if not setting.pushes:
                with pytest.raises(Unsupported):
                    await client.subscribe("news.today").__aenter__()
                return
            async with client.subscribe("news.today") as exact, client.subscribe("news.*") as pattern:
                await server.publish("other", 0)
                await server.publish("news.today", {"n": 1})
                await server.publish("news.yesterday", {"n": 2})
                assert [(m.subject, m.body) for m in [await anext(pattern), await anext(pattern)]] == [
                    ("news.today", {"n": 1}),
                    ("news.yesterday", {"n": 2}),
                ]
                assert (await anext(exact)).body == {"n": 1}


async def test_after_the_end_of_a_subscription_nothing_is_sent_for_it(setting: Setting) -> None:
    if not setting.pushes:
        pytest.skip("this server begins nothing")
    with anyio.fail_after(BOUND):
        server = Server()
        async with setting.linked(server, Bus()) as client:
            async with client.subscribe("a"):
                pass
            await client.request("echo")  # what was written before it has arrived
            before = server.stats().sent
            await server.publish("a", 1)
            assert server.stats().sent == before


async def test_a_server_asks_its_client(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        server, client = Server(), Bus()

        @client.handle("who")
        async def who(body: str) -> str:
            return f"{body}, me"

        async with setting.linked(server, client):
            await client.request("echo")  # by now the server knows its peer
            (peer,) = server.peers
            if setting.pushes:
                assert await peer.request("who", "well") == "well, me"
            else:
                with pytest.raises(Unsupported):
                    _ = peer.request("who", "well")


async def test_a_notification_reaches_one_handler(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        server, told = Server(), list[Any]()
        done = anyio.Event()

        @server.handle("tell")
        async def tell(body: Any) -> str:
            told.append(body)
            done.set()
            return "nobody reads this"

        async with setting.linked(server, Bus()) as client:
            await client.notify("tell", 7)
            await done.wait()
            assert await client.request("echo", 1) == 1
        assert told == [7]


async def test_headers_travel_or_are_unsupported(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        server = Server()
        seen: list[Any] = []

        @server.use
        async def note(message: Message, ctx: Context, call_next: Callable[[Message], Any]) -> Any:
            seen.append(message.headers)
            return await call_next(message)

        async with setting.linked(server, Bus()) as client:
            if setting.headers:
                await client.request("echo", headers={"x-trace": "7"})
                assert seen == [{"x-trace": "7"}]
            else:
                with pytest.raises(Unsupported):
                    await client.request("echo", headers={"x-trace": "7"})


async def test_a_stream_gives_its_items_and_ends(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        async with setting.linked(Server(), Bus()) as client:
            if not setting.pushes:
                with pytest.raises(Unsupported):
                    await client.stream("upto", 3).__aenter__()
                return
            async with client.stream("upto", 200) as numbers:
                assert [number async for number in numbers] == list(range(200))


async def test_leaving_a_stream_stops_its_handler(setting: Setting) -> None:
    if not setting.pushes:
        pytest.skip("this server begins nothing")
    with anyio.fail_after(BOUND):
        server = Server()
        async with setting.linked(server, Bus()) as client:
            async with client.stream("forever") as ones:
                assert await anext(ones) == 1
            await server.stopped.wait()


async def test_a_channel_carries_items_both_ways(setting: Setting) -> None:
    if not setting.pushes:
        pytest.skip("this server begins nothing")
    with anyio.fail_after(BOUND):
        async with setting.linked(Server(), Bus()) as client:
            async with client.channel("shout") as ch:
                await ch.send("hello")
                assert await anext(ch) == "HELLO"
                await ch.send("world")
                await ch.send_eof()
                assert [word async for word in ch] == ["WORLD"]


async def test_a_stream_that_is_a_request_handler_is_a_bad_request(setting: Setting) -> None:
    with anyio.fail_after(BOUND):
        async with setting.linked(Server(), Bus()) as client:
            with pytest.raises((RequestError, Unsupported)):
                async with client.stream("echo") as items:
                    await anext(items)
            with pytest.raises(RequestError) as caught:
                await client.request("upto", 3)
            assert caught.value.code is Code.INVALID_ARGUMENT
