"""Registering and calling handlers: injection, mistakes at registration, routers, middleware, threads, local requests."""

import dataclasses
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from polybus import (
    BadReply,
    BadRequest,
    Bus,
    Channel,
    Code,
    Context,
    Forbidden,
    LocalProtocolError,
    Message,
    NoHandler,
    RemoteError,
    ReservedSubject,
    Router,
    Subject,
)
from polybus.testing import pair
from tests.support import eventually

if TYPE_CHECKING:
    from decimal import Decimal


@attrs.frozen
class Query:
    id: int
    name: str = "Ann"


@attrs.frozen
class User:
    id: int


GET_USER = Subject("user.get", Query, User)


async def test_a_default_stands_for_a_missing_body_and_null_is_a_body() -> None:
    bus = Bus()

    @bus.handle("default")
    async def default(body: dict[str, int] | None = {"n": 1}) -> Any:  # noqa: B006  # it is not changed
        return body

    async with pair(bus) as client:
        assert await client.request("default") == {"n": 1}
        assert await client.request("default", {"n": 2}) == {"n": 2}


async def lines(body: int) -> AsyncIterator[int]:
    yield body


async def talk(ch: Channel[int, int]) -> None: ...


@pytest.mark.parametrize("function", [lines, talk], ids=lambda function: function.__name__)
def test_a_stream_or_channel_cannot_receive_publications(function: Any) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        Bus().on("x")(function)


def test_a_second_handler_for_a_subject_is_a_type_error_that_names_both() -> None:
    router, bus = Router(), Bus()
    router.handle("x")(talk)
    bus.include(router)
    with pytest.raises(TypeError, match=r"lines.*talk"):
        bus.handle("x")(lines)
    with pytest.raises(TypeError, match="talk"):
        bus.include(router)


def test_a_prefix_before_a_number_is_a_type_error() -> None:
    router = Router()
    router.handle(7)(talk)
    Bus().include(router)
    with pytest.raises(TypeError, match="talk"):
        Bus().include(router, prefix="x.")


def test_a_subject_or_queue_that_cannot_be_is_said_at_registration() -> None:
    bus = Bus()
    for subject in ("a.*", "x" * 2000, "a\x00"):
        with pytest.raises(LocalProtocolError):
            bus.handle(subject)
    with pytest.raises(ReservedSubject):
        bus.handle("_polybus.hello")
    for options in ({"queue": 0}, {"concurrency": 0}, {"when_full": "never"}):
        with pytest.raises(ValueError, match="="):
            bus.on("x", **options)


async def test_a_router_is_included_with_a_prefix() -> None:
    router, bus, heard = Router(), Bus(), []

    @router.handle("get")
    async def get(body: int) -> int:
        return body

    @router.on("{id}.changed")
    async def changed(id: int, body: Any) -> None:
        heard.append((id, body))

    inner = Router()
    inner.include(router, prefix="user.")
    bus.include(inner, prefix="v1.")
    bus.include(router)
    async with pair(bus) as client:
        assert await client.request("v1.user.get", 1) == 1
        assert await client.request("get", 2) == 2
        await client.publish("v1.user.7.changed", "a")
        await client.publish("8.changed", "b")
        await eventually(lambda: len(heard) == 2)
    assert heard == [(7, "a"), (8, "b")]


def test_a_router_that_is_included_takes_no_more_handlers_since_no_bus_would_know_them() -> None:
    async def plain(body: int) -> None: ...

    router, other = Router(), Bus()
    router.handle("x")(talk)
    Bus().include(router)
    for register in (router.handle("y"), router.on("y.>")):
        with pytest.raises(
            TypeError, match=r"plain: the router has already been included.* register all handlers.* bus\.include"
        ):
            register(plain)
    other.include(router)  # in another bus too
    Bus().include(other)
    other.handle("y")(talk)  # a bus goes on by itself


async def test_middleware_stands_around_every_handler_the_first_outermost() -> None:
    bus, log = Bus(), []

    @bus.use
    async def outer(message: Message, ctx: Context, call_next: Any) -> Any:
        log.append(f"outer {message.subject}")
        result = await call_next(message)
        return f"({result})" if result is not None else None

    async def inner(message: Message, ctx: Context, call_next: Any) -> Any:
        log.append("inner")
        assert ctx.bus is bus
        if message.subject == "forbidden":
            raise Forbidden("not through here")
        return f"[{await call_next(message)}]"

    bus.use(inner)

    @bus.handle("echo")
    async def echo(body: str) -> str:
        return body

    @bus.handle("forbidden")
    async def forbidden() -> None:
        raise AssertionError("not reached")

    @bus.handle("plain", inline=True)
    def plain(body: str) -> str:
        return body

    @bus.on("news")
    async def on_news(body: str) -> None:
        log.append(body)

    async with pair(bus) as client:
        assert await client.request("echo", "a") == "([a])"
        assert await client.request("plain", "b") == "([b])"
        assert await bus.request("echo", "c") == "([c])"
        with pytest.raises(Forbidden, match="not through here"):
            await client.request("forbidden")
        await client.publish("news", "heard")
        await eventually(lambda: "heard" in log)
    assert log[:2] == ["outer echo", "inner"]
    assert log[-3:] == ["outer news", "inner", "heard"]


async def test_middleware_may_answer_itself_and_may_hand_on_another_message() -> None:
    bus = Bus()

    @bus.use
    async def change(message: Message, ctx: Context, call_next: Any) -> Any:
        if message.subject == "cached":
            return "from the cache"
        return await call_next(Message(message.kind, message.subject, message.id, body={"id": 8}, peer=message.peer))

    @bus.handle("cached")
    @bus.handle("asked")
    async def handler(body: Query) -> Any:
        return body.id

    async with pair(bus) as client:
        assert await client.request("cached", {"id": 7}) == "from the cache"
        assert await client.request("asked", {"id": 7}) == 8


