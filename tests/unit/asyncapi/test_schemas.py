"""JSON schemas of types, by msgspec and pydantic, in the dialect of AsyncAPI."""

import datetime
import json
import math
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, cast

import attrs
import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel

from polybus.asyncapi.schemas import Schemas, draft_07, example, fitting_example
from polybus.body import JSON

from .shop import Filter, Foreign, Line, Order, Point, Receipt, State, User


def test_types_of_all_libraries_have_schemas() -> None:
    kinds = [User, Order, Filter, Point, Line, Receipt]
    schemas = Schemas(kinds)
    for kind in kinds:
        assert schemas.of(kind) == {"$ref": f"#/components/schemas/{kind.__name__}"}
    assert list(schemas.components) == sorted([*(kind.__name__ for kind in kinds), "State"])
    assert schemas.components["Order"] == {
        "title": "Order",
        "description": "An order of one article.",
        "type": "object",
        "properties": {"article": {"type": "string"}, "amount": {"type": "integer", "minimum": 1, "maximum": 99, "default": 1}},
        "required": ["article"],
    }
    assert schemas.components["Receipt"]["properties"]["text"]["description"] == "What was ordered."


def test_a_tuple_has_its_places_as_draft_07_says_it() -> None:
    assert Schemas([Point]).components["Point"] == {
        "title": "Point",
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": [{"type": "number"}, {"type": "number", "default": 0.0}],
    }
    assert Schemas([tuple[int, str]]).of(tuple[int, str]) == {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": [{"type": "integer"}, {"type": "string"}],
        "additionalItems": False,
    }


def test_what_stands_beside_a_reference_counts() -> None:
    assert draft_07({"$ref": "#/x", "description": "y"}) == {"description": "y", "allOf": [{"$ref": "#/x"}]}


def test_tagged_classes_have_no_discriminator_which_is_a_string_in_asyncapi() -> None:
    class Circle(msgspec.Struct, tag=True):
        radius: float

    class Square(msgspec.Struct, tag=True):
        side: float

    schemas = Schemas([Circle | Square])
    names = [{"$ref": "#/components/schemas/Circle"}, {"$ref": "#/components/schemas/Square"}]
    assert schemas.of(Circle | Square) == {"anyOf": names}
    assert [one["properties"]["type"] for one in schemas.components.values()] == [{"enum": ["Circle"]}, {"enum": ["Square"]}]


def test_a_member_may_be_called_like_a_keyword() -> None:
    class Pointer(msgspec.Struct, rename={"reference": "$ref", "given": "default", "first": "prefixItems"}):
        reference: str
        given: tuple[int, ...] | None
        first: str
        items: int

    described = Schemas([Pointer]).components["Pointer"]
    assert list(described["properties"]) == ["$ref", "default", "prefixItems", "items"]
    assert described["properties"]["$ref"] == {"type": "string"}
    assert described["properties"]["prefixItems"] == {"type": "string"}
    for members in ("properties", "definitions", "dependentSchemas"):
        described = draft_07({members: {"default": {"$ref": "#/x", "title": "y"}}})
        assert described == {members: {"default": {"title": "y", "allOf": [{"$ref": "#/x"}]}}}


def test_models_in_lists_and_unions_are_models() -> None:
    kind = list[Receipt] | None
    schemas = Schemas([kind, Receipt])
    receipts = {"type": "array", "items": {"$ref": "#/components/schemas/Receipt"}}
    assert schemas.of(kind) == {"anyOf": [receipts, {"type": "null"}]}
    assert list(schemas.components) == ["Receipt", "State"]


def test_a_model_that_contains_itself_is_a_component() -> None:
    class Tree(pydantic.BaseModel):
        children: "list[Tree]" = []

    Tree.model_rebuild(_types_namespace={"Tree": Tree})
    schemas = Schemas([Tree])
    assert schemas.of(Tree) == {"$ref": "#/components/schemas/Tree"}
    assert schemas.components["Tree"]["properties"]["children"]["items"] == {"$ref": "#/components/schemas/Tree"}


