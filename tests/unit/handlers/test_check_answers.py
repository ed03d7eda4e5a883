"""What handlers return, and what is published to a `Subject`, is validated by its type where the bus wants that."""

from __future__ import annotations

import asyncio
from collections import Counter, UserList, deque
from collections.abc import AsyncIterator, Awaitable, Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypedDict

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field, Json, computed_field, field_serializer, field_validator, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from polybus import Bus, CallNext, Channel, Context, EncodeError, Message, RemoteError, Router, Subject
from polybus.testing import pair


class Model(BaseModel):
    user_name: str = Field(alias="userName", min_length=1)


class LargerModel(Model):
    password: str = "secret"


@dataclass
class Plain:
    name: str


@dataclass
class LargerPlain(Plain):
    password: str = "secret"


@attrs.define
class Attrs:
    name: str


@attrs.define
class LargerAttrs(Attrs):
    password: str = "secret"


class Struct(msgspec.Struct, rename="camel"):
    user_name: str


class LargerStruct(Struct, rename="camel"):
    password: str = "secret"


class Typed(TypedDict):
    name: str


class Named(NamedTuple):
    name: str
    number: int


class OneWay(BaseModel, extra="forbid", strict=True):
    """It does not read what it writes, and makes something of what it reads."""

    at: datetime
    number: int = Field(serialization_alias="no")
    hidden: str = Field(exclude=True)
    words: Json[list[str]]

    @computed_field
    def twice(self) -> int:
        return self.number * 2

    @field_serializer("at")
    def _in_words(self, at: datetime) -> str:
        return f"{at:%B %Y}"

    @field_validator("number")
    @classmethod
    def _one_more(cls, number: int) -> int:
        return number + 1


class LargerOneWay(OneWay):
    password: str = "secret"


class Counted(BaseModel):
    number: int

    @model_validator(mode="after")
    def _one_more(self) -> Counted:
        self.number += 1
        return self


@pydantic_dataclass
class OfPydantic:
    model: Model
    number: Annotated[int, Field(gt=0)] = 1


@pydantic_dataclass
class LargerOfPydantic(OfPydantic):
    password: str = "secret"


@dataclass
class Holding:
    models: list[OneWay]


@attrs.define
class HoldingChecked:
    model: Model = attrs.field(validator=attrs.validators.instance_of(Model))


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class LargerCat(Cat):
    password: str = "secret"


class OfKind(BaseModel):
    kind: Literal["dog"]


class Tagged(msgspec.Struct, tag="tagged", omit_defaults=True):
    model: Model
    number: int | msgspec.UnsetType = msgspec.UNSET


@dataclass
class Placed:
    path: Path
    later: deque[Plain]


@dataclass
class LargerPlaced(Placed):
    password: str = "secret"


class Row:
    """As an object of a database: its fields are attributes alone."""

    name = "ann"
    password = "secret"


class Nameless:
    """It has nothing that is asked for."""


