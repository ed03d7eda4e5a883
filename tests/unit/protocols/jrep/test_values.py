"""Marked values: types, identity, limits, and bytes that are none."""

import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Iterable
from typing import Annotated, Any

import attrs
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus._util.typed_body import convert
from polybus.body import JSON
from polybus.errors import BadRequest, EncodeError
from polybus.message import Kind, Message
from polybus.protocols import Jrep
from polybus.protocols.jrep import JavaEnum, JavaObject, JavaTypes, Parts
from polybus.protocols.jrep.formats import ErraiFormat
from polybus.protocols.jrep.value_writer import Arguments, java_type

ERRAI = ErraiFormat(JavaTypes(), strict=False, depth=128)
STRICT = ErraiFormat(JavaTypes(), strict=True, depth=128)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MOMENTS = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=st.just(datetime.UTC)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, fold=0)
)
NUMBERS = st.integers() | st.integers(2**62, 2**66) | st.floats() | st.decimals(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT, st.binary(max_size=20), MOMENTS)
ENUMS = st.builds(JavaEnum, st.just("x.Colour"), TEXT)
KEYS = st.none() | st.booleans() | st.integers() | TEXT | MOMENTS | st.sampled_from(["^NullVal", "^${$JSON$}$::5", "^Value"])


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4) | st.sets(SCALARS, max_size=4),
        max_leaves=12,
    )


VALUES = nested(SCALARS | ENUMS)


@pytest.fixture
def types() -> JavaTypes:
    return JavaTypes()


@pytest.fixture
def both(types: JavaTypes) -> ErraiFormat:
    """Writes and reads what is registered, and nothing else."""
    return ErraiFormat(types, strict=True, depth=128)


