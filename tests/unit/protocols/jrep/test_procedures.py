"""Remote procedures: how a Java signature is said, and how it chooses what each argument is on the wire (notes 2, S3)."""

import json
import math
from decimal import Decimal
from typing import Annotated, Any

import anyio
import numpy
import pytest
from pydantic import Field

from polybus import BadRequest, Bus, EncodeError, NoHandler, RequestError, connect
from polybus.protocols import Jrep
from polybus.protocols.jrep import JavaObject, RemoteInterface
from tests.support import BOUND

SERVICE = RemoteInterface("com.acme.Service")


def written(body: list[Any], *parameters: Any) -> list[Any]:
    """The arguments on the wire, without the ids."""
    values = Jrep().codec().formats[0]
    made = json.loads(values.encode(SERVICE.method("m", *parameters).given(body)))
    assert made["^EncodedType"] == "java.util.ArrayList"
    found: list[Any] = bared(made["^Value"])
    return found


def bared(node: Any) -> Any:
    if isinstance(node, list):
        return [bared(item) for item in node]
    if isinstance(node, dict):
        if "^NumVal" in node:
            return node["^EncodedType"].removeprefix("java.lang."), node["^NumVal"]
        if "^EncodedType" in node:
            return node["^EncodedType"], bared(node.get("^Value"))
        return {name: bared(item) for name, item in node.items()}
    return node


@pytest.mark.parametrize(
    ("kind", "value", "wire"),
    [
        (int, 5, ("Integer", 5)),
        *((name, 5, ("Integer", 5)) for name in ("int", "java.lang.Integer")),
        *((name, 5, ("Long", "5")) for name in ("long", "java.lang.Long", "Long")),
        ("java.lang.Long", -(2**63), ("Long", str(-(2**63)))),
        ("short", 5, ("Short", 5)),
        ("java.lang.Short", -(2**15), ("Short", -(2**15))),
        ("byte", -128, ("Byte", -128)),
        ("float", 2.5, ("Float", 2.5)),
        ("float", math.inf, ("Float", "Infinity")),
        ("java.lang.Float", 3, ("Float", 3.0)),
        ("double", 3, ("Double", 3.0)),
        (float, 3, ("Double", 3.0)),
        ("char", "c", ("Character", "c")),
        ("java.lang.Character", '"', ("Character", '"')),
        ("boolean", True, ("Boolean", True)),
        ("java.math.BigInteger", 5, ("java.math.BigInteger", "5")),
        ("java.math.BigDecimal", 5, ("java.math.BigDecimal", "5")),
        ("java.math.BigDecimal", Decimal("1.10"), ("java.math.BigDecimal", "1.10")),
        ("java.lang.Long", None, None),
        (int | None, None, None),
        ("int[]", [1, 2], ("[I", [1, 2])),
        ("[I", (1, 2), ("[I", [1, 2])),
        ("long[]", [1, 2], ("[J", [("Long", "1"), ("Long", "2")])),
        ("[J", [1], ("[J", [("Long", "1")])),
        ("short[]", [1], ("[S", [1])),
        ("double[]", [1, 2.5, math.nan], ("[D", [1.0, 2.5, ("Double", "NaN")])),
        ("float[]", [1.5], ("[F", [("Float", 1.5)])),
        ("char[]", ["a", "b"], ("[C", [("Character", "a"), ("Character", "b")])),
        ("boolean[]", [True], ("[Z", [("Boolean", True)])),
        *(
            (kind, value, ("[B", [1, -1]))
            for kind, value in (("byte[]", b"\x01\xff"), ("byte[]", [1, -1]), (bytes, b"\x01\xff"))
        ),
        ("String[]", ["a", None], ("[Ljava.lang.String;", ["a", None])),
        ("[Ljava.lang.String;", ["a"], ("[Ljava.lang.String;", ["a"])),
        ("Map<String, List<Short>>", {"k": [1]}, ("java.util.LinkedHashMap", {"k": ("java.util.ArrayList", [("Short", 1)])})),
        *((name, [1, None], ("[Ljava.lang.Long;", [("Long", "1"), None])) for name in ("Long[]", "java.lang.Long[]")),
        ("int[]", None, None),
        ("java.util.List<java.lang.Long>", [1], ("java.util.ArrayList", [("Long", "1")])),
        (list["java.lang.Long"], [1], ("java.util.ArrayList", [("Long", "1")])),  # type: ignore[name-defined]  # noqa: F821
        ("java.util.Set<java.lang.Long>", {1}, ("java.util.HashSet", [("Long", "1")])),
        (
            "java.util.Map<java.lang.String, java.util.List<java.lang.Long>>",
            {"^k": [1]},
            ("java.util.LinkedHashMap", {"^k": ("java.util.ArrayList", [("Long", "1")])}),
        ),
        *((kind, [1], ("java.util.ArrayList", [("Integer", 1)])) for kind in (list, list[int])),
        ("com.acme.Point", {"x": 1}, ("java.util.LinkedHashMap", {"x": ("Integer", 1)})),
        ("long", "no number", "no number"),
        ("int[]", "no list", "no list"),
    ],
    ids=str,
)
def test_the_signature_chooses_the_marker_of_an_argument(kind: Any, value: Any, wire: Any) -> None:
    assert written([value], kind) == [wire]


