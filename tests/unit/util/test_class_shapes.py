"""What is known of classes without an object: the types behind their variables, and their written form."""

import enum
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, Protocol, get_origin

import pytest
from typing_extensions import TypeVar

from polybus._core.handlers.handler import check_result
from polybus._util.class_shapes import closed, opened, variables_of_method
from polybus._util.pydantic_types import _Rewriting

T = TypeVar("T")
D = TypeVar("D", default=int)
B = TypeVar("B", bound=str)


class Rows(list[str], Generic[T]):
    """A list whose variable is not its items."""

    def first(self) -> T: ...  # type: ignore[empty-body]


class Users(Rows[bytes]): ...


class Named(Protocol):
    name: str


def elsewhere(self: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "variables"),
    [(Users().first, {T: bytes}), (Users.first, {}), (elsewhere, {}), (MethodType(elsewhere, Users()), {})],
    ids=["a method", "of no object", "a function", "bound to an object of a class that has it not"],
)
def test_the_variables_of_a_method_come_from_its_object(function: Any, variables: dict[Any, Any]) -> None:
    assert variables_of_method(function) == variables


@pytest.mark.parametrize(("variable", "type_"), [(D, int), (B, str), (T, T)], ids=str)
def test_an_open_variable_is_its_default_or_bound(variable: Any, type_: Any) -> None:
    assert closed(variable) == type_


def test_a_member_of_an_enum_is_written_as_its_value() -> None:
    Pair = enum.Enum("Pair", {"ONE": (1, 2)})
    assert opened({"pair": [Pair["ONE"]]}) == {"pair": [[1, 2]]}


@pytest.mark.parametrize(
    ("promised", "given", "fits"),
    [
        (list[int], list[str], False),
        (list[int], Rows[str], True),  # the variable of Rows is not its item
        (dict[str, int], dict[str, str], False),
        (dict[str, int], dict, True),
        (Named, int, True),  # a class does not say which attributes its objects have
        (float, int, True),
        (int, float, False),
        (int | None, int, True),
        (int, int | None, False),
    ],
    ids=str,
)
def test_an_annotation_that_cannot_be_what_was_promised_is_a_type_error(promised: Any, given: Any, fits: bool) -> None:
    if fits:
        check_result("the handler f", given, promised)
    else:
        with pytest.raises(TypeError, match="the handler f returns"):
            check_result("the handler f", given, promised)


class TypeAliasType:
    """As of the statement `type`, which Python 3.11 has not: it may contain itself."""

    __value__: Any = None


def named(make: Callable[[Any], Any]) -> Any:
    name = TypeAliasType()
    name.__value__ = make(name)
    return name


@pytest.mark.parametrize(
    "make", [lambda name: dict.__class_getitem__((str, name)), lambda name: list[int]], ids=["itself", "no octets"]
)
def test_a_named_type_stays_where_pydantic_can_read_it(make: Any) -> None:
    name = named(make)
    assert _Rewriting(narrows=False).of(name) is name


def test_a_named_type_with_parts_to_replace_is_replaced_unless_it_contains_itself() -> None:
    octets = _Rewriting(narrows=False).of(named(lambda name: list[bytes]))
    assert get_origin(octets) is list
    with pytest.raises(TypeError, match="contains itself, with constraints in it"):
        _Rewriting(narrows=False).of(named(lambda name: dict.__class_getitem__((bytes, name))))
