"""Bodies on each wire: with a type the same everywhere, without one what docs/reference/bodies.md says."""

import datetime
import enum
import importlib.util
import ipaddress
import math
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from types import GenericAlias, MappingProxyType, ModuleType
from typing import Any, Generic, Literal, NamedTuple, Required, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy
import pydantic
import pytest
from pydantic.alias_generators import to_camel
from typing_extensions import TypeAliasType

from polybus import Bus, Conflict, Context, EncodeError, NotFound, Subject
from polybus.protocols import Up

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@dataclass
class Point:
    x: float
    at: datetime.datetime


class Struct(msgspec.Struct):
    data: bytes


class Model(pydantic.BaseModel):
    price: Decimal
    at: datetime.datetime


MOMENT = datetime.datetime(2026, 11, 21, 8, 0, 0, 123000, datetime.UTC)
maker = _maker()
WIRES = maker.WIRES | {f"{name}, its other form": wire for name, wire in maker.SAME.items()}
ON_EACH_WIRE = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
TYPED: list[tuple[Any, Any]] = [
    *((bytes, b"\xff\x00"), (dict[str, bytes], {"blob": b"\xff"}), (list[bytes], [b"", b"\xff"])),
    *((datetime.datetime, MOMENT), (datetime.date, datetime.date(2026, 11, 21))),
    *((datetime.time, datetime.time(8, 30)), (datetime.timedelta, datetime.timedelta(seconds=90))),
    *((Decimal, Decimal("1.10")), (uuid.UUID, uuid.UUID(int=7)), (maker.Colour, maker.Colour.RED)),
    *((tuple[int, str], (1, "a")), (set[int], {1, 2}), (frozenset[str], frozenset({"a"}))),
    *((dict[int, str], {1: "a"}), (float, 7.0), (int, -(2**53)), (maker.User, maker.User(7, "Ann"))),
    *((list[Struct], [Struct(b"")]), (Point, Point(7.0, MOMENT)), (Struct, Struct(b"\xff"))),
    (Model, Model(price=Decimal("1.10"), at=MOMENT)),
]


# -- classes of every kind, in containers of every kind --------------------------------------------------------------------


class Address(pydantic.BaseModel):
    """As FastAPI sends it: by its aliases."""

    model_config = pydantic.ConfigDict(alias_generator=to_camel)
    city_name: str
    post_code: str = pydantic.Field(default="1", validation_alias="zip", serialization_alias="zip")
    seen_from: pydantic.AnyUrl = pydantic.AnyUrl("http://a/")
    host: ipaddress.IPv4Address = ipaddress.IPv4Address("10.0.0.1")
    file: PurePath = PurePath("/a")
    took: datetime.timedelta = datetime.timedelta(seconds=90)
    seen: datetime.datetime | None = None
    within: "list[Address]" = []


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=False, validate_by_name=True)
    city_name: str = pydantic.Field(alias="cityName")


Addresses = pydantic.RootModel[list[Address]]
ROME = Address.model_validate(
    {"cityName": "Rome", "zip": "2", "seen": MOMENT.replace(microsecond=123456), "within": [{"cityName": "Ostia"}]}
)


@dataclass
class HoldsByDataclass:
    where: Address
    data: bytes = b"\xff"


@attrs.frozen
class HoldsByAttrs:
    where: Address | None
    data: bytes = b"\xff"


class HoldsByStruct(msgspec.Struct, rename="camel"):
    where_is: dict[str, Address]
    what_else: int | msgspec.UnsetType = msgspec.UNSET


class HoldsByTuple(NamedTuple):
    where: Address
    data: bytes = b"\xff"


class HoldsByDict(TypedDict, total=False):
    where: Required[Address]
    data: bytes


@pydantic.dataclasses.dataclass
class HoldsByPydantic:
    where: Address
    sum: pydantic.PositiveInt = 1


class Renamed(msgspec.Struct, rename="kebab", omit_defaults=True):
    user_name: str
    home: str = msgspec.field(default="", name="~")
    tags: list[str] = msgspec.field(default_factory=list)
    blob: bytes = b""


class Cat(msgspec.Struct, tag=True, tag_field="kind"):
    n: int


