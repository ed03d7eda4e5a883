"""What is known of classes without an object: the types behind their variables, and their written form."""

from __future__ import annotations

import enum
from types import MethodType
from typing import Any, Generic, Protocol

import pytest
from typing_extensions import TypeVar

from polybus._core.handlers.handler import check_result
from polybus._util.class_shapes import closed, opened, variables_of_method

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
    [
        (Users().first, {T: bytes}),
        (Users.first, {}),
        (elsewhere, {}),
        (MethodType(elsewhere, Users()), {}),
    ],
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
