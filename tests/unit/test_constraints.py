"""What pydantic and annotated-types say of a type holds wherever a type may stand; what cannot hold is told at registration."""

import dataclasses
import datetime
import ipaddress
import pathlib
import subprocess
import sys
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Reversible,
    Sequence,
)
from types import GenericAlias
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Protocol, TypedDict, TypeVar

import annotated_types
import attrs
import msgspec
import pydantic
import pytest
from fastapi import Body, Depends, Header, Path
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PositiveInt, StringConstraints, WrapValidator
from typing_extensions import TypeAliasType

from polybus import BadReply, BadRequest, Bus, Channel, Subject
from polybus._util.typed_body import convert, unreadable
from polybus.body import JSON
from polybus.testing import pair
from tests.support import eventually

T = TypeVar("T")


def _not_negative(value: int) -> int:
    if value < 0:
        raise ValueError("negative")
    return value


def _wrapped(value: Any, check: Callable[[Any], int]) -> int:
    return _not_negative(check(value))


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    age: PositiveInt


UserId = NewType("UserId", PositiveInt)
Ages = TypeAliasType("Ages", list[PositiveInt])

WORDS: dict[str, tuple[Any, Any, Any]] = {
    "Field": (Annotated[int, Field(gt=0)], 1, -1),
    "Body of FastAPI": (Annotated[int, Body(gt=0)], 1, -1),
    "PositiveInt": (PositiveInt, 1, -1),
    "conint": (pydantic.conint(gt=0), 1, -1),
    "constr": (pydantic.constr(max_length=1), "a", "ab"),
    "StringConstraints": (Annotated[str, StringConstraints(pattern="^a$")], "a", "b"),
    "AfterValidator": (Annotated[int, AfterValidator(_not_negative)], 1, -1),
    "BeforeValidator": (Annotated[int, BeforeValidator(_not_negative)], 1, -1),
    "WrapValidator": (Annotated[int, WrapValidator(_wrapped)], 1, -1),
    "Gt": (Annotated[int, annotated_types.Gt(0)], 1, -1),
    "Len": (Annotated[list[int], annotated_types.Len(0, 1)], [1], [1, 2]),
    "max_length": (Annotated[list[int], Field(max_length=1)], [1], [1, 2]),
    "Predicate": (annotated_types.LowerCase[str], "a", "A"),
    "Literal | PositiveInt": (Literal["a"] | PositiveInt, "a", -1),
    "PositiveInt | None": (PositiveInt | None, None, -1),
    "list": (list[PositiveInt], [1], [-1]),
    "dict": (dict[str, PositiveInt], {"a": 1}, {"a": -1}),
    "keys": (dict[PositiveInt, bytes], {1: b"\xff"}, {"-1": ""}),
    "tuple": (tuple[PositiveInt, bytes], (1, b"\xff"), [-1, ""]),
    "Sequence": (Sequence[PositiveInt], [1], [-1]),
    "Iterable": (Iterable[PositiveInt], [1], [-1]),
    "Iterable of what is not pydantic's": (dict[str, Iterable[int] | None], {"a": [1]}, {"a": ["x"]}),
    "Reversible": (Reversible[int], [1], ["x"]),
    "Container": (Container[int], [1], ["x"]),
    "Collection": (Collection[PositiveInt], [1], [-1]),
    "Mapping": (Mapping[str, PositiveInt], {"a": 1}, {"a": -1}),
    "frozenset": (frozenset[PositiveInt], frozenset({1}), [-1]),
    "NewType": (UserId, 1, -1),
    "TypeAliasType": (Ages, [1], [-1]),
    "alias within": (dict[str, Ages], {"a": [1]}, {"a": [-1]}),
    "a union by discriminator": (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(kind="dog", age=1), {"kind": "dog"}),
    "RootModel": (pydantic.RootModel[list[PositiveInt]], pydantic.RootModel[list[PositiveInt]]([1]), [-1]),
    "deque": (deque[PositiveInt], deque([1]), [-1]),
    "Path": (Annotated[pathlib.Path, Field()], pathlib.Path("a"), 1),
    "IPvAnyAddress": (pydantic.IPvAnyAddress, ipaddress.ip_address("::1"), "a"),
    "AnyUrl": (pydantic.AnyUrl, pydantic.AnyUrl("http://a/"), "a"),
    "AwareDatetime": (pydantic.AwareDatetime, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "2026-01-01T00:00:00"),
}
"""A type, a value of it, and a body that is none."""


