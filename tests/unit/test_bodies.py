"""Bodies on each wire: with a type the same everywhere, without one what docs/reference/bodies.md says."""

import datetime
import importlib.util
import math
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pydantic
import pytest

from polybus import Bus, EncodeError
from polybus.protocols import Up

ROOT = Path(__file__).parents[2]


def _maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_bodies", ROOT / "docs" / "make_bodies.py")
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

TYPED: list[tuple[Any, Any]] = [
    (bytes, b"\xff\x00"),
    (dict[str, bytes], {"blob": b"\xff"}),
    (list[bytes], [b"", b"\xff"]),
    (datetime.datetime, MOMENT),
    (datetime.date, datetime.date(2026, 11, 21)),
    (datetime.time, datetime.time(8, 30)),
    (datetime.timedelta, datetime.timedelta(seconds=90)),
    (Decimal, Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=7)),
    (maker.Colour, maker.Colour.RED),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[int, str], {1: "a"}),
    (float, 7.0),
    (int, -(2**53)),
    (maker.User, maker.User(7, "Ann")),
    (list[Struct], [Struct(b"")]),
    (Point, Point(7.0, MOMENT)),
    (Struct, Struct(b"\xff")),
    (Model, Model(price=Decimal("1.10"), at=MOMENT)),
]


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@pytest.mark.anyio
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


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
@pytest.mark.anyio
async def test_what_a_wire_cannot_carry_is_told_at_the_call_with_its_path(wire: Any) -> None:
    bus = Bus()

    @bus.handle("take")
    async def take(body: object) -> None: ...

    async with maker.asking(bus, wire) as client:
        for value in [object()] if wire is WIRES["J.REP"] else [object(), math.nan]:
            with pytest.raises(EncodeError, match=r"\$\.a\[0\]"):
                client.request("take", {"a": [value]})


@pytest.mark.parametrize("name", maker.SAME)
@pytest.mark.anyio
async def test_another_form_of_a_wire_makes_no_difference(name: str) -> None:
    assert await maker.outcomes(maker.SAME[name]) == await maker.outcomes(maker.WIRES[name])


@pytest.mark.anyio
async def test_a_handler_of_the_bus_that_asks_gets_a_copy() -> None:
    bus = Bus()
    got: list[Any] = []

    @bus.handle("take")
    async def take(body: object) -> None:
        got.append(body)

    body = {"list": [1]}
    async with bus:
        await bus.request("take", body)
    assert got == [body]
    assert got[0] is not body and got[0]["list"] is not body["list"]


def test_the_page_says_what_is_so() -> None:
    assert maker.PAGE.read_text() == maker.written(), "run python docs/make_bodies.py"
