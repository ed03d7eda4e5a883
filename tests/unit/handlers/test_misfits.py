"""What the sender of a body that does not fit is told: a short text, and of each fault its place."""

from typing import Annotated, Any

import anyio
import attrs
import msgspec
import pydantic
import pytest

from polybus import BadRequest, Bus, NotFound, RemoteError
from polybus.testing import pair


@attrs.frozen
class Line:
    count: int


@attrs.frozen
class Order:
    id: int
    lines: list[Line]


class Point(msgspec.Struct):
    x: int = msgspec.field(default=0)


def positive(_: object, attribute: Any, value: int) -> None:
    if value < 1:
        raise ValueError(f"{attribute.name} is at least 1")


@attrs.frozen
class Checked:
    count: int = attrs.field(validator=positive)


async def told(kind: Any, body: Any) -> BadRequest:
    bus = Bus()

    async def take(body: Any) -> None: ...

    take.__annotations__["body"] = kind
    bus.handle("take")(take)
    async with pair(bus) as client:
        with pytest.raises(BadRequest) as caught:
            await client.request("take", body)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "body", "path", "type_"),
    [
        (Order, {"id": 1, "lines": [{"count": 1}, {"count": "two"}]}, "$.lines[1].count", "wrong_type"),
        (Order, {"id": 1}, "$.lines", "missing"),
        (Order, {"id": 1, "lines": [{}]}, "$.lines[0].count", "missing"),
        (int, "x", "$", "wrong_type"),
        (Point, {"x": 1.5}, "$.x", "wrong_type"),
        (Checked, {"count": 0}, "$", "invalid"),
    ],
)
async def test_a_fault_has_its_path_a_text_and_a_type(kind: Any, body: Any, path: str, type_: str) -> None:
    error = await told(kind, body)
    (fault,) = error.detail
    assert (fault["path"], fault["type"]) == (path, type_)
    assert fault["text"] in error.text
    assert error.text.startswith("invalid body: ")


@pytest.mark.native
async def test_faults_of_pydantic_have_the_same_form_without_input_and_addresses() -> None:
    pydantic = pytest.importorskip("pydantic")
    ticket = pydantic.create_model(
        "Ticket", title=(str, pydantic.Field(min_length=3)), n=(int, ...), tags=(list[int], []), a=(int, ...), b=(int, ...)
    )
    error = await told(ticket, {"title": "%!", "tags": [1, "x"]})
    assert [(fault["path"], fault["type"]) for fault in error.detail] == [
        ("$.title", "string_too_short"),
        ("$.n", "missing"),
        ("$.tags[1]", "int_parsing"),
        ("$.a", "missing"),
        ("$.b", "missing"),
    ]
    assert error.text.endswith("; and 2 more")
    assert "http" not in error.text
    assert "%!" not in f"{error.text} {error.detail}"


@pytest.mark.native
@pytest.mark.parametrize(
    ("count", "ends"), [(3, "(at $.amounts[2])"), (4, "; and 1 more"), (10_001, "body: 10001 errors, too many to list")]
)
async def test_three_faults_stand_in_the_text_and_of_very_many_their_number(count: int, ends: str) -> None:
    error = await told(pydantic.create_model("Amounts", amounts=(list[int], ...)), {"amounts": [""] * count})
    assert error.text.startswith("invalid body: ")
    assert error.text.count("unable to parse") == (3 if count < 10_001 else 0)
    assert error.text.endswith(ends)


@pytest.mark.parametrize(("text", "heard"), [("k" * 500, "k" * 500), ("k" * 501, "k" * 500 + "...")], ids=["500", "501"])
async def test_a_text_of_500_characters_is_told_whole(text: str, heard: str) -> None:
    def refuses(_: object, __: Any, value: int) -> None:
        raise ValueError(text)

    error = await told(attrs.make_class("Refused", {"n": attrs.field(type=int, validator=refuses)}), {"n": 0})
    assert error.detail[0]["text"] == heard


async def test_an_error_that_is_alone_in_a_group_is_the_answer() -> None:
    bus = Bus()

    async def fails(error: Exception) -> None:
        raise error

    @bus.handle("one")
    async def one() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(fails, NotFound("no such user"))

    @bus.handle("two")
    async def two() -> None:
        raise ExceptionGroup("several", [NotFound("a"), NotFound("b")])

    @bus.handle("other")
    async def other() -> None:
        raise ExceptionGroup("one", [ExceptionGroup("within", [ValueError("secret")])])

    async with pair(bus) as client:
        with pytest.raises(NotFound, match="no such user"):
            await client.request("one")
        for subject in ("two", "other"):
            with pytest.raises(RemoteError, match="internal error"):
                await client.request(subject)


@pytest.mark.native
async def test_a_sender_cannot_have_its_own_words_back_many_times() -> None:
    pydantic = pytest.importorskip("pydantic")
    point: Any = pydantic.create_model("Point", x=(int, ...))
    error = await told(dict[str, point], {f"{number}{'k' * 20_000}": {} for number in range(40)})
    assert len(error.detail) == 32
    assert error.text.endswith("; and 37 more")
    assert len(error.text) + len(str(error.detail)) < 40_000
    assert {fault["type"] for fault in error.detail} == {"missing"}


def looked_up(value: object) -> object:
    return {"a": 1}[value]  # type: ignore[index]


@attrs.frozen
class Converted:
    name: Any = attrs.field(validator=lambda _, __, value: looked_up(value))


class Model(pydantic.BaseModel):
    name: Annotated[str, pydantic.AfterValidator(lambda value: looked_up(value))]


@pytest.mark.parametrize("kind", [Converted, Model])
async def test_a_check_that_fails_by_its_own_mistake_is_logged_with_traceback(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()

    @bus.handle("a")
    async def handler(body: kind) -> None: ...

    async with pair(bus) as client:
        with pytest.raises(BadRequest, match="validation raised KeyError"):
            await client.request("a", {"name": "b"})
    (record,) = [record for record in caplog.records if "validation of a body raised KeyError" in record.getMessage()]
    assert record.exc_info is not None
    assert "looked_up" in str(record.exc_text or caplog.text)