def test_two_types_of_one_name_are_two() -> None:
    class Line(pydantic.BaseModel):  # that of the shop is a Struct
        words: list[str]

    class Page(pydantic.BaseModel):
        first: Line

    from .shop import Line as Struct

    schemas = Schemas([Struct, Line, Page, list[Line], list[Page]])
    assert list(schemas.components) == ["Line", "Line_2", "Page"]
    assert schemas.components["Page"]["properties"]["first"] == {"$ref": "#/components/schemas/Line_2"}
    assert schemas.of(Struct) == {"$ref": "#/components/schemas/Line"}
    assert schemas.of(Line) == {"$ref": "#/components/schemas/Line_2"}
    assert schemas.of(list[Line]) == {"type": "array", "items": {"$ref": "#/components/schemas/Line_2"}}
    assert set(schemas.components["Line"]["properties"]) == {"number", "text"}


def test_a_model_with_what_pydantic_cannot_describe_is_named_and_no_error() -> None:
    class Strange(pydantic.BaseModel, arbitrary_types_allowed=True):
        foreign: Foreign

    schemas = Schemas([Strange, Receipt])
    assert schemas.of(Strange) == {"description": "Strange, which JSON Schema cannot describe"}
    assert schemas.of(Receipt) == {"$ref": "#/components/schemas/Receipt"}


def test_what_json_cannot_say_is_left_out_of_a_schema() -> None:
    class Odd(pydantic.BaseModel):
        model_config = {"json_schema_extra": {"x-unit": cast("Any", object()), "x-kept": {"a": [1, "b"]}}}
        price: float = pydantic.Field(default=1.0, examples=[math.inf, 2.0])
        rates: list[float] = [math.nan]
        most: Annotated[float, pydantic.Field(le=math.inf)] = math.inf

    limited = Annotated[float, msgspec.Meta(extra_json_schema={"maximum": math.inf, "x-set": {1}})]
    schemas = Schemas([Odd, limited])
    text = json.dumps([schemas.components, schemas.of(limited)], allow_nan=False)
    assert json.loads(text)[1] == {"type": "number", "x-set": [1]}
    assert schemas.components["Odd"]["x-kept"] == {"a": [1, "b"]}
    assert schemas.components["Odd"]["properties"]["price"] == {"title": "Price", "type": "number", "default": 1.0}


def test_a_type_without_a_hash_has_its_schema() -> None:
    metres = Annotated[int, {"unit": "m"}]
    assert Schemas([metres]).of(metres) == {"type": "integer"}


def test_docstrings_that_python_makes_up_are_no_descriptions() -> None:
    class Place(NamedTuple):
        x: int

    assert "description" not in Schemas([Place]).components["Place"]


@attrs.frozen
class Everything:
    whole: int
    broken: float
    yes: bool
    when: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    day: datetime.date
    id: uuid.UUID
    price: Decimal
    state: State
    one_of: Literal["a", "b"]
    data: bytes
    users: list[User]
    pair: tuple[int, str]
    names: dict[str, int]
    perhaps: User | None
    nothing: None


def test_an_example_can_be_read_as_its_type() -> None:
    for kind in (Everything, User, Order, Filter, Point, Line):
        schemas = Schemas([kind])
        made = example(schemas.of(kind), schemas.components)
        assert isinstance(msgspec.convert(made, kind, strict=False), dict if kind is Filter else kind)
    schemas = Schemas([Receipt])
    Receipt.model_validate(example(schemas.of(Receipt), schemas.components))


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({}, None),
        ({"type": "integer", "minimum": 18}, 18),
        ({"type": "integer", "exclusiveMinimum": 0}, 1),
        ({"type": ["string", "null"]}, "text"),
        ({"const": 7}, 7),
        ({"enum": ["x"]}, "x"),
        ({"examples": [3]}, 3),
        ({"type": "array"}, []),
        ({"$ref": "#/components/schemas/Nobody"}, None),
    ],
)
def test_an_example_is_made_of_whatever_there_is(schema: dict[str, Any], made: Any) -> None:
    assert example(schema, {}) == made