WAY = LargerOneWay(at=datetime(2026, 1, 2), number=6, hidden="secret", words='["a"]')  # type: ignore[arg-type]
WAY_WRITTEN = {"at": "January 2026", "no": 7, "twice": 14, "words": ["a"]}
MODEL, MODEL_WRITTEN = LargerModel(userName="ann"), {"userName": "ann"}
WHOLE = {"name": "ann", "password": "secret"}
NAME = {"name": "ann"}
# What a handler returns, its annotation, and what the client is sent.
ANSWERS: list[tuple[Any, Any, Any]] = [
    (LargerModel(userName="ann"), Model, {"userName": "ann"}),
    ({"userName": "ann", "password": "secret"}, Model, {"userName": "ann"}),
    ([LargerModel(userName="ann")], list[Model], [{"userName": "ann"}]),
    (Model.model_construct(user_name=""), Model, {"userName": ""}),  # it has been made, and is not validated again
    (WAY, OneWay, WAY_WRITTEN),
    ({"a": [WAY, None]}, dict[str, list[OneWay | None]], {"a": [WAY_WRITTEN, None]}),
    (Counted(number=1), Counted, {"number": 2}),
    (LargerCat(), Cat | LargerCat, {"kind": "cat", "password": "secret"}),
    (Holding([WAY]), Holding, {"models": [WAY_WRITTEN]}),
    ({"models": [WAY]}, Holding, {"models": [WAY_WRITTEN]}),
    (OfPydantic(MODEL), OfPydantic, {"model": MODEL_WRITTEN, "number": 1}),
    (OfPydantic(MODEL), OfPydantic | OneWay, {"model": MODEL_WRITTEN, "number": 1}),
    (HoldingChecked(MODEL), HoldingChecked, {"model": MODEL_WRITTEN}),
    (Tagged(MODEL), Tagged, {"type": "tagged", "model": MODEL_WRITTEN}),
    (LargerCat(), Annotated[Cat | OfKind, Field(discriminator="kind")], {"kind": "cat"}),
    (LargerPlain("ann"), Plain, NAME),
    (Row(), Plain, NAME),
    ({"a": LargerPlain("ann")}, dict[str, Plain], {"a": NAME}),
    (LargerPlaced(Path("/a"), deque([LargerPlain("ann")])), Placed, {"path": "/a", "later": [NAME]}),
    (Counter("a"), Counter[str], {"a": 1}),
    ([LargerPlain("ann")], Iterable[Plain], [NAME]),
    ((LargerModel(userName="ann"),), Collection[Model] | None, [MODEL_WRITTEN]),
    ({"a": LargerOfPydantic(MODEL)}.values(), list[OfPydantic], [{"model": MODEL_WRITTEN, "number": 1}]),
    (UserList([LargerOfPydantic(MODEL)]), Iterable[OfPydantic], [{"model": MODEL_WRITTEN, "number": 1}]),
    (LargerAttrs("ann"), Attrs, NAME),
    (Row(), Attrs, NAME),
    (LargerStruct("ann"), Struct, {"userName": "ann"}),
    (WHOLE, Typed, NAME),
    (Named("ann", 7), Named, ["ann", 7]),
    (LargerPlain("ann"), Plain | None, NAME),
    (None, Plain | None, None),
    (LargerPlain("ann"), Any, WHOLE),
    (LargerPlain("ann"), object, WHOLE),
    ({"at": datetime(2026, 1, 2), "left": LargerPlain("ann")}, dict[str, Any], {"at": "2026-01-02T00:00:00", "left": WHOLE}),
    (7, float, 7.0),
    (7, Annotated[int, Field(gt=0)], 7),
    (b"x", bytes, "eA=="),
]
MISFITS: list[tuple[Any, Any]] = [
    ("text", int),
    (None, Model),
    ({"b": 1}, Model),
    (OfPydantic.__new__(OfPydantic), OfPydantic),
    (Plain(7), Plain),  # type: ignore[arg-type]
    (Nameless(), Plain),
    (Nameless(), Model),
    (7, None),
    (7, Path),
    (-7, Annotated[int, Field(gt=0)]),
    ([1, "2"], list[int]),
    (Named("ann", "7"), Named),  # type: ignore[arg-type]
    ("text", Row),
]


def answering(value: Any, annotation: Any, promised: Any = Any, **options: Any) -> Bus:
    bus = Bus(**options)

    async def answer() -> Any:
        return value

    def in_a_thread() -> Any:
        return value

    async def items() -> AsyncIterator[Any]:
        yield value

    async def talk(channel: Any) -> None:
        await channel.send(value)

    answer.__annotations__["return"] = in_a_thread.__annotations__["return"] = annotation
    items.__annotations__["return"] = AsyncIterator[annotation]
    talk.__annotations__["channel"] = Channel[int, annotation]
    handlers: dict[str, Any] = {"async": answer, "thread": in_a_thread, "stream": items, "channel": talk}
    for subject, handler in handlers.items():
        bus.handle(Subject(subject, Any, promised))(handler)
    return bus


async def answers(client: Bus) -> list[Any]:
    """What each kind of handler answers; the error in its place."""
    found: list[Any] = []
    for subject in ("async", "thread"):
        try:
            found.append(await client.request(subject))
        except RemoteError as error:
            found.append(error)
    for opened in (client.stream("stream"), client.channel("channel")):
        try:
            async with opened as items:
                found += [item async for item in items]
        except RemoteError as error:
            found.append(error)
    return found