class Dog(msgspec.Struct, tag="dog", tag_field="kind", forbid_unknown_fields=True):
    n: int


class Place(msgspec.Struct, array_like=True, tag="place"):
    x: int
    y: bytes


class Patch(msgspec.Struct):
    a: int | msgspec.UnsetType | None = msgspec.UNSET
    b: int | msgspec.UnsetType = msgspec.UNSET


@attrs.frozen
class Optional:
    a: int | msgspec.UnsetType = msgspec.UNSET


@dataclass
class Generic_(Generic[T]):
    items: list[T]


Expression = TypeAliasType("Expression", "int | dict[str, Expression] | list[Expression]")
Bound = TypeVar("Bound", bound=pydantic.BaseModel | Path)
READ_BY_PYDANTIC_ALONE: list[tuple[Any, Any]] = [
    *((Path, Path("/a")), (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1"))),
    *((ipaddress.IPv6Network, ipaddress.IPv6Network("::/8")), (deque[int], deque([1]))),
    *((OrderedDict[str, int], OrderedDict(a=1)), (Counter[str], Counter("aab"))),
    *((defaultdict[str, list[int]], defaultdict(list, a=[1])), (re.Pattern[str], re.compile("a+"))),
    *((complex, 1 - 2j), (Fraction, Fraction(1, 3)), (ZoneInfo, ZoneInfo("Europe/Rome"))),
    *((Expression, {"a": [1, {"b": 2}]}), (Bound, Path("/a")), (int | Path, Path("/a")), (Literal[True, "a"], True)),
]
"""What msgspec does not know."""
TYPED += READ_BY_PYDANTIC_ALONE


KINDS: list[tuple[Any, Any]] = [
    (Address, ROME),
    (ByName, ByName.model_validate({"city_name": "Rome"})),
    (Addresses, Addresses([ROME])),
    (HoldsByDataclass, HoldsByDataclass(ROME)),
    (HoldsByAttrs, HoldsByAttrs(ROME)),
    (HoldsByStruct, HoldsByStruct({"a": ROME})),
    (HoldsByTuple, HoldsByTuple(ROME)),
    (HoldsByDict, HoldsByDict(where=ROME, data=b"\xff")),
    (HoldsByPydantic, HoldsByPydantic(ROME)),
    (Renamed, Renamed("Ann", "x", ["a"], b"\xff")),
    (Cat | Dog, Dog(1)),
    (Place, Place(1, b"\xff")),
    (Patch, Patch(a=None)),
    (Optional, Optional()),
    (Generic_[Address], Generic_([ROME])),
    (Generic_[pydantic.PositiveInt], Generic_([1])),
]
CONTAINERS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda kind: kind, lambda value: value),
    (lambda kind: GenericAlias(list, kind), lambda value: [value]),
    (lambda kind: GenericAlias(dict, (str, kind)), lambda value: {"a": value}),
    (lambda kind: GenericAlias(dict, (int, GenericAlias(list, kind))), lambda value: {1: [value, value]}),
    (lambda kind: GenericAlias(tuple, (kind, bytes)), lambda value: (value, b"\xff")),
    (lambda kind: kind | None, lambda value: value),
    (lambda kind: GenericAlias(list, kind | None), lambda value: [None, value]),
    (lambda kind: GenericAlias(Generic_, kind), lambda value: Generic_([value])),
]
TYPED += [(contain(kind), fill(value)) for kind, value in KINDS for contain, fill in CONTAINERS]


@ON_EACH_WIRE
async def test_a_handler_and_a_caller_that_name_their_type_get_what_was_sent(wire: Any) -> None:
    bus, got = Bus(), []
    for number, (kind, _) in enumerate(TYPED):

        async def echo(body: Any) -> Any:
            got.append(body)
            return body

        echo.__annotations__["body"] = kind
        bus.handle(f"echo.{number}")(echo)
    if isinstance(wire, Up):
        wire = Up(names={f"echo.{number}": number + 1 for number in range(len(TYPED))})
    async with maker.asking(bus, wire) as client:
        answers = [await client.request(f"echo.{number}", value, returns=kind) for number, (kind, value) in enumerate(TYPED)]
    values = [value for _, value in TYPED]
    assert got == answers == values
    assert [type(one) for one in got] == [type(one) for one in answers] == [type(one) for one in values]