def test_the_key_of_a_map_has_its_type_too() -> None:
    ((_, entries),) = written([{5: "five"}], "java.util.Map<java.lang.Long,java.lang.String>")
    (key,) = entries
    assert json.loads(key.removeprefix("^${$JSON$}$::"))["^EncodedType"] == "java.lang.Long"


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("int", 2**31, "argument 2 (int): 2147483648 is out of range for int: -2147483648 to 2147483647"),
        ("java.lang.Long", 2**63, "argument 2 (java.lang.Long): 9223372036854775808 is out of range for java.lang.Long"),
        ("short", 2**15, "32768 is out of range for short"),
        ("byte", 128, "128 is out of range for byte"),
        ("float", 1e39, "1e+39 is out of range for float"),
        ("double", 10**400, "is out of range for double"),
        ("char", "ab", "'ab' is not a char, which is a single character"),
        ("char", "\U0001f600", "a single character up to U+FFFF"),
        ("int", None, "int cannot be null: java.lang.Integer can"),
        ("int[]", [1, 2**31], "2147483648 is out of range for int"),
        ("int[][]", [[1]], "no marshaller for arrays of arrays"),
        ("java.util.List<java.lang.Long>", [2**70], "is out of range for java.lang.Long"),
        ("java.lang.Object", JavaObject("java.lang.Long", value="5"), "JavaObject('java.lang.Long', {'^NumVal': ...})"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_names_its_argument(kind: Any, value: Any, text: str) -> None:
    with pytest.raises(EncodeError) as caught:
        written(["first", value], str, kind)
    assert text in str(caught.value)
    assert caught.value.text.startswith("argument 2 ")
    assert caught.value.path.startswith("$[1]")


def test_a_scalar_of_java_has_no_value_of_its_own_anywhere() -> None:
    values = Jrep().codec().formats[0]
    with pytest.raises(EncodeError, match=r"does not keep its content in \^Value.* at \$\.a\[0\]"):
        values.encode({"a": [JavaObject("java.lang.Long", value="5")]})
    assert b'"^NumVal":"5"' in values.encode(JavaObject("java.lang.Long", {"^NumVal": "5"}))


def test_as_many_arguments_as_parameters() -> None:
    with pytest.raises(EncodeError, match=r"1 arguments: the method takes 2 \(int, java.lang.String\)"):
        written([1], int, str)


def test_signatures_are_those_of_ordinary_java_interfaces() -> None:
    assert SERVICE.method("add", int, int).name == "com.acme.Service:RPC.add:int:int:"
    assert SERVICE.method("f", float, bool, int | None).name == "com.acme.Service:RPC.f:double:boolean:java.lang.Integer:"
    named = SERVICE.method("g", "String", "long[]", "[I", "java.util.List<java.lang.Long>", list["java.lang.Long"])  # type: ignore[name-defined]  # noqa: F821
    assert named.name == "com.acme.Service:RPC.g:java.lang.String:long[]:[I:java.util.List:java.util.List:"
    assert SERVICE.method("h", list[int], dict[str, int], Any) == SERVICE.method("h", "List", "Map", "Object")
    assert SERVICE.method("h", str | None, list[str] | None) == SERVICE.method("h", str, list)
    for kind in (complex, int | str):
        with pytest.raises(TypeError, match="no Java name"):
            SERVICE.method("h", kind)


@pytest.mark.parametrize("text", ["", "java.util.List<", "List<>", "a b", "int,", "java.util.List<a>>", "<a>", "int[", "a<b>c"])
def test_what_is_no_java_type_is_said_so(text: str) -> None:
    with pytest.raises(TypeError, match="is not a Java type"):
        SERVICE.method("m", text)


ADD = SERVICE.method("add", int, int)


def adding() -> Bus:
    bus = Bus()

    @SERVICE.handle(bus)
    async def add(left: int, right: int) -> int:
        return left + right

    return bus


async def test_a_function_answers_for_primitives_and_for_their_classes() -> None:
    bus = adding()
    with anyio.fail_after(BOUND):
        async with bus.serve("jrep+memory://procedures"), connect("jrep+memory://procedures") as client:
            assert await client.request(ADD, [2, 3]) == 5
            assert await client.request(SERVICE.method("add", "java.lang.Integer", "java.lang.Integer"), [2, 3]) == 5
            assert await client.peers[0].request(ADD, (2, 3)) == 5
            await client.notify(ADD, [2, 3])
            with pytest.raises(EncodeError, match="argument 1"):
                _ = client.request(ADD, [2**40, 3])
            assert await SERVICE.call(client, "add", 2, 3, returns=int) == 5
            with pytest.raises(NoHandler, match=r"add:java\.lang\.String:x\.Y:"):
                await SERVICE.call(client, "add", "x", JavaObject("x.Y"))
            with pytest.raises(RequestError, match="argument 2"):
                await client.request(ADD, [1, "x"])
        async with bus:
            assert await bus.request(ADD, [2, 3]) == 5  # its own


async def test_what_an_annotation_says_of_an_argument_is_checked() -> None:
    bus = Bus()

    @SERVICE.handle(bus)
    async def half(number: Annotated[int, Field(gt=0, multiple_of=2)]) -> int:
        return number // 2

    async with bus:
        assert await SERVICE.call(bus, "half", numpy.int64(4)) == 2
        with pytest.raises(BadRequest, match="argument 1: Input should be a multiple of 2"):
            await SERVICE.call(bus, "half", 3)


async def test_a_signature_does_not_hinder_other_protocols_and_plain_values() -> None:
    bus = adding()
    with anyio.fail_after(BOUND):
        for url in ("jrep+memory://plain?values=plain", "ubre+memory://plain"):
            async with bus.serve(url), connect(url) as client:
                assert await client.request(ADD, [2, 3]) == 5


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (
            lambda: RemoteInterface(""),
            ValueError,
            r"^name='' must be the Java name of an interface, .* 'com\.acme\.Calculator'",
        ),
        (lambda: RemoteInterface("com acme"), ValueError, r"^name='com acme' must be the Java name of an interface"),
        (lambda: RemoteInterface(5), TypeError, r"^name=5 must be the Java name of an interface, .*, not int"),  # type: ignore[arg-type]
        (lambda: RemoteInterface("a.B", {}), TypeError, r"^java={} must be JavaTypes, not dict"),  # type: ignore[arg-type]
        (lambda: RemoteInterface("a.B").method("add:int:"), ValueError, r"^name='add:int:' must be the Java name of a method"),
        (lambda: RemoteInterface("a.B").method(int, int), TypeError, r"^name=<class 'int'> must be the Java name of a method"),  # type: ignore[arg-type]
    ],
)
def test_a_name_that_java_cannot_have_is_refused_where_it_is_said(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()
    RemoteInterface("com.acme.Outer$Inner").method("größe_$1")


def test_a_function_that_cannot_be_a_method_is_refused_when_it_is_registered() -> None:
    interface, bus = RemoteInterface("a.B"), Bus()

    def bare(number, other: int): ...  # type: ignore[no-untyped-def]
    def named(*, number: int) -> None: ...
    def several(*numbers: int) -> None: ...
    def keywords(**numbers: int) -> None: ...
    async def items(number: int) -> Any:
        yield number

    wrong: list[tuple[Any, str]] = [
        (bare, "parameter 'number' has no annotation"),
        (named, "'number: int' cannot be passed"),
        (several, r"'\*numbers: int' cannot be passed"),
        (keywords, r"'\*\*numbers: int' cannot be passed"),
        (items, "items is a generator: a Java method has one result"),
    ]
    for function, says in wrong:
        with pytest.raises(TypeError, match=says):
            interface.handle(bus)(function)
    interface.handle(bus, "bare", "int", "long")(bare)  # Java's types are said
    with pytest.raises(TypeError, match="bare takes 2 arguments, but 1 types are given"):
        interface.handle(bus, "bare", "int")(bare)
    with pytest.raises(TypeError, match=r"pass a Bus or a Router, as in @interface\.handle\(bus\)"):
        interface.handle(bare)  # type: ignore[arg-type]