def same(one: Any, other: Any) -> bool:
    """Equal, of equal types, and NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(key in other and same(value, other[key]) for key, value in one.items())
    if isinstance(one, set):
        return {repr(item) for item in one} == {repr(item) for item in other}
    return bool(one == other)


@given(VALUES)
def test_every_value_comes_back_as_it_went(value: Any) -> None:
    assert same(ERRAI.decode(ERRAI.encode(value)), value)


@given(nested(SCALARS))
def test_a_strict_reader_reads_whatever_we_write_of_known_types(value: Any) -> None:
    assert same(STRICT.decode(STRICT.encode(value)), value)


@given(VALUES, st.dictionaries(TEXT.filter(bool).filter(lambda name: name[:1] != "^"), VALUES, max_size=3))
def test_parts_of_one_message_share_their_ids_and_come_back(value: Any, more: dict[str, Any]) -> None:
    codec = Jrep().codec()
    own = {f"x-{name}": item for name, item in more.items()}
    parts = Parts({"Value": value, **own})
    raw = codec.format_for(parts, "s").encode(parts)
    back = codec.format_for(parts, "s").decode(raw)
    assert same(dict(back), dict(parts))


@given(st.text(max_size=60))
def test_text_is_escaped_in_upper_case_or_refused(text: str) -> None:
    try:
        data = ERRAI.encode(text)
    except EncodeError as error:
        assert "surrogate" in error.text
        assert any(0xD800 <= ord(letter) < 0xE000 for letter in text)
        return
    assert json.loads(data) == text
    assert not any(b"\\u" + code in data for code in (b"000b", b"000e", b"001a", b"001f"))


def test_a_backslash_before_a_u_stays_a_backslash() -> None:
    text = "\\u001f \x1f \\\\u001f"
    assert json.loads(ERRAI.encode(text)) == text
    assert ERRAI.encode("\\u001f") == b'"\\\\u001f"'


def test_what_occurs_twice_even_within_itself_is_one_object_again_and_what_is_only_equal_is_not() -> None:
    shared = [1]
    value = {"a": shared, "b": shared}
    data = ERRAI.encode(value)
    assert data.count(b"^Value") == 2
    back = ERRAI.decode(data)
    assert back == value and back["a"] is back["b"]
    loop: list[Any] = [1]
    loop.append(loop)
    back = ERRAI.decode(ERRAI.encode(loop))
    assert back[0] == 1 and back[1] is back
    back = ERRAI.decode(ERRAI.encode([[1], [1]]))
    assert back[0] is not back[1]


def test_hash_codes_of_dates_and_big_numbers_are_no_ids() -> None:
    one = '{"^EncodedType":"java.math.BigDecimal","^ObjectID":"1","^Value":"%s"}'
    data = '{"^EncodedType":"java.util.ArrayList","^ObjectID":"1","^Value":[' + one % "1.5" + "," + one % "2.5" + "]}"
    assert ERRAI.decode(data.encode()) == [decimal.Decimal("1.5"), decimal.Decimal("2.5")]


def test_an_object_of_an_unknown_type_keeps_what_it_shares_with_the_rest() -> None:
    data = (
        b'{"^EncodedType":"java.util.ArrayList","^ObjectID":"7","^Value":['
        b'{"^EncodedType":"java.util.ArrayList","^ObjectID":"9","^Value":["x"]},'
        b'{"^EncodedType":"x.Node","^ObjectID":"4","list":{"^EncodedType":"java.util.ArrayList","^ObjectID":"9"}}]}'
    )
    value = ERRAI.decode(data)
    assert value[1]["list"] is value[0]
    # In another order, the list is written where it is met first.
    again = ERRAI.decode(ERRAI.encode([value[1], value[0]]))
    assert again[0]["list"] is again[1]
    assert again[1] == ["x"]


@pytest.mark.parametrize(("count", "times", "says"), [(40, 2, "references"), (5000, 1, "levels")])
def test_references_cannot_make_much_of_little_nor_make_it_deep(count: int, times: int, says: str) -> None:
    def listed(id: Any, content: list[Any]) -> dict[str, Any]:
        return {"^EncodedType": "java.util.ArrayList", "^ObjectID": str(id), "^Value": content}

    def reference(id: int) -> dict[str, Any]:
        return {"^EncodedType": "java.util.ArrayList", "^ObjectID": str(id)}

    parts = [listed(0, ["x"]), *(listed(number, [reference(number - 1)] * times) for number in range(1, count))]
    with pytest.raises(BadRequest, match=says):
        ERRAI.decode(json.dumps(listed("list", parts)).encode())


def test_references_of_many_parts_cannot_make_much_of_little_either() -> None:
    long = '{"^EncodedType":"java.util.ArrayList","^ObjectID":"1","^Value":[' + ",".join(["1"] * 10_000) + "]}"
    again = '{"^EncodedType":"java.util.ArrayList","^ObjectID":"1"}'

    def read(times: int) -> Any:
        parts = ",".join(f'"p{number}":{again}' for number in range(times))
        (found,) = Jrep().codec().reader.read(f'[{{"ToSubject":"a","long":{long},{parts}}}]'.encode())
        return found

    assert len(read(90).attributes["p89"]) == 10_000
    assert read(110).reason == "invalid_value"


WRONG = {
    "a number that is text": '{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":"x"}',
    "a number that is missing": '{"^EncodedType":"java.lang.Integer","^ObjectID":"-1"}',
    "a fraction as Integer": '{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":1.5}',
    "a boolean that is a number": '{"^EncodedType":"java.lang.Boolean","^ObjectID":"-1","^NumVal":1}',
    "a date that is text": '{"^EncodedType":"java.util.Date","^ObjectID":"-1","^Value":"yesterday"}',
    "a date beyond the year 9999": '{"^EncodedType":"java.util.Date","^ObjectID":"-1","^Value":"9999999999999999"}',
    "a decimal that is none": '{"^EncodedType":"java.math.BigDecimal","^ObjectID":"-1","^Value":"NaN"}',
    "a decimal that is far too large": '{"^EncodedType":"java.math.BigDecimal","^ObjectID":"-1","^Value":"1E+900000000"}',
    "a decimal that is far too small": '{"^EncodedType":"java.math.BigDecimal","^ObjectID":"-1","^Value":"-1E-900000000"}',
    "a nothing that is far too large": '{"^EncodedType":"java.math.BigDecimal","^ObjectID":"-1","^Value":"0E+900000000"}',
    "an integer of 10,000 digits": '{"^EncodedType":"java.math.BigInteger","^ObjectID":"-1","^Value":"%s"}' % ("9" * 10000),
    "bytes out of range": '{"^EncodedType":"[B","^ObjectID":"1","^Value":[128]}',
    "bytes of text": '{"^EncodedType":"[B","^ObjectID":"1","^Value":["a"]}',
    "a type that is a number": '{"^EncodedType":5,"^ObjectID":"1"}',
    "a type that is a list": '{"^EncodedType":[],"^ObjectID":"1"}',
    "an enum without a name": '{"^EncodedType":"x.Colour","^EnumStringValue":5}',
    "an id given twice": '{"^EncodedType":"java.util.ArrayList","^ObjectID":"1","^Value":'
    '[{"^EncodedType":"java.util.ArrayList","^ObjectID":"1","^Value":[]}]}',
    "a key that is no JSON": '{"^EncodedType":"java.util.HashMap","^ObjectID":"1","^Value":{"^${$JSON$}$::{":1}}',
    "a key that is a list": '{"^EncodedType":"java.util.HashMap","^ObjectID":"1","^Value":'
    '{"^${$JSON$}$::{\\"^EncodedType\\":\\"java.util.ArrayList\\",\\"^ObjectID\\":\\"2\\",\\"^Value\\":[]}":1}}',
    "a key that is too deep": '{"^EncodedType":"java.util.HashMap","^ObjectID":"1","^Value":{"^${$JSON$}$::%s":1}}'
    % ("[" * 90 + "]" * 90),
}
STRICTLY_WRONG = {
    "a list without an id": '{"^EncodedType":"java.util.ArrayList","^Value":[]}',
    "a reference to nothing": '{"^EncodedType":"java.util.ArrayList","^ObjectID":"5"}',
    "a list without its elements": '{"^EncodedType":"java.util.ArrayList","^ObjectID":"5","x":1}',
    "an unknown type": '{"^EncodedType":"no.such.Type","^ObjectID":"1","x":1}',
    "an unknown enum": '{"^EncodedType":"no.such.Enum","^EnumStringValue":"A"}',
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("reader", [ERRAI, STRICT], ids=["lenient", "strict"])
def test_a_wrong_marker_is_refused(what: str, reader: ErraiFormat) -> None:
    with pytest.raises(BadRequest):
        reader.decode(WRONG[what].encode())


@pytest.mark.parametrize("what", STRICTLY_WRONG)
def test_a_lenient_reader_keeps_what_a_strict_one_refuses(what: str) -> None:
    with pytest.raises(BadRequest):
        STRICT.decode(STRICTLY_WRONG[what].encode())
    kept = ERRAI.decode(STRICTLY_WRONG[what].encode())
    if what != "a list without an id":
        id = {"^ObjectID": "1"} if isinstance(kept, JavaObject) else {}
        assert json.loads(ERRAI.encode(kept)) == {**json.loads(STRICTLY_WRONG[what]), **id}


MARKERS = st.sampled_from(["^EncodedType", "^ObjectID", "^Value", "^NumVal", "^EnumStringValue", "a"])
MARKED = st.sampled_from(["java.util.ArrayList", "java.util.HashMap", "java.lang.Integer", "[B", "x.Y", "1", "-1"])
NODES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MARKERS, inner | MARKED, max_size=4),
    max_leaves=10,
)


@given(NODES)
def test_whatever_markers_say_gives_a_value_or_a_bad_request(node: Any) -> None:
    data = json.dumps(node).encode()
    for reader in (ERRAI, STRICT):
        try:
            value = reader.decode(data)
        except BadRequest:
            continue
        reader.encode(value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [1, {"price": object()}]}, "$.items[1].price"),
        *(([item], "$[0]") for item in (datetime.datetime(2020, 1, 1), 10**5000, "\ud800")),
        ({"a": decimal.Decimal("NaN")}, "$.a"),
    ],
    ids=["object", "no time zone", "digits", "surrogate", "no number"],
)
def test_what_cannot_be_encoded_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        ERRAI.encode(value)
    assert caught.value.path == path


@pytest.mark.parametrize("value", [1, "x"])
def test_what_is_too_deep_is_refused_when_written(value: Any) -> None:
    for _ in range(128):
        value = [value]
    (read,) = Jrep().codec().reader.read(b'[{"ToSubject":"a","Value":%b}]' % ERRAI.encode(value))
    assert getattr(read, "body", read) == value
    for levels in (1, 5000):
        for _ in range(levels):
            value = [value]
        with pytest.raises(EncodeError, match="128 levels" if levels == 1 else None):
            ERRAI.encode(value)


class Colour(enum.Enum):
    RED = "r"


@attrs.frozen
class Point:
    x: int
    y: float


def test_an_exception_and_types_without_a_java_name_are_written_as_java_or_json_has_them() -> None:
    back = ERRAI.decode(ERRAI.encode(ValueError("no")))
    assert isinstance(back, JavaObject) and back.type == "java.lang.RuntimeException"
    assert (back["message"], back["stackTrace"], back["cause"]) == ("ValueError:no", [], None)
    value = [Colour.RED, Point(1, 2.5), uuid.UUID(int=1), datetime.date(2020, 1, 2), (1, "a"), frozenset({1})]
    plain = ["r", {"x": 1, "y": 2.5}, "00000000-0000-0000-0000-000000000001", "2020-01-02", [1, "a"], {1}]
    assert ERRAI.decode(ERRAI.encode(value)) == plain


def test_registered_classes_and_enums_come_back_as_such(types: JavaTypes, both: ErraiFormat) -> None:
    types.portable("x.Colour")(Colour)

    @types.portable("x.Shape")
    @attrs.frozen
    class Shape:
        name: str
        at: Point
        colour: Colour
        big: int = 0
        any: Any = None
        tags: list[str] = attrs.Factory(list)

    types.portable("x.Point")(Point)
    shape = Shape("box", Point(1, 2.0), Colour.RED, 2**40, 5)
    data = both.encode([shape, shape])
    first, second = both.decode(data)
    assert first == shape and first is second
    node = json.loads(data)["^Value"][0]
    assert (node["name"], node["at"]) == ("box", {"^EncodedType": "x.Point", "^ObjectID": "3", "x": 1, "y": 2.0})
    assert node["colour"] == {"^EncodedType": "x.Colour", "^EnumStringValue": "RED"}
    assert [node[name]["^EncodedType"] for name in ("big", "any")] == ["java.lang.Long", "java.lang.Integer"]
    small = b'{"^EncodedType":"x.Shape","^ObjectID":"1","name":"n","at":null,"colour":null,"unknown":1}'
    with pytest.raises(BadRequest, match=r"x\.Shape\.at"):
        both.decode(small)
    with pytest.raises(BadRequest, match="needs a field"):
        both.decode(b'{"^EncodedType":"x.Shape","^ObjectID":"1","name":"n"}')


class Grade(enum.Enum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Grade, Grade.LOW),
        (Grade | None, Grade.LOW),
        (list[Grade], [Grade.LOW, Grade.HIGH]),
        (dict[str, Grade], {"a": Grade.HIGH}),
        (dict[Grade, list[Grade]], {Grade.LOW: [Grade.HIGH]}),
        (frozenset[Grade], frozenset({Grade.LOW})),
        (Point | None, Point(1, 2.0)),
        (list[Point], [Point(1, 2.0)]),
        (list[Any], [Grade.LOW, Point(1, 2.0)]),
    ],
)
def test_registered_types_fit_wherever_a_field_says_so(types: JavaTypes, both: ErraiFormat, hint: Any, value: Any) -> None:
    types.portable("x.Grade")(Grade)
    types.portable("x.Point")(Point)
    holder = attrs.make_class("Holder", {"held": attrs.field(type=hint)})
    types.portable("x.Holder", hints={"held": hint})(holder)
    assert both.decode(both.encode(holder(value))) == holder(value)


def test_an_enum_with_bare_values_is_refused_where_it_does_not_fit(types: JavaTypes, both: ErraiFormat) -> None:
    types.portable("x.Grade")(Grade)
    types.portable("x.Holder", hints={"held": list[str]})(attrs.make_class("Holder", {"held": attrs.field()}))
    grade = '{"^EncodedType":"x.Grade","^EnumStringValue":"LOW"}'
    with pytest.raises(BadRequest, match=r"x\.Holder\.held"):
        both.decode(f'{{"^EncodedType":"x.Holder","^ObjectID":"1","held":[{grade}]}}'.encode())


def _fixed(parts: Iterable[int]) -> tuple[int, ...]:
    return tuple(parts)


def test_a_registered_class_is_made_by_its_own_rules(types: JavaTypes, both: ErraiFormat) -> None:
    @types.portable("x.Sum")
    @attrs.define
    class Sum:
        _parts: tuple[int, ...] = attrs.field(converter=_fixed)
        itself: Any = None
        total: int = attrs.field(init=False)

        def __attrs_post_init__(self) -> None:
            self.total = sum(self._parts)

    made = Sum([1, 2])
    made.itself = made
    data = both.encode(made)
    assert json.loads(data)["total"] == 3
    back = both.decode(data)
    assert back.itself is back
    assert (back._parts, back.total) == ((1, 2), 3)


def test_what_a_check_of_the_application_ends_in_is_a_bad_request(types: JavaTypes, both: ErraiFormat) -> None:
    def fails(made: object, attribute: object, value: object) -> None:
        raise KeyError("secret")

    types.portable("x.Checked")(attrs.make_class("Checked", {"a": attrs.field(validator=fails)}))
    with pytest.raises(BadRequest, match=r"x\.Checked: validation raised KeyError$"):
        both.decode(b'{"^EncodedType":"x.Checked","^ObjectID":"1","a":1}')


def test_a_class_whose_annotations_mean_nothing_is_named_each_time(types: JavaTypes, both: ErraiFormat) -> None:
    @types.portable("x.Lost")
    @attrs.define
    class Lost:
        a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    for _ in range(2):
        with pytest.raises(BadRequest, match=r"Lost, registered as x\.Lost: name 'Nowhere' is not defined"):
            both.decode(b'{"^EncodedType":"x.Lost","^ObjectID":"1","a":1}')
        with pytest.raises(TypeError, match="hints="):
            both.encode(Lost(1))


def test_a_registry_refuses_doubles_and_other_classes(types: JavaTypes) -> None:
    types.portable("x.Point")(Point)
    for name, double in (("x.Point", Colour), ("x.Other", Point)):
        with pytest.raises(ValueError, match="already"):
            types.portable(name)(double)
    with pytest.raises(TypeError, match="attrs"):
        types.portable("x.Plain")(dict)


def test_parts_are_none_of_the_protocol_s() -> None:
    with pytest.raises(ValueError, match="ReplyTo"):
        Parts(ReplyTo="x")
    with pytest.raises(ValueError, match="at most"):
        Parts({str(number): 1 for number in range(300)})
    assert dict(later := Parts(Value=1, Nick="Ann")) == {"Value": 1, "Nick": "Ann"}
    later["ToSubject"] = "b"
    with pytest.raises(ValueError, match="ToSubject"):
        Jrep().codec().encode([Message(Kind.PUBLISH, "a", body=later)])


def test_an_object_that_nobody_registered_fits_a_type_all_the_same_and_other_protocols() -> None:
    value = ERRAI.decode(
        b'{"^EncodedType":"x.Point","^ObjectID":"1","x":1,"y":{"^EncodedType":"java.lang.Double","^NumVal":2}}'
    )
    assert isinstance(value, JavaObject)
    assert convert(value, Point) == Point(1, 2.0)
    assert json.loads(JSON.encode(value)) == {"x": 1, "y": 2.0} != value
    assert {value: 1}[value] == 1


MODULUS = 2**61 - 1
"""Whole numbers that are multiples of it have one hash in Python."""


def decoded(java: str, content: Any) -> Any:
    return ERRAI.decode(JSON.encode({"^EncodedType": java, "^ObjectID": "1", "^Value": content}))


@pytest.mark.parametrize("as_long", [False, True])
def test_a_set_of_numbers_made_to_have_one_hash_is_refused(as_long: bool) -> None:
    numbers: list[Any] = [MODULUS * number for number in range(1, 200)]
    if as_long:
        numbers = [{"^EncodedType": "java.lang.Long", "^ObjectID": "-1", "^NumVal": str(number)} for number in numbers]
    with pytest.raises(BadRequest, match="more than 64 elements of a set, or keys of a map, have the same hash"):
        decoded("java.util.HashSet", numbers)
    assert decoded("java.util.HashSet", numbers[:64]) == {MODULUS * number for number in range(1, 65)}
    many = [*range(2000), *map(str, range(2000)), True, 1.0]
    assert decoded("java.util.HashSet", many) == {*range(2000), *map(str, range(2000))}


@attrs.frozen
class Corner:
    x: int


@pytest.mark.parametrize("key", [(1, 2), (), frozenset({1}), Corner(1)], ids=["tuple", "empty", "frozenset", "attrs"])
def test_a_key_that_its_reader_could_not_use_is_refused_where_it_is_written(key: Any) -> None:
    with pytest.raises(EncodeError, match=f"a key of type {type(key).__name__} .* use a string") as caught:
        Jrep().codec().formats[0].encode({"a": [{key: 3}]})
    assert caught.value.path == "$.a[0]"


def test_keys_of_a_map_made_to_have_one_hash_are_refused() -> None:
    keys = {f"^${{$JSON$}}$::{MODULUS * number}": number for number in range(1, 200)}
    with pytest.raises(BadRequest, match="more than 64 elements of a set, or keys of a map, have the same hash"):
        decoded("java.util.HashMap", keys)
    usual = {f"^${{$JSON$}}$::{number}": number for number in range(2000)}
    assert decoded("java.util.HashMap", usual) == {number: number for number in range(2000)}


@pytest.mark.parametrize("marked", ["java.util.HashSet", "java.util.HashMap"])
def test_an_object_within_itself_as_an_element_or_a_key_that_needs_its_hash_is_refused(types: JavaTypes, marked: str) -> None:
    @types.portable("x.Node")
    @attrs.frozen
    class Node:
        name: str
        within: Any

    itself = {"^EncodedType": "x.Node", "^ObjectID": "1"}
    content: Any = [itself] if marked == "java.util.HashSet" else {"^${$JSON$}$::" + json.dumps(itself): 1}
    node = {**itself, "name": "a", "within": {"^EncodedType": marked, "^ObjectID": "2", "^Value": content}}
    with pytest.raises(BadRequest, match="cannot be hashed"):
        ErraiFormat(types, strict=False, depth=128).decode(JSON.encode(node))


def test_a_decimal_that_no_reader_takes_and_a_model_that_cannot_write_itself_are_errors_of_their_sender() -> None:
    for far in ("1E+5000", "-1E-5000", "0E+5000"):
        with pytest.raises(EncodeError, match="more than 4300 digits"):
            ERRAI.encode({"a": decimal.Decimal(far)})
    assert ERRAI.decode(ERRAI.encode(decimal.Decimal("1E+4300"))) == decimal.Decimal("1E+4300")
    with pytest.raises(EncodeError, match=r"OfBytes cannot be written: .*utf-8.*\$\.a"):
        ERRAI.encode({"a": pydantic.create_model("OfBytes", data=(bytes, ...))(data=b"\xff")})


class Real(float):
    def __repr__(self) -> str:
        return '1.5,"x":2'

    def __float__(self) -> float:
        return 6.66


class Whole(int):
    def __repr__(self) -> str:
        return "7x"


def test_a_field_that_java_has_bare_takes_objects_of_subclasses_and_checks_what_its_type_says(types: JavaTypes) -> None:
    errai = ErraiFormat(types, strict=False, depth=128)

    @types.portable("x.Sum", hints={"sum": Annotated[int, pydantic.Field(gt=0)], "mean": float, "word": str})
    @attrs.frozen
    class Sum:
        sum: Any
        mean: Any
        word: Any = ""

    written = errai.encode(Sum(Whole(7), Real(1.5), numpy.str_("a")))
    assert written == b'{"^EncodedType":"x.Sum","^ObjectID":"1","sum":7,"mean":1.5,"word":"a"}'
    assert errai.encode(Sum(numpy.int64(7), numpy.float64(1.5), "a")) == written
    assert errai.decode(written) == Sum(7, 1.5, "a")
    with pytest.raises(BadRequest, match="x.Sum.sum.*greater than 0"):
        errai.decode(written.replace(b"7", b"-7"))
    with pytest.raises(EncodeError, match="list is invalid here: the class declares a string, a number or a bool"):
        errai.encode(Sum([], 1.5))


@pytest.mark.parametrize(
    ("declared", "value", "plain"),
    [
        ("int", Whole(7), 7),
        ("java.lang.Long", numpy.int64(7), 7),
        ("double", Real(1.5), 1.5),
        ("float", numpy.float64(1.5), 1.5),
        ("double[]", [Real(1.5), Whole(1)], [1.5, 1]),
        ("int[]", [numpy.int64(7)], [7]),
        ("boolean", numpy.bool_(True), True),
        ("char", numpy.str_("a"), "a"),
        ("java.util.List<java.lang.Long>", [Whole(7)], [7]),
        ("java.util.Map<java.lang.Integer,java.lang.Double>", {Whole(7): Real(1.5)}, {7: 1.5}),
    ],
)
def test_an_argument_of_a_subclass_is_written_as_the_value_that_it_is(declared: str, value: Any, plain: Any) -> None:
    types = (java_type(declared),)
    assert ERRAI.encode(Arguments([value], types)) == ERRAI.encode(Arguments([plain], types))
