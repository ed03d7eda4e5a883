"""What may be a handler, and what is told at registration of what may not."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Optional, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from attrs import frozen
from fast_depends import Depends
from fastapi import BackgroundTasks, Cookie, Header, Request, UploadFile

from polybus import BadRequest, Bus, Channel, Context, Kind, Message, Router, Subject
from polybus.fastapi import BusDep
from polybus.sync import BlockingBus
from polybus.testing import pair

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


@frozen
class Query:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def by_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(**kwargs: Any) -> Any:
        return await function(**kwargs)

    return wrapper


def of_a_method_by_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(self: Any, **kwargs: Any) -> Any:
        return await function(self, **kwargs)

    return wrapper


def by_its_own_name(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(anything: Any) -> Any:
        return await function(anything)

    return wrapper


def by_position(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any) -> Any:
        return await function(*args)

    return wrapper


class Decorating:
    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    async def __call__(self, **kwargs: Any) -> Any:
        return await self.function(**kwargs)


# -- what is injected ----------------------------------------------------------------------------------------------------


async def may_be_none(body: int, ctx: Context | None = None, message: Message | None = None) -> Any:
    return [body, ctx is not None and ctx.message is message]


async def optional(body: int, ctx: Optional[Context], message: Optional[Message] = None) -> Any:  # noqa: UP045  # as people write it
    return await may_be_none(body, ctx, message)


async def annotated(body: int, ctx: Annotated[Context, "of the request"], message: Annotated[Message, 1]) -> Any:
    return await may_be_none(body, ctx, message)


async def as_text(body: int, ctx: "Context", message: "Message | None" = None) -> Any:  # noqa: UP037  # as people write it
    return await may_be_none(body, ctx, message)


async def by_keyword(*, ctx: Context, body: int, message: Message) -> Any:
    return await may_be_none(body, ctx, message)


@pytest.mark.parametrize(
    "function", [may_be_none, optional, annotated, as_text, by_keyword], ids=lambda function: function.__name__
)
async def test_what_is_injected_may_be_annotated_in_many_ways(function: Any) -> None:
    bus = Bus()
    bus.handle("x")(function)
    async with pair(bus) as client:
        assert await client.request("x", 7) == [7, True]


async def test_a_channel_may_be_annotated_in_many_ways() -> None:
    bus = Bus()

    @bus.handle("x")
    async def double(ch: Annotated[Channel[int, int], "both ways"] | None) -> None:
        assert ch is not None
        async for item in ch:
            await ch.send(2 * item)

    async with pair(bus) as client, client.channel("x") as channel:
        await channel.send(4)
        assert await anext(channel) == 8


@pytest.mark.parametrize(
    ("kind", "fits", "misfits"),
    [
        (Annotated[int, msgspec.Meta(gt=0)], [1], 0),
        (Literal["red", "green"] | None, ["red", None], "blue"),
        (int | list[str], [1, ["a"]], {}),
        (Page[Query], [{"items": [{"id": 7}]}], {"items": [1]}),
        (list[Model] | None, [[{"id": 7}, {"id": 8}], None], [1]),
    ],
)
async def test_what_annotations_demand_of_a_body_is_checked(kind: Any, fits: list[Any], misfits: Any) -> None:
    bus = Bus()

    async def same(body: Any) -> Any:
        assert body is None or not isinstance(kind, type) or isinstance(body, kind)
        return body

    same.__annotations__["body"] = kind
    bus.handle("same")(same)
    async with pair(bus) as client:
        for body in fits:
            assert await client.request("same", body) == body
        with pytest.raises(BadRequest):
            await client.request("same", misfits)


async def test_bodies_within_generic_ones_are_objects_of_their_classes() -> None:
    bus = Bus()

    @bus.handle("generic")
    async def generic(body: Page[Query]) -> Any:
        return body.items[0].id

    @bus.handle("models")
    async def models(body: list[Model] | None) -> Any:
        return None if body is None else [item.id for item in body]

    async with pair(bus) as client:
        assert await client.request("generic", {"items": [{"id": 7}]}) == 7
        assert await client.request("models", [{"id": 7}, Model(id=8)]) == [7, 8]
        assert await client.request("models") is None


async def test_tokens_of_the_subject_are_converted_to_what_is_annotated() -> None:
    bus, heard = Bus(), []

    @bus.on("{flag}.{number}.{colour}.{maybe}", inline=True)
    def on_tokens(flag: bool, number: float, colour: Literal["red"], maybe: int | None) -> None:
        heard.append((flag, number, colour, maybe))

    async with bus:
        await bus.publish("true.7.red.8")
        await bus.publish("true.7.blue.8")
        await bus.publish("false.seven.red.8")
        await bus.publish("0.1e3.red.null")
        await bus.drain()
        assert bus.stats().dropped == 2
    assert heard == [(True, 7.0, "red", 8), (False, 1000.0, "red", None)]


async def test_a_handler_without_a_body_ignores_one() -> None:
    bus = Bus()

    @bus.handle("x")
    async def nothing_wanted() -> str:
        return "done"

    async with pair(bus) as client:
        assert await client.request("x", {"some": "thing"}) == "done"


# -- what may be a handler -----------------------------------------------------------------------------------------------


class Service:
    def __init__(self, step: int) -> None:
        self.step = step

    async def bound(self, body: int) -> int:
        return body + self.step

    @classmethod
    async def of_class(cls, body: int) -> int:
        return body + 10

    @staticmethod
    async def of_nobody(body: int) -> int:
        return body + 20

    async def __call__(self, body: int) -> int:
        return body + 2 * self.step


async def add(amount: int, body: int, ctx: Context) -> int:
    assert isinstance(ctx, Context)
    return amount + body


@plainly
async def behind_a_wrapper(body: int, ctx: Context) -> int:
    assert type(ctx) is Context
    return body + 40


def gives_a_coroutine(body: int) -> Any:
    return add(50, body, Context(Bus(), Message(Kind.REQUEST)))


@pytest.mark.parametrize(
    ("function", "gives"),
    [
        pytest.param(Service(1).bound, 2, id="bound method"),
        pytest.param(Service.of_class, 11, id="class method"),
        pytest.param(Service.of_nobody, 21, id="static method"),
        pytest.param(Service.__dict__["of_nobody"], 21, id="static method inside of its class"),
        pytest.param(Service(1), 3, id="object"),
        pytest.param(functools.partial(add, 30), 31, id="partial"),
        pytest.param(functools.partial(add, amount=30), 31, id="partial by name"),
        pytest.param(functools.partial(functools.partial(add, amount=30)), 31, id="partial of a partial"),
        pytest.param(behind_a_wrapper, 41, id="coroutine function behind a plain decorator"),
        pytest.param(gives_a_coroutine, 51, id="plain function that returns a coroutine"),
        pytest.param(lambda body: gives_a_coroutine(body), 51, id="lambda that returns a coroutine"),
    ],
)
async def test_whatever_can_be_called_with_a_body_may_be_a_handler(function: Any, gives: int) -> None:
    for inline in (False, True):
        bus = Bus()
        assert bus.handle("x", inline=inline)(function) == function
        async with pair(bus) as client:
            assert await client.request("x", 1) == gives


class Decorated:
    @of_a_method_by_keywords
    async def method(self, body: int) -> int:
        return body


@pytest.mark.parametrize(
    "decorate",
    [
        by_keywords,
        by_its_own_name,
        by_position,
        Decorating,
        lambda function: plainly(by_keywords(function)),
        lambda function: by_keywords(plainly(function)),
        lambda function: functools.partial(by_keywords(function)),
        lambda function: Decorated().method,
    ],
)
async def test_a_decorator_lets_the_body_through_by_name_or_by_position(decorate: Callable[[Any], Any]) -> None:
    async def one(body: int) -> int:
        return body

    bus = Bus()
    bus.handle("x")(decorate(one))
    async with pair(bus) as client:
        assert await client.request("x", 7) == 7


@pytest.mark.parametrize("decorate", [by_its_own_name, by_position, lambda function: by_keywords(by_position(function))])
def test_a_decorator_that_lets_the_arguments_not_through_is_a_type_error(decorate: Callable[[Any], Any]) -> None:
    async def handler(body: int, ctx: Context) -> None: ...

    async def provider(ctx: Context) -> int:
        return 7

    async def asks(number: int = Depends(decorate(provider))) -> None: ...

    with pytest.raises(
        TypeError, match=r"handler: a decorator around it .* body, ctx: let its wrapper take \*args and \*\*kwargs"
    ):
        Bus().handle("x")(decorate(handler))
    with pytest.raises(TypeError, match=r"provider, which it depends on,: a decorator"):
        Bus().handle("y")(asks)


async def generator(body: int) -> AsyncIterator[int]:
    for item in range(body):
        yield item


def returns_it(body: int) -> AsyncIterator[int]:
    return generator(body)


async def returns_it_later(body: int) -> AsyncGenerator[int, None]:
    return generator(body)  # type: ignore[return-value]


def will_return_it(body: int) -> Awaitable[AsyncIterator[int]]:
    return returns_it_later(body)


class Countdown:
    """An async iterator that is no generator, and has no `aclose`."""

    def __init__(self, body: int) -> None:
        self.left = body

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return self.left


def counts_down(body: int) -> AsyncIterator[int]:
    return Countdown(body)


@pytest.mark.parametrize(
    ("function", "gives"),
    [
        (generator, [0, 1, 2]),
        (plainly(generator), [0, 1, 2]),
        (functools.partial(generator), [0, 1, 2]),
        (returns_it, [0, 1, 2]),
        (returns_it_later, [0, 1, 2]),
        (will_return_it, [0, 1, 2]),
        (counts_down, [2, 1, 0]),
    ],
)
async def test_whatever_gives_an_async_iterator_answers_a_stream(function: Any, gives: list[int]) -> None:
    bus = Bus()
    bus.handle("x")(function)
    async with pair(bus) as client:
        for asker in (client, bus):
            async with asker.stream("x", 3) as items:
                assert [item async for item in items] == gives
            with pytest.raises(BadRequest):
                await asker.request("x", 3)


async def test_a_stream_handler_that_returns_something_else_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()

    @bus.handle("x")
    def broken() -> AsyncIterator[int]:
        return [1, 2]  # type: ignore[return-value]

    async with pair(bus) as client:
        with pytest.raises(Exception, match="INTERNAL"):
            async with client.stream("x") as items:
                await anext(items)
    assert "broken must return an async iterator, not list" in caplog.text


# -- what generic classes leave to those that inherit from them ---------------------------------------------------------


R = TypeVar("R")
M = TypeVar("M", bound=Model)
Key = TypeVar("Key", int, bool)


def kept(row: Any) -> R:  # type: ignore[type-var]
    assert isinstance(row, (Query, Model))
    return LargerModel(id=row.id)  # type: ignore[return-value]


class Rows(Generic[T, R]):
    """Handlers for rows of any kind: each gives the one that it was given, as it is."""

    async def one(self, row: T) -> R:
        return kept(row)

    async def many(self, rows: list[T]) -> list[R]:
        return list(map(kept, rows))

    async def each(self, rows: dict[str, T]) -> AsyncIterator[R]:
        for row in rows.values():
            yield kept(row)

    async def talk(self, ch: Channel[T, R]) -> None:
        async for row in ch:
            await ch.send(kept(row))

    @plainly
    async def decorated(self, ctx: Context, row: T | None) -> R:
        return kept(row)

    @classmethod
    async def of_class(cls, row: T) -> R:
        return kept(row)

    async def __call__(self, row: T) -> R:
        return kept(row)


class LargerModel(Model):
    secret: str = "secret"


class Queries(Rows[Query, R]): ...


class Models(Queries[Model]): ...


GENERIC: list[tuple[Callable[[Any], Any], str]] = [
    (lambda rows: rows.one, "request"),
    (lambda rows: rows.many, "list"),
    (lambda rows: rows.each, "stream"),
    (lambda rows: rows.talk, "channel"),
    (lambda rows: rows.decorated, "request"),
    (lambda rows: plainly(rows.one), "request"),
    (lambda rows: functools.partial(rows.one), "request"),
    (lambda rows: rows, "request"),
]


@pytest.mark.parametrize(("method", "verb"), GENERIC)
@pytest.mark.parametrize("make", [Models, lambda: Rows[Query, Model]()], ids=["inherits", "with arguments"])
async def test_a_variable_is_what_the_class_says(make: Callable[[], Any], method: Callable[[Any], Any], verb: str) -> None:
    bus = Bus(check_answers=True)
    bus.handle("x")(method(make()))
    row = {"id": 7}
    async with pair(bus) as client:
        if verb == "request":
            assert await client.request("x", row) == row
        elif verb == "list":
            assert await client.request("x", [row]) == [row]
        elif verb == "stream":
            async with client.stream("x", {"a": row}) as items:
                assert [item async for item in items] == [row]
        else:
            async with client.channel("x") as channel:
                await channel.send(row)
                assert await channel.receive() == row
        if verb == "request":
            with pytest.raises(BadRequest):
                await client.request("x", {"id": "seven"})


@pytest.mark.parametrize(("method", "verb"), GENERIC)
def test_what_is_left_open_is_a_type_error(method: Callable[[Any], Any], verb: str) -> None:
    for rows in (Rows(), Queries()):  # type: ignore[var-annotated]
        with pytest.raises(TypeError, match=r"does not define ~[TR]: .* as in `class Users\(Rows\[User\]\)`"):
            Bus().handle("x")(method(rows))


async def test_what_is_left_open_is_as_the_subject_says_or_as_the_variable_itself() -> None:
    bus = Bus(check_answers=True)
    bus.handle(Subject("by.subject", Query, Model))(Rows().one)
    bus.handle("by.class")(Models.of_class)

    @bus.handle("by.bound")
    async def by_bound(rows: list[M]) -> M:
        assert isinstance(rows[0], Model)
        return LargerModel(id=rows[0].id)  # type: ignore[return-value]

    @bus.handle("by.constraint")
    async def by_constraint(number: Key) -> Key:
        return number

    async with pair(bus) as client:
        assert await client.request("by.subject", {"id": 7}) == {"id": 7}
        assert await client.request("by.class", {"id": 7}) == {"id": 7}
        assert await client.request("by.bound", [{"id": 7}]) == {"id": 7}
        assert await client.request("by.constraint", 7) == 7
        with pytest.raises(BadRequest):
            await client.request("by.constraint", "seven")


# -- what is told at registration ----------------------------------------------------------------------------------------


async def unknown_result(body: int) -> Decimal:
    return body  # type: ignore[return-value]


async def unknown_items(body: int) -> AsyncIterator[Decimal]:
    return generator(body)  # type: ignore[return-value]


def plain_generator(body: int) -> Iterator[int]:
    yield body


async def generator_with_channel(ch: Channel[int, int]) -> AsyncIterator[int]:
    yield 1


async def unknown_type(body: Decimal) -> None: ...
async def unknown_inside(ctx: Context, body: dict[str, Decimal]) -> None: ...
def plain_talk(ch: Channel[int, int]) -> None: ...
async def one_of_two(what: Context | Message) -> None: ...
async def body_or_context(body: dict[str, int] | Context) -> None: ...
async def impossible(body: list[Callable[[], int]]) -> None: ...
async def typed_message(message: Message[Query]) -> None: ...
async def two_bodies(first: int, second: int) -> None: ...
async def many(*values: int) -> None: ...
async def named(**values: int) -> None: ...
async def positional(body: int, /) -> None: ...
async def with_header(body: int, token: Annotated[str, Header()]) -> None: ...
async def with_cookie(limit: Annotated[int, Cookie()], body: int) -> None: ...
async def with_request(body: int, request: Request) -> None: ...
async def with_later(later: BackgroundTasks) -> None: ...
async def with_file(file: UploadFile) -> None: ...
async def with_bus(body: int, bus: BusDep) -> None: ...
def in_a_thread(n: int, bus: Bus) -> None: ...
async def on_the_loop(n: int, bus: BlockingBus) -> None: ...


class Unbound:
    async def method(self, body: int) -> None: ...
    async def lonely(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (unknown_type, r"unknown_type.*'body'.*'Decimal'.*TYPE_CHECKING"),
        (unknown_inside, r"unknown_inside.*'body'.*'Decimal'.*TYPE_CHECKING"),
        (plain_generator, r"plain_generator.*async def"),
        (plainly(plain_generator), r"plain_generator.*async def"),
        (plain_talk, r"plain_talk.*async def"),
        (generator_with_channel, r"generator_with_channel.*Channel"),
        (one_of_two, r"one_of_two.*'what'"),
        (body_or_context, r"body_or_context.*'body'"),
        (impossible, r"impossible.*'body'"),
        (typed_message, "'message'.*plain Message"),
        (two_bodies, "two_bodies: both 'first' and 'second' could be the body; put them into one class"),
        (with_header, r"with_header: 'token' is not the body: Header exists only in HTTP: .* ctx\.message\.headers"),
        (with_cookie, "with_cookie: 'limit' is not the body: Cookie exists only in HTTP"),
        (with_request, "with_request: 'request' is not the body: Request exists only in HTTP: .* Context"),
        (with_later, "with_later: 'later' is not the body: BackgroundTasks exists only in HTTP"),
        (with_file, "with_file: 'file' is not the body: UploadFile exists only in HTTP"),
        (with_bus, r"with_bus: BusDep is for endpoints: annotate with polybus\.Bus, in a def handler with polybus\.sync\.Bl"),
        (in_a_thread, r"in_a_thread runs in a thread: annotate 'bus' with polybus\.sync\.BlockingBus"),
        (on_the_loop, r"on_the_loop runs on the event loop: annotate 'bus' with polybus\.Bus"),
        (many, "many"),
        (named, "named"),
        (positional, "positional"),
        (Unbound.method, r"Unbound.method.*bound"),
        (Unbound.lonely, r"Unbound.lonely.*bound"),
        (Service.__dict__["of_class"], r"of_class.*classmethod"),
        (dict, r"dict"),
        (len, r"len.*positional-only"),
        (print, r"print.*\*args"),
        (7, "7 is not callable"),
    ],
)
def test_what_cannot_be_a_handler_is_a_type_error_that_names_it_and_the_remedy(function: Any, says: str) -> None:
    for register in (Bus().handle("x"), Router().handle("x"), Bus().on("x")):
        with pytest.raises(TypeError, match=says):
            register(function)


async def test_the_type_of_a_result_need_not_be_known_at_run_time() -> None:
    bus = Bus()
    bus.handle("one")(unknown_result)
    bus.handle("many")(unknown_items)
    async with pair(bus) as client:
        assert await client.request("one", 7) == 7
        async with client.stream("many", 2) as items:
            assert [item async for item in items] == [0, 1]


async def test_a_class_that_says_no_module_is_one_all_the_same() -> None:
    made = attrs.make_class("Made", {"number": attrs.field(type=int)})
    made.__module__ = None  # type: ignore[assignment]  # as of messages of protobuf

    async def take(body: Any) -> Any:
        return body.number

    take.__annotations__["body"] = made
    bus = Bus()
    bus.handle("take")(take)
    async with pair(bus) as client:
        assert await client.request("take", {"number": 7}) == 7
