"""Headers that a handler sets for its answer: who may set them, which way they go, and who sees them."""

from typing import Any

import pytest
from attrs import frozen

import polybus.sync
from polybus import BadReply, Bus, CallNext, Context, Message, NotFound, RemoteError, Route, Subject, bridge
from polybus.testing import context, pair


@frozen
class User:
    id: int


GET_USER = Subject("user.get", int, User)


def tagging() -> Bus:
    bus = Bus()

    @bus.handle(GET_USER)
    async def get_user(id: int, ctx: Context) -> User:
        ctx.answer_headers["etag"] = f"v{id}"
        ctx.answer_headers.update({"x-more": "yes"})
        return User(id)

    return bus


class Nothing: ...


BOTH = {"etag": "v7", "x-more": "yes"}


async def test_the_asker_sees_them_at_the_reply_or_asks_for_the_whole_message() -> None:
    async with pair(tagging()) as client:
        reply = client.request(GET_USER, 7)
        assert await reply == User(7)
        assert reply.message is not None
        assert reply.message.headers == BOTH
        whole = await client.request("user.get", 7, returns=Message)
        assert (whole.body, whole.headers) == ({"id": 7}, BOTH)
        typed = await client.request(GET_USER, 7, returns=Message[User])
        assert (typed.body, typed.headers) == (User(7), BOTH)
        again = client.request("user.get", 7, returns=Message[User])
        assert await again is await again
        with pytest.raises(BadReply):
            await client.request("user.get", 7, returns=Message[list[int]])
        with pytest.raises(TypeError, match="returns="):
            await client.request("user.get", 7, returns=Message[Nothing])
        with pytest.raises(TypeError, match="name the type of its body"):
            client.subscribe("user.>", returns=Message[User])


async def test_a_bus_that_asks_itself_sees_them_too() -> None:
    bus = tagging()

    @bus.handle("bare")
    async def bare(message: Message) -> bool:
        return message.headers is None  # as over every wire

    async with bus:
        assert await bus.request("bare", headers={})
        assert (await bus.request(GET_USER, 7, returns=Message[User])).headers == BOTH
        assert (await bus.as_("ann").request("user.get", 7, returns=Message[User])).headers == BOTH
    ctx = context()  # and a test of a handler
    ctx.answer_headers["etag"] = "v1"
    assert ctx.answer_headers == ctx.message.answer_headers == {"etag": "v1"}


async def test_an_error_and_an_answer_to_a_question_with_headers_have_none_of_them() -> None:
    bus = Bus()

    @bus.handle("work")
    async def work(fails: bool, ctx: Context) -> None:
        if fails:
            ctx.answer_headers["etag"] = "1"
            raise NotFound("gone")

    async with pair(bus) as client:
        reply = client.request("work", True)
        with pytest.raises(NotFound):
            await reply
        assert reply.message is not None and not reply.message.headers
        assert not (await client.request("work", False, headers={"etag": "1"}, returns=Message)).headers


async def test_a_middleware_adds_to_them_also_where_it_passes_another_message_on() -> None:
    bus = tagging()

    @bus.use
    async def stamped(message: Message, ctx: Context, call_next: CallNext) -> Any:
        result = await call_next(message.with_headers({"x-inner": "1"}))
        ctx.answer_headers["x-stamp"] = ctx.answer_headers["etag"] + "!"
        return result

    async with pair(bus) as client:
        assert (await client.request(GET_USER, 7, returns=Message[User])).headers == {**BOTH, "x-stamp": "v7!"}


def test_a_def_handler_sets_them_and_the_blocking_twin_sees_them() -> None:
    bus = Bus()

    @bus.handle("user.get")
    def get_user(id: int, ctx: polybus.sync.Context) -> User:
        ctx.answer_headers["etag"] = f"v{id}"
        return User(id)

    with polybus.sync.Bus(bus) as blocking, blocking.serve("ubre+tcp://127.0.0.1:0") as listener:
        with polybus.sync.connect(listener.url) as client:
            answer = client.request("user.get", 7, returns=Message[User])
            assert (answer.body, answer.headers) == (User(7), {"etag": "v7"})
        assert blocking.as_("ann").request("user.get", 8, returns=Message[User]).headers == {"etag": "v8"}


@pytest.mark.parametrize("headers", [{"etag": 7}, {"ReplyTo": "x"}, {"a b": "x"}, {"x": "x" * 20_000}])
async def test_odd_headers_are_a_failure_of_the_handler(headers: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()

    @bus.handle("work")
    async def work(ctx: Context) -> int:
        ctx.answer_headers.update(headers)
        return 1

    async with pair(bus) as client:
        with pytest.raises(RemoteError, match="INTERNAL"):
            await client.request("work")
        with pytest.raises(RemoteError, match="INTERNAL"):
            await bus.request("work")
    assert bus.stats().failed == 2
    assert caplog.text.count("header") >= 2


@pytest.mark.parametrize("convert", [None, lambda body, message: {"id": body["id"] + 1}])
async def test_only_those_that_a_route_names_cross_a_bridge(convert: Any) -> None:
    left, right, route = Bus(), tagging(), Route("user.get", "user.get", headers=["etag"], reply=convert)
    async with pair(left) as client, pair(right, client=Bus()) as towards, bridge(left, towards, routes=[route]):
        answer = await client.request("user.get", 7, returns=Message[User])
        assert answer.headers == {"etag": "v7"}
        assert answer.body == User(8 if convert else 7)