@ON_EACH_WIRE
async def test_what_a_wire_cannot_carry_is_told_at_the_call_with_its_path(wire: Any) -> None:
    bus = Bus()
    bus.handle("take", inline=True)(lambda body: None)
    async with maker.asking(bus, wire) as client:
        for value in [object()] if wire is WIRES["J.REP"] else [object(), math.nan]:
            with pytest.raises(EncodeError, match=r"\$\.a\[0\]"):
                client.request("take", {"a": [value]})
        for kind in (Model, Addresses, maker.User, Point, Struct, Right, HoldsByTuple, HoldsByDict, HoldsByPydantic, int):
            with pytest.raises(EncodeError, match=r"\w+\]* is a class: pass an instance at \$\.a\[0\]"):
                client.request("take", {"a": [kind]})


# -- objects of subclasses -------------------------------------------------------------------------------------------------


class Hostile:
    """Shows itself as what would end the value in a frame, and begin another."""

    def __str__(self) -> str:
        return '1,"x":"y'

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return str(self)


class Id(Hostile, str): ...


class Whole(Hostile, int):
    def __int__(self) -> int:
        return 666


class Real(Hostile, float):
    def __float__(self) -> float:
        return 6.66


class Octets(Hostile, bytes):
    def __bytes__(self) -> bytes:
        return b"no"


class Moment(Hostile, datetime.datetime): ...


class Price(Hostile, Decimal): ...  # type: ignore[misc]


class Rows(Hostile, list[Any]): ...


class Table(Hostile, dict[Any, Any]): ...


class Word(enum.StrEnum):
    ECHO = "echo"


class OldWord(Id, enum.Enum):
    ECHO = "echo"


class Number(enum.IntEnum):
    ONE = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class OfReals(enum.Enum):
    HALF = Real(0.5)