@pytest.mark.parametrize("name", WORDS)
def test_every_word_for_a_constraint_counts(name: str) -> None:
    kind, right, wrong = WORDS[name]
    assert unreadable(kind) is None
    assert convert(JSON.decode(JSON.encode(right)), kind) == right
    with pytest.raises(ValueError, match=r"."):
        convert(wrong, kind)


# -- places ----------------------------------------------------------------------------------------------------------------

Positive = Annotated[int, Field(gt=0)]
Refused = type[Exception] | None


class Pays(Protocol):
    async def pay(self, sum: Positive) -> int: ...


class Cashier:
    async def pay(self, sum: int) -> int:
        RAN.append(sum)
        return sum


RAN: list[Any] = []
"""What a handler has been given."""


def counter() -> Bus:
    """Its handlers take and give sums in every place where a type may stand."""
    bus, subject = Bus(), Subject[Any, Any]

    @bus.handle("body")
    async def body(sum: Positive) -> None:
        RAN.append(sum)

    @bus.handle("thread")
    def in_thread(sum: Positive) -> None:
        RAN.append(sum)

    @bus.handle(Subject("subject", Positive, None))
    async def by_subject(sum) -> None:  # type: ignore[no-untyped-def]
        RAN.append(sum)

    @bus.handle(subject("sums", list[Positive], None))
    async def with_a_plain_type(sums: list[int]) -> None:
        RAN.append(sums)

    @bus.handle(subject("more", Positive, None))
    async def with_more(sum: Annotated[int, Field(lt=9)]) -> None:
        RAN.append(sum)

    @bus.handle("channel")
    async def channel(channel: Channel[Positive, int]) -> None:
        RAN.extend([item async for item in channel])

    bus.handle("balance", inline=True)(lambda: -1)

    @bus.handle("stream")
    async def stream() -> AsyncIterator[int]:
        yield -1

    bus.implement(Pays, Cashier(), "till")
    return bus


async def _stream_item(client: Bus) -> None:
    async with client.stream("stream", returns=Positive) as items:
        await anext(items)


async def _channel_item(client: Bus) -> None:
    async with client.channel("channel") as channel:
        await channel.send(-1)
        await anext(channel)


PLACES: dict[str, Callable[[Bus], Awaitable[Any]]] = {
    "body": lambda client: client.request("body", -1),
    "body in a thread": lambda client: client.request("thread", -1),
    "subject alone": lambda client: client.request("subject", -1),
    "subject beside a plain type": lambda client: client.request("sums", [-1]),
    "subject with more in the handler": lambda client: client.request("more", -1),
    "contract": lambda client: client.request("till.pay", -1),
    "answer": lambda client: client.request("balance", returns=Positive),
    "answer by subject": lambda client: client.request(Subject[Any, Any]("balance", None, Positive)),
    "stream item": _stream_item,
    "channel item": _channel_item,
}