def test_an_example_of_what_contains_itself_ends_or_there_is_none() -> None:
    reference = {"$ref": "#/components/schemas/Tree"}
    for of, made in (
        (reference, None),
        ({"type": "array", "items": reference}, {"of": []}),
        ({"anyOf": [reference, {"type": "null"}]}, {"of": None}),
    ):
        components: dict[str, Any] = {"Tree": {"type": "object", "properties": {"of": of}, "required": ["of"]}}
        assert example(reference, components) == made
        del components["Tree"]["required"]
        assert example(reference, components) == (made or {})


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Owner(pydantic.BaseModel):
    pets: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]
    friends: "list[Owner]"


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (Owner, {"pets": [{"kind": "cat"}], "friends": []}),
        (pydantic.UUID4, "00000000-0000-4000-8000-000000000000"),
        (pydantic.IPvAnyAddress, "192.0.2.1"),
        (Annotated[str, msgspec.Meta(pattern="^a$")], None),
        (datetime.datetime, None),
        (Foreign, None),
        (int, 1),
    ],
)
def test_an_example_that_the_type_refuses_is_none(kind: Any, made: Any) -> None:
    schemas = Schemas([kind])
    assert fitting_example(schemas.of(kind), schemas.components, kind) == made


class Address(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=to_camel)
    city_name: str
    post_code: str = pydantic.Field(validation_alias="zip", serialization_alias="post")
    country: str = ""


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=False, validate_by_name=True)
    city_name: str = pydantic.Field(alias="cityName")


@attrs.frozen
class Holder:
    """What is held."""

    where: Address
    sum: pydantic.PositiveInt = 1


class Pair(NamedTuple):
    sum: pydantic.PositiveInt
    data: bytes = b""


def test_a_model_has_the_names_by_which_it_is_read_and_those_by_which_it_is_written() -> None:
    schemas = Schemas([Address, ByName, list[Holder]], [Address, ByName, Holder])
    for kind, read, written in (
        (Address, {"cityName", "zip", "country"}, {"cityName", "post", "country"}),
        (ByName, {"cityName"}, {"city_name"}),
    ):
        for names, schema in ((read, schemas.of(kind)), (written, schemas.of(kind, written=True))):
            component = schemas.components[schema["$ref"].removeprefix("#/components/schemas/")]
            assert set(component["properties"]) == names
    encoded = JSON.encode(Address.model_validate({"cityName": "Rome", "zip": "1"}))
    assert set(JSON.decode(encoded)) == {"cityName", "post", "country"}
    assert JSON.decode(JSON.encode(ByName.model_validate({"city_name": "Rome"}))) == {"city_name": "Rome"}


def test_a_model_of_the_same_names_in_both_directions_is_one_component() -> None:
    class User(pydantic.BaseModel):
        id: int
        name: str = ""

    schemas = Schemas([User], [User])
    assert schemas.of(User) == schemas.of(User, written=True) == {"$ref": "#/components/schemas/User"}


def test_what_pydantic_says_within_another_class_stands_in_its_schema() -> None:
    schemas = Schemas([Holder, Pair])
    assert schemas.components["Holder"]["properties"]["sum"] == {"type": "integer", "exclusiveMinimum": 0, "title": "Sum"}
    assert schemas.components["Holder"]["required"] == ["where"]
    assert schemas.components["Holder"]["description"] == "What is held."
    assert schemas.of(Pair) == {
        "title": "Pair",
        "type": "array",
        "items": [
            {"type": "integer", "exclusiveMinimum": 0, "title": "Sum"},
            {"type": "string", "contentEncoding": "base64", "title": "Data"},
        ],
        "minItems": 1,
        "maxItems": 2,
    }