PLAIN: list[tuple[Any, Any]] = [
    *((Id("a"), "a"), (Whole(7), 7), (Real(1.5), 1.5), (numpy.float64(1.5), 1.5), (numpy.float32(0.5), 0.5)),
    *((numpy.int64(7), 7), (numpy.uint8(7), 7), (numpy.str_("a"), "a"), (numpy.bool_(True), True)),
    *((Word.ECHO, "echo"), (OldWord.ECHO, "echo"), (Number.ONE, 1), (Right.READ | Right.WRITE, 3)),
    *((OfReals.HALF, 0.5), (Rows([Id("a")]), ["a"]), (Table(a=Whole(7)), {"a": 7}), (OrderedDict(a=1), {"a": 1})),
    *((MappingProxyType({"a": Real(1.5)}), {"a": 1.5}), (Place(Whole(1), Octets(b"\xff")), ["place", 1, b"\xff"])),
]
"""With the value that arrives."""
TYPED_PLAIN: list[tuple[Any, Any, Any]] = [
    (bytes, Octets(b"\xff"), b"\xff"),
    (list[bytes], [Octets(b"\xff")], [b"\xff"]),
    (datetime.datetime, Moment(2026, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
    (dict[str, Decimal], {"a": Price("1.10")}, {"a": Decimal("1.10")}),
    (dict[float, int], {Real(1.5): Whole(7)}, {1.5: 7}),
    (dict[int, str], {numpy.int64(7): Id("a")}, {7: "a"}),
]


@ON_EACH_WIRE
async def test_an_object_of_a_subclass_is_written_as_the_value_that_it_is(wire: Any) -> None:
    bus = Bus()

    @bus.handle("echo")
    async def echo(body: object) -> object:
        return body

    @bus.handle("give")
    async def give(number: int) -> object:
        return [PLAIN[number][0]]

    if isinstance(wire, Up):
        wire = Up(names={"echo": 1, "give": 2})
    async with maker.asking(bus, wire) as client:
        for number, (value, arrives) in enumerate(PLAIN):
            got = [
                await client.request("echo", value),
                (await client.request("echo", {"a": [value]}))["a"][0],
                (await client.request("give", number))[0],
            ]
            if isinstance(value, Place):
                got = [[*one[:2], b"\xff" if one[2] == "/w==" else one[2]] for one in got]
            assert got == [arrives] * 3
            assert {type(one) for one in got} == {type(arrives)}
            if isinstance(value, str):
                assert await client.request("echo", {value: 1}) == {arrives: 1}
        for kind, value, arrives in TYPED_PLAIN:
            assert await client.request("echo", value, returns=kind) == arrives


@ON_EACH_WIRE
async def test_text_of_a_subclass_is_a_subject_a_header_and_the_words_of_an_error(wire: Any) -> None:
    bus = Bus()

    @bus.handle(OldWord.ECHO)
    async def echo(ctx: Context) -> object:
        return dict(ctx.message.headers or {})

    @bus.handle("fail")
    async def fail() -> None:
        raise Conflict(Id("text"), reason=Id("why"), detail={Id("a"): Real(1.5)})

    @bus.handle("lost")
    async def lost() -> None:
        raise NotFound(KeyError("x"))  # type: ignore[arg-type]

    if isinstance(wire, Up):
        wire = Up(names={"echo": 1, "fail": 2, "lost": 3, "a.b": 0x8001})
    headers = None if isinstance(wire, Up) else {Id("a"): Id("b")}
    async with maker.asking(bus, wire) as client:
        for subject in (Word.ECHO, OldWord.ECHO, Id("echo"), Subject(OldWord.ECHO)):
            assert await client.request(subject, headers=headers) == (headers or {})
        await client.publish(Id("a.b"), 1)
        with pytest.raises(Conflict, match="why") as caught:
            await client.request("fail")
        with pytest.raises(NotFound, match="'x'"):
            await client.request("lost")
    error = caught.value
    assert (error.text, error.reason, error.detail) == ("text", "why", {"a": 1.5})
    assert type(error.text) is type(error.reason) is str


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Told(Login):
    @pydantic.field_serializer("password")
    def told(self, secret: pydantic.SecretStr) -> str:
        return secret.get_secret_value()


MEAN_TIME = datetime.timezone(datetime.timedelta(minutes=19, seconds=32))
NOT_WRITTEN: list[tuple[Any, str]] = [
    (pydantic.SecretStr("x"), r"get_secret_value"),
    ({"a": [Login(password=pydantic.SecretStr("x"))]}, r"get_secret_value\(\).*at \$\.a\[0\]\.password"),
    (numpy.array([1]), "ndarray"),
    (numpy.datetime64("2026-01-01"), "datetime64"),
]


@ON_EACH_WIRE
async def test_a_secret_is_not_sent_as_stars_and_a_moment_not_as_another(wire: Any) -> None:
    bus = Bus()
    bus.handle("take", inline=True)(lambda body: body)
    early = datetime.datetime(1890, 1, 1, 12, tzinfo=MEAN_TIME)
    async with maker.asking(bus, wire) as client:
        for value, why in NOT_WRITTEN:
            with pytest.raises(EncodeError, match=why):
                await client.request("take", value)
        assert await client.request("take", Told(password=pydantic.SecretStr("x"))) == {"password": "x"}
        assert await client.request("take", early.astimezone(datetime.UTC), returns=datetime.datetime) == early
        if wire is WIRES["J.REP"]:  # whose moments are no text
            assert await client.request("take", [early]) == [early]
            return
        for body in (early, {"a": [early]}, {early: 1}, ROME.model_copy(update={"seen": early})):
            with pytest.raises(EncodeError, match="the UTC offset 0:19:32.*astimezone"):
                await client.request("take", body)


@pytest.mark.parametrize("name", maker.SAME)
async def test_another_form_of_a_wire_makes_no_difference(name: str) -> None:
    assert await maker.outcomes(maker.SAME[name]) == await maker.outcomes(maker.WIRES[name])


async def test_a_handler_of_the_bus_that_asks_gets_a_copy() -> None:
    bus, got = Bus(), list[Any]()

    @bus.handle("take")
    async def take(body: object) -> None:
        got.append(body)

    body = {"list": [1]}
    async with bus:
        await bus.request("take", body)
    assert got == [body]
    assert got[0] is not body and got[0]["list"] is not body["list"]