@pytest.mark.parametrize("own", [False, True], ids=["over a link", "to itself"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_constraint_holds_wherever_a_type_may_stand(place: str, own: bool) -> None:
    RAN.clear()
    async with pair(bus := counter()) as client:
        with pytest.raises((BadRequest, BadReply), match="greater than 0"):
            await PLACES[place](bus if own else client)
    assert RAN == []


async def test_a_publication_that_breaks_a_constraint_is_skipped() -> None:
    bus, heard = Bus(), list[Any]()

    async def amount(sum: Annotated[int, Path(gt=0)]) -> int:
        return sum

    @bus.on("paid")
    async def paid(sum: Positive) -> None:
        heard.append(("body", sum))

    @bus.on("paid.{sum}")
    async def paid_by_name(sum: Positive) -> None:
        heard.append(("name", sum))

    @bus.on("paid.{sum}")
    async def paid_by_dependency(given: Annotated[int, Depends(amount)]) -> None:
        heard.append(("dependency", given))

    async with pair(bus) as client, bus.subscribe("paid", returns=Positive) as sums:
        for sum in (-1, 2):
            await client.publish("paid", sum)
            await client.publish(f"paid.{sum}")
        assert (await sums.receive()).body == 2
        assert sums.skipped == 1
        await eventually(lambda: len(heard) == 3)
    assert set(heard) == {("body", 2), ("name", 2), ("dependency", 2)}


# -- fields ----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class ByDataclass:
    sum: PositiveInt
    data: bytes = b""
    more: "list[ByDataclass]" = dataclasses.field(default_factory=list)


@attrs.frozen
class ByAttrs:
    sum: Annotated[int, annotated_types.Gt(0)]
    data: bytes = b""
    words: str = attrs.field(default="", validator=attrs.validators.max_len(3))
    more: "tuple[ByAttrs, ...]" = ()


class ByStruct(msgspec.Struct, rename="upper", forbid_unknown_fields=True):
    sum: Annotated[int, Field(gt=0)]
    data: bytes = b""
    most: Annotated[int, msgspec.Meta(lt=9)] | msgspec.UnsetType = msgspec.UNSET


class ByArray(msgspec.Struct, array_like=True, tag="array"):
    sum: PositiveInt
    data: bytes = b""


class ByTuple(NamedTuple):
    sum: PositiveInt
    data: bytes = b""


class ByDict(TypedDict, total=False):
    sum: PositiveInt
    data: bytes


@pydantic.dataclasses.dataclass
class ByPydantic:
    sum: PositiveInt


class ByModel(BaseModel):
    sum: PositiveInt
    within: ByDataclass | None = None


class Tagged(msgspec.Struct, tag=True):
    sum: PositiveInt


class OtherTagged(msgspec.Struct, tag=True):
    sum: PositiveInt


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


@dataclasses.dataclass
class Sums(Page[PositiveInt]):
    pass


class WordsOutside(TypedDict):
    sum: Annotated[NotRequired[int], Field(gt=0)]


class GenericTuple(NamedTuple, Generic[T]):
    items: list[T]


class GenericDict(TypedDict, Generic[T]):
    items: "NotRequired[list[T]]"


class MoreOfDict(GenericDict[PositiveInt]):
    name: str


FIELDS: dict[Any, tuple[Any, Any]] = {
    ByDataclass: (ByDataclass(1, b"\xff", [ByDataclass(2)]), {"sum": 1, "more": [{"sum": -1}]}),
    ByAttrs: (ByAttrs(1, b"\xff", "abc", (ByAttrs(2),)), {"sum": 1, "more": [{"sum": -1}]}),
    ByStruct: (ByStruct(1, b"\xff", 2), {"SUM": -1}),
    ByArray: (ByArray(1, b"\xff"), ["array", -1]),
    ByTuple: (ByTuple(1, b"\xff"), [-1]),
    ByDict: ({"sum": 1, "data": b"\xff"}, {"sum": -1}),
    ByPydantic: (ByPydantic(1), {"sum": -1}),
    ByModel: (ByModel(sum=1, within=ByDataclass(1, b"a")), {"sum": 1, "within": {"sum": -1}}),
    Tagged | OtherTagged: (OtherTagged(1), {"type": "OtherTagged", "sum": -1}),
    Page[PositiveInt]: (Page([1]), {"items": [-1]}),
    Page[ByStruct]: (Page([ByStruct(1)]), {"items": [{"SUM": -1}]}),
    Sums: (Sums([1]), {"items": [-1]}),
    WordsOutside: ({}, {"sum": -1}),
    GenericTuple[PositiveInt]: (GenericTuple([1]), [[-1]]),
    GenericDict[PositiveInt]: ({"items": [1]}, {"items": [-1]}),
    MoreOfDict: ({"name": "a"}, {"name": "a", "items": [-1]}),
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: getattr(kind, "__name__", str(kind)))
@pytest.mark.parametrize("container", [None, list, dict])
def test_a_constraint_holds_in_a_field_of_any_class(kind: Any, container: Any) -> None:
    right, wrong = FIELDS[kind]
    whole: Any = {None: kind, list: GenericAlias(list, kind), dict: GenericAlias(dict, (str, kind | None))}[container]

    def wrap(item: Any) -> Any:
        return item if container is None else [item] if container is list else {"a": item}

    assert unreadable(whole) is None
    assert convert(JSON.decode(JSON.encode(wrap(right))), whole) == wrap(right)
    with pytest.raises(ValueError, match="greater than 0"):
        convert(wrap(wrong), whole)


def test_what_msgspec_says_of_a_field_holds_beside_what_pydantic_says() -> None:
    for wrong, why in (({"SUM": 1, "MOST": 10}, "less than 9"), ({"SUM": 1, "sum": 1}, "not permitted"), ({}, "required")):
        with pytest.raises(ValueError, match=why):
            convert(wrong, ByStruct)
    with pytest.raises(ValueError, match="Length of 'words'"):
        convert({"sum": 1, "words": "abcd"}, ByAttrs)
    with pytest.raises(ValueError, match="at most 3"):
        convert(["array", 1, "", 3], ByArray)
    with pytest.raises(ValueError, match="base64"):
        convert({"sum": 1, "data": "?"}, ByDataclass)


# -- what no type can do ---------------------------------------------------------------------------------------------------


class Foreign:
    pass


@dataclasses.dataclass
class WithForeign:
    what: Foreign


@dataclasses.dataclass
class WithDefault:
    sum: int = Field(gt=0)


@dataclasses.dataclass
class WithAlias:
    sum: Annotated[int, Field(alias="amount")]


@pydantic.dataclasses.dataclass
class PydanticWithAlias:
    sum: int = Field(alias="amount")


@pydantic.dataclasses.dataclass
class PydanticWithin:
    more: "list[PydanticWithin]"
    last: PydanticWithAlias | None = None


@pydantic.dataclasses.dataclass
class PydanticWithBytes:
    data: list[bytes]


OldModel: Any = type("OldModel", (), {"__module__": "pydantic.v1.main"})  # which Python 3.14 cannot load


class WithMeta(BaseModel):
    said: Annotated[int, msgspec.Meta(description="What is only described is not checked.")] = 1
    sum: list[Annotated[int, msgspec.Meta(gt=0)]]
    more: "list[WithMeta]" = []


@pydantic.dataclasses.dataclass
class HoldingMeta:
    within: dict[str, WithMeta]


REFUSED: dict[str, tuple[Any, str]] = {
    "a class that nobody makes, in a field": (WithForeign, "no decoder makes a Foreign"),
    "such a class beside a constraint": (dict[PositiveInt, Foreign], "Foreign"),
    "Field() as a default": (WithDefault, "'sum' of WithDefault has a Field.. as its default"),
    "an alias where msgspec writes": (list[WithAlias], "make WithAlias a model"),
    "an alias in a dataclass of pydantic": (PydanticWithAlias, "make it a BaseModel"),
    "such a one within another": (PydanticWithin, "PydanticWithAlias has an alias of 'sum'"),
    "bytes in a dataclass of pydantic": (PydanticWithBytes | None, "bytes in 'data'"),
    "a serializer": (Annotated[int, pydantic.PlainSerializer(str)], "make it a field of a model"),
    "base64 twice": (pydantic.Base64Bytes, "make it a field of a model"),
    "a type within Annotated": (Annotated[int, PositiveInt], "use it as the type"),
    "many that are checked later": (Iterator[PositiveInt], "use list"),
    "a model of pydantic.v1": (list[OldModel], "OldModel is a pydantic.v1 model, .*make it a pydantic.BaseModel"),
    "Meta in a model": (WithMeta | None, "WithMeta has msgspec.Meta at 'sum', .*use Field"),
    "Meta in a model within others": (list[HoldingMeta], "WithMeta has msgspec.Meta"),
    "a name for what has none": (Annotated[int, Field(alias="amount")], "make it a field of a model"),
    "such a name of FastAPI": (list[Annotated[int, Body(embed=True)]], "make it a field of a model"),
    "a header": (Annotated[str, Header()], r"Header(\(\))? exists only in HTTP: .*ctx.message.headers"),
    "a zone": (Annotated[datetime.datetime, annotated_types.Timezone(None)], "AwareDatetime"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_type_cannot_do_is_told_at_registration(name: str) -> None:
    kind, why = REFUSED[name]
    bus = Bus()

    async def handler(body: Any) -> None: ...

    handler.__annotations__["body"] = kind
    for pattern in ("x", "x.{body}"):
        with pytest.raises(TypeError, match=why):
            bus.on(pattern)(handler)

    async def channel(channel: Any) -> None: ...

    of_channel: Any = Channel
    channel.__annotations__["channel"] = of_channel[kind, int]
    with pytest.raises(TypeError, match=why):
        bus.handle("x")(channel)
    with pytest.raises(TypeError, match=why):
        bus.subscribe("x", returns=kind)


@pytest.mark.parametrize("kind", [PydanticWithAlias, list[PydanticWithAlias], Annotated[int, pydantic.PlainSerializer(str)]])
def test_an_answer_that_would_not_be_written_as_its_type_says_is_told_at_registration(kind: Any) -> None:
    async def give() -> Any: ...

    give.__annotations__["return"] = kind
    with pytest.raises(TypeError, match="its answer cannot be encoded as its type: .* only works in models"):
        Bus().handle("give")(give)


def _foreign(value: object) -> Foreign:
    return Foreign()


def test_a_field_of_a_foreign_class_that_may_be_left_out_or_is_converted_is_no_fault() -> None:
    @attrs.frozen
    class Holder:
        what: Foreign = attrs.field(converter=_foreign)
        lock: Foreign | None = None

    assert unreadable(Holder) is None


def test_a_default_that_is_a_field_of_fastapi_is_told_at_registration() -> None:
    bus = Bus()

    async def pay(sum: int = Body(gt=0)) -> None: ...

    async def of(sum: int = Path(gt=0)) -> int:
        return sum

    async def paid(amount: Annotated[int, Depends(of)]) -> None: ...

    with pytest.raises(TypeError, match=r"'sum' has Body\(...\) as its default.*Annotated\[int, Body\(gt=0\)\]"):
        bus.handle("pay")(pay)
    with pytest.raises(TypeError, match=r"'sum' has Path\(...\) as its default"):
        bus.on("pay.{sum}")(paid)


@pytest.mark.native
def test_pydantic_is_not_loaded_for_types_that_do_not_need_it() -> None:
    program = """
import dataclasses, sys, attrs, msgspec
from typing import Annotated
from polybus import Bus

@attrs.frozen
class User:
    id: Annotated[int, msgspec.Meta(gt=0)]

@dataclasses.dataclass
class Page:
    users: list[User]

bus = Bus()

@bus.on("users.{page}")
async def users(page: int, body: Page) -> None: ...

assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