@pytest.mark.parametrize(("value", "annotation", "sent"), ANSWERS)
async def test_a_larger_object_is_sent_as_what_the_annotation_says(value: Any, annotation: Any, sent: Any) -> None:
    async with pair(answering(value, annotation, check_answers=True)) as client:
        assert await answers(client) == [sent] * 4


@pytest.mark.parametrize(("value", "annotation"), MISFITS)
async def test_a_misfit_is_the_mistake_of_its_handler(value: Any, annotation: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(bus := answering(value, annotation)) as client:
        for error in await answers(client):
            assert isinstance(error, RemoteError)
            assert "annotation" not in str(error)
        assert bus.stats().failed == 4
    assert caplog.text.count(", but its annotation says ") >= 4


# What a handler returns, its annotation, what its Subject or contract promises, and what the client is sent.
PROMISES: list[tuple[Any, Any, Any, Any]] = [
    (LargerPlain("ann"), LargerPlain, Plain, NAME),
    (LargerPlain("ann"), LargerPlain, Plain | None, NAME),
    (LargerPlain("ann"), Plain, Plain | None, NAME),
    (LargerPlain("ann"), Plain, object, NAME),
    (LargerPlain("ann"), Any, Plain, NAME),
    ([LargerPlain("ann")], list[Plain], list, [NAME]),
    ([LargerAttrs("ann")], list[LargerAttrs], list[Attrs], [NAME]),
    (LargerStruct("ann"), LargerStruct, Struct, {"userName": "ann"}),
    (LargerModel(userName="ann"), LargerModel, Model, {"userName": "ann"}),
    (LargerCat(), Cat, Cat | LargerCat, {"kind": "cat"}),
    (7, int, float, 7.0),
]


@pytest.mark.parametrize(("value", "annotation", "promised", "sent"), PROMISES)
async def test_a_promise_decides_where_the_function_says_more(value: Any, annotation: Any, promised: Any, sent: Any) -> None:
    class Contract(Protocol):
        async def request(self) -> promised: ...
        def items(self) -> AsyncIterator[promised]: ...

    class Implementation:
        async def request(self) -> Any:
            return value

        async def items(self) -> AsyncIterator[Any]:
            yield value

    of: Any = AsyncIterator
    Contract.request.__annotations__["return"], Contract.items.__annotations__["return"] = promised, of[promised]
    Implementation.request.__annotations__["return"] = annotation
    Implementation.items.__annotations__["return"] = of[annotation]
    bus = answering(value, annotation, promised, check_answers=True)
    bus.implement(Contract, Implementation(), "contract")
    async with pair(bus) as client:
        assert await answers(client) == [sent] * 4
        assert await client.request("contract.request") == sent
        async with client.stream("contract.items") as items:
            assert [item async for item in items] == [sent]


async def test_an_answer_that_its_promise_does_not_have_names_the_subject(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(answering(None, Plain | None, Plain | None, check_answers=True)) as client:
        assert await answers(client) == [None] * 4
    async with pair(answering(7, int, Annotated[int, Field(gt=9)], check_answers=True)) as client:
        assert all(isinstance(one, RemoteError) for one in await answers(client))
    assert "answer returned 7, but its subject says " in caplog.text


async def returned() -> Any:
    return LargerPlain("ann")


@pytest.mark.parametrize(
    "annotation", [Awaitable[Plain], Coroutine[Any, Any, Plain], asyncio.Task[Plain], Plain | Awaitable[Plain]]
)
@pytest.mark.parametrize("inline", [True, False])
async def test_what_a_plain_function_gives_to_be_awaited_is_checked(annotation: Any, inline: bool) -> None:
    bus = Bus(check_answers=True)

    def later() -> Any:
        return returned()

    later.__annotations__["return"] = annotation
    for name in ("later", Subject("typed", Any, Plain)):
        bus.handle(name, inline=inline)(later)
    async with pair(bus) as client:
        assert await client.request("later") == await client.request("typed") == NAME


UNCHECKABLE: list[Any] = [
    *("Nowhere", "list[Nowhere]", "Awaitable[Nowhere]", "Message[Nowhere]"),
    *(Message[Plain], Attrs | Plain, Iterator[Plain], dict[str, int] | Plain | Path),
]


@pytest.mark.parametrize("annotation", UNCHECKABLE)
def test_answers_that_cannot_be_checked_are_an_error_where_they_shall_be(annotation: Any) -> None:
    async def answer() -> Any: ...
    async def items() -> AsyncIterator[Any]:
        yield 7

    answer.__annotations__["return"] = annotation
    many: Any = AsyncIterator
    items.__annotations__["return"] = f"AsyncIterator[{annotation}]" if isinstance(annotation, str) else many[annotation]
    for function in (answer, items):
        says = f"{function.__name__}: its answers cannot be checked: "
        unchecked, router = Bus(), Router(prefix="a.")
        for registered in (unchecked, router):
            registered.handle("b")(function)
        for check in (True, "validate"):
            bus = Bus(check_answers=check)
            with pytest.raises(TypeError, match=says):
                bus.handle("b")(function)
            with pytest.raises(TypeError, match=says):
                bus.include(router)
            bus.handle("b")(returned)
        with pytest.raises(TypeError, match=says):
            unchecked.check_answers = True
        assert unchecked.check_answers is None


async def test_where_the_annotation_does_not_resolve_a_promise_is_kept_and_pair_tells_that_it_cannot_validate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer() -> Any:
        return LargerPlain("ann")

    answer.__annotations__["return"] = "Nowhere"
    checking, bus = Bus(check_answers=True), Bus()
    checking.handle(Subject("typed", Any, Plain))(answer)
    async with pair(checking) as client:
        assert await client.request("typed") == NAME
    bus.handle("a")(answer)
    async with pair(bus) as client:
        assert await client.request("a") == WHOLE
    assert caplog.text.count("answer are not validated: the annotation 'Nowhere' does not resolve") == 1


async def test_the_bus_itself_is_sent_what_the_annotation_says() -> None:
    async with answering(LargerPlain("ann"), Plain, check_answers=True) as bus:
        assert await bus.request("async") == NAME
    async with answering("text", int, check_answers=True) as bus:
        with pytest.raises(RemoteError):
            await bus.request("async")


async def test_answers_are_checked_under_pair_unless_the_bus_says_otherwise() -> None:
    async with pair(bus := answering("text", int)) as client:
        assert isinstance((await answers(client))[0], RemoteError)
    assert bus.check_answers is None
    with pytest.raises(TypeError, match="check_answers='yes' must be True, False or 'validate'"):
        answering("text", int, check_answers="yes")
    async with pair(answering(LargerPlain("ann"), Plain)) as client:  # as a bus sends it that checks nothing
        assert await answers(client) == [WHOLE] * 4
    async with pair(answering("text", int, check_answers=False)) as client:
        assert await answers(client) == ["text"] * 4


async def test_a_middleware_is_given_the_checked_answer_and_may_make_another_of_it() -> None:
    bus = answering(LargerPlain("ann"), Plain, check_answers=True)

    @bus.use
    async def envelope(message: Message, ctx: Context, call_next: CallNext) -> Any:
        return {"of": await call_next(message)}

    async with pair(bus) as client:
        for subject in ("async", "thread"):
            assert await client.request(subject) == {"of": NAME}


async def test_a_publication_is_checked_by_the_type_of_its_subject() -> None:
    news = Subject("news", Plain)
    wrong: Any = "text"
    async with pair(Bus(), client=Bus()) as client, client.subscribe("news") as heard:
        await client.publish(news, LargerPlain("ann"))
        assert (await heard.receive(5)).body == WHOLE
        client.check_answers = True
        await client.publish(news, LargerPlain("ann"))
        client.publish_nowait(news, LargerPlain("ann"))
        for _ in range(2):
            assert (await heard.receive(5)).body == NAME
        with pytest.raises(EncodeError, match="'news', which is declared with .*Plain"):
            client.publish_nowait(news, wrong)
        for one in (client, client.peers[0]):
            with pytest.raises(EncodeError, match="'news', which is declared with .*Plain"):
                await one.publish(news, wrong)
        with pytest.raises(EncodeError, match="'either' cannot be validated as .*: which class of "):
            await client.publish(Subject("either", Attrs | Plain), LargerPlain("ann"))
        client.check_answers = False
        await client.publish(news, wrong)
        assert (await heard.receive(5)).body == "text"
