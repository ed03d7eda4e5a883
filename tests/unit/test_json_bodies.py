"""Checks of JSON bodies that are made on bytes: how deep they are nested, and numbers that JSON has not."""

import dataclasses
import json
import math
import traceback
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus import EncodeError
from polybus.body import JSON, JsonFormat, check_depth, check_json, part_that_fails

_TEXTS = st.text(st.sampled_from('[]{}"\\,:\nnullé'), max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(_VALUES, st.integers(0, 20), st.booleans(), st.booleans())
def test_a_body_is_too_deep_from_one_level_above_the_limit(value: Any, around: int, ascii_only: bool, spaced: bool) -> None:
    for level in range(around):
        value = {"]": value} if level % 3 == 0 else ["[", value]
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1 if spaced else None).encode()
    depth = depth_of(value)
    check_depth(text, depth)
    check_json(text, depth)
    if depth:
        with pytest.raises(EncodeError, match=f"deeper than {depth - 1} levels"):
            check_depth(text, depth - 1)


@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b"x"])).map(b"".join))
def test_the_depth_of_what_is_no_json_is_no_failure_of_ours(data: bytes) -> None:
    check_depth(data, len(data))
    try:
        check_json(data, 0)
    except (ValueError, EncodeError):
        pass


@pytest.mark.parametrize("size", [100, 10_000], ids=["short", "long"])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'], ids=["arrays", "objects"])
def test_many_brackets_beside_each_other_are_not_deep(size: int, brackets: str) -> None:
    flat = ("[" + ",".join(["[]"] * size) + "]").encode()
    check_json(flat, 2)
    with pytest.raises(EncodeError):
        check_json(flat, 1)
    opening, closing = brackets[:-1], brackets[-1]
    deep = (opening * size + "1" + closing * size).encode()
    check_json(deep, size)
    with pytest.raises(EncodeError):
        check_json(deep, size - 1)


@attrs.define
class Attrs:
    price: float


@dataclasses.dataclass
class Data:
    price: float


class Struct(msgspec.Struct):
    price: float


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda number: number, "$"),
        (lambda number: [None, number], "$[1]"),
        (lambda number: (None, [number]), "$[1][0]"),
        (lambda number: {"a": None, "b": {"c": [1.5, number]}}, "$.b.c[1]"),
        (lambda number: [Attrs(1.0), Attrs(number)], "$[1].price"),
        (lambda number: [Data(1.0), Data(number)], "$[1].price"),
        (lambda number: [Struct(1.0), Struct(number)], "$[1].price"),
        (lambda number: {"text": "x" * 1000, "rows": [{"id": 1, "price": None}] * 300 + [{"id": 2, "price": number}]},
         "$.rows[300].price"),
    ],
)  # fmt: skip
def test_a_number_that_json_has_not_is_refused_with_its_path(make: Any, path: str, number: float) -> None:
    with pytest.raises(EncodeError) as refused:
        JSON.encode(make(number))
    assert refused.value.path == path
    assert JSON.decode(JSON.encode(make(2.5))) is not None


def test_a_body_that_is_too_deep_is_not_written() -> None:
    value: Any = []
    for _ in range(9):
        value = [value] * 2
    JsonFormat(10).encode(value)
    with pytest.raises(EncodeError, match="deeper than 9 levels"):
        JsonFormat(9).encode(value)


@pytest.mark.parametrize(
    ("size", "path"), [(100, f"${'[0]' * 61}[100]"), (100_000, "$")], ids=["a small one, whose path is told", "a large one"]
)
def test_how_long_the_part_is_looked_for_that_cannot_be_written_is_not_for_its_sender_to_say(size: int, path: str) -> None:
    value: Any = [*[0] * size, object()]
    for _ in range(61):
        value = [value]
    tried = 0

    def is_written(part: Any) -> bool:
        nonlocal tried
        tried += 1
        return type(part) is int

    assert part_that_fails(value, is_written)[0] == path
    assert tried <= 20_000


class Enveloped(JsonFormat):
    def encode(self, value: Any) -> bytes:
        return super().encode({"v": 1, "value": value})

    def decode(self, data: bytes) -> Any:
        return super().decode(data)["value"]


def test_a_subclass_decides_how_bodies_are_encoded_and_decoded() -> None:
    own = Enveloped()
    assert own.encode(5) == b'{"v":1,"value":5}'
    assert own.decode(own.encode(5)) == 5
    with pytest.raises(EncodeError, match="deeper than 1 levels"):
        Enveloped(1).encode([1])


class Dumped:
    """Is no model of pydantic, although it has a `model_dump`. Fails the first time, and may fail when it is searched."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.fault, self.asked = fault, 0

    def model_dump(self, **how: Any) -> Any:
        self.asked += 1
        if self.asked == 1 and self.fault is not None:
            raise self.fault
        return {"ok": None}


class DumpedParts(Dumped):
    def __iter__(self) -> Any:
        raise LookupError("no parts")


@pytest.mark.parametrize("kind", [Dumped, DumpedParts])
@pytest.mark.parametrize("encode", [JSON.encode, JsonFormat.encode.__get__(JSON)], ids=["as it runs", "in Python"])
def test_a_body_that_fails_is_encoded_once_and_its_first_error_is_reported(encode: Any, kind: Any) -> None:
    fault = OSError("db away")
    body = kind(fault)
    with pytest.raises(EncodeError, match=f"{kind.__name__} cannot be written as JSON: db away") as refused:
        encode(body)
    assert refused.value.__cause__ is fault
    assert [entry.name for entry in traceback.extract_tb(fault.__traceback__)][-1] == "model_dump"


@pytest.mark.parametrize("encode", [JSON.encode, JsonFormat.encode.__get__(JSON)], ids=["as it runs", "in Python"])
def test_a_body_that_is_written_by_a_model_dump_alone_needs_no_parts(encode: Any) -> None:
    assert encode([Dumped()]) == b'[{"ok":null}]'
    with pytest.raises(KeyboardInterrupt):
        encode(Dumped(KeyboardInterrupt()))