async def test_a_bus_asks_its_own_handlers_by_the_same_rules() -> None:
    bus, told = Bus(), list[Any]()

    @bus.handle("echo")
    async def echo(body: Any, ctx: Context) -> Any:
        assert ctx.peer is None
        told.append(body)
        return body

    @bus.handle("typed")
    async def typed(body: Query) -> User:
        return User(body.id)

    @bus.handle("fails")
    async def fails() -> None:
        raise ValueError("secret")

    async with bus:
        answer = await bus.request("echo", body := {"a": [1, None, "ü"]})
        assert answer == body and answer is not body
        assert await bus.request("echo", b"\x00\xff") == b"\x00\xff"
        assert await bus.request("typed", Query(7), returns=User) == User(7)
        with pytest.raises(BadRequest, match=r"\$\.id"):
            await bus.request("typed", {"id": "x"})
        with pytest.raises(RemoteError) as caught:
            await bus.request("fails")
        assert caught.value.code is Code.INTERNAL
        assert "secret" not in str(caught.value)
        await bus.notify("echo", "told")
        await eventually(lambda: told[-1] == "told")
        for nobody in (bus.request("nobody"), bus.notify("nobody")):
            with pytest.raises(NoHandler):
                await nobody
        assert bus.stats().pending == 0


async def test_a_local_stream_that_fails_or_is_taken_for_something_else_says_so() -> None:
    bus = Bus()

    @bus.handle("lines")
    async def numbers(body: int) -> AsyncIterator[User]:
        for number in range(body):
            yield User(number)
        raise Forbidden("no more")

    bus.handle("talk")(talk)
    async with bus:
        with pytest.raises(Forbidden, match="no more"):
            async with bus.stream("lines", 2, returns=User) as items:
                assert [await anext(items), await anext(items)] == [User(0), User(1)]
                await anext(items)
        for subject, open_ in (("talk", bus.stream), ("lines", bus.channel)):
            with pytest.raises(BadRequest):
                async with open_(subject) as ch:
                    await anext(ch)
        with pytest.raises(BadRequest):
            await bus.request("lines", 1)
        await eventually(lambda: bus.stats().pending == 0)


@pytest.mark.parametrize("style", ["plain", "async"])
@pytest.mark.parametrize("wire", ["jrep", "uprotocol"])
async def test_a_notification_that_is_refused_or_does_not_fit_is_no_failure_of_its_handler(
    wire: str, style: str, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(peer: Any, verb: str, subject: object) -> bool:
        return subject != "closed"

    async def later(peer: Any, verb: str, subject: object) -> bool:
        return plain(peer, verb, subject)

    caplog.set_level(logging.INFO, "polybus")
    bus, told = Bus(authorize=plain if style == "plain" else later), list[int]()

    @bus.handle("open")
    @bus.handle("closed")
    async def tell(body: int) -> None:
        told.append(body)

    async with pair(bus, protocol=wire) as client:
        for _ in range(50):
            await client.notify("closed", 1)
            await client.notify("open", "no number")
        await client.notify("open", 7)
        await eventually(lambda: told)
        stats = bus.stats()
    assert told == [7]
    assert (stats.failed, stats.refused, stats.dropped) == (0, 50, 50)
    assert len(caplog.records) < 30 and all(record.levelno < logging.ERROR for record in caplog.records)
    assert "a notification of 'open'" in caplog.text


@dataclasses.dataclass
class Checked:
    number: int

    def __post_init__(self) -> None:
        raise KeyError("a secret")


async def test_a_check_of_the_applications_own_that_fails_is_a_body_that_does_not_fit() -> None:
    bus = Bus()

    @bus.handle("typed")
    async def typed(body: Checked) -> None:
        raise AssertionError

    @bus.handle("plain")
    async def plain() -> dict[str, int]:
        return {"number": 1}

    @bus.handle("sums")
    async def sums(ch: Channel[Checked, int]) -> None:
        await anext(ch)

    async with pair(bus) as client, client.subscribe("news", returns=Checked) as typed_news, client.subscribe("news") as news:
        with pytest.raises(BadRequest, match="KeyError") as caught:
            await client.request("typed", {"number": 1})
        assert "secret" not in str(caught.value)
        with pytest.raises(BadReply):
            await client.request("plain", returns=Checked)
        await bus.publish("news", {"number": 1})
        assert (await anext(news)).body == {"number": 1}
        with pytest.raises(TimeoutError):
            await typed_news.receive(0.01)
        assert typed_news.skipped == 1
        with pytest.raises(BadRequest):
            async with client.channel("sums") as channel:
                await channel.send({"number": 1})
                await anext(channel)


async def test_a_type_that_names_what_is_not_known_is_the_mistake_of_its_handler(caplog: pytest.LogCaptureFixture) -> None:
    @dataclasses.dataclass
    class Local:
        nobody: "Nobody"  # type: ignore[name-defined]  # noqa: F821

    bus = Bus()

    @bus.handle("takes")
    async def takes(body: Local) -> None: ...

    async with pair(bus) as client:
        with pytest.raises(RemoteError, match="INTERNAL"):
            await client.request("takes", {"nobody": 1})
    assert "name 'Nobody' is not defined" in caplog.text


def test_a_result_may_be_for_type_checkers_alone_where_the_other_annotations_are_no_texts() -> None:
    async def priced(query: int) -> "Decimal": ...  # type: ignore[empty-body]

    bus = Bus()
    bus.handle("price")(priced)
    assert repr(bus) == "<Bus not entered, 1 handler>"
