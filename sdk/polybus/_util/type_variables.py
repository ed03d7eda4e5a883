"""The types that the variables of generic classes stand for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin


def variables_of(hint: Any) -> dict[Any, dict[Any, Any]]:
    """Find what the variables of a class, and of each of its bases, stand for: one may stand for several types there."""
    found: dict[Any, dict[Any, Any]] = {}
    waiting: list[tuple[Any, Mapping[Any, Any]]] = [(hint, {})]
    while waiting:
        one, outer = waiting.pop()
        kind = get_origin(one) or one
        given = [substituted(argument, outer) for argument in get_args(one)]
        found[kind] = types = dict(zip(getattr(kind, "__parameters__", ()), given, strict=False))
        bases = vars(kind).get("__orig_bases__", kind.__bases__)
        waiting += ((base, types) for base in bases if isinstance(get_origin(base) or base, type))  # NamedTuple is a function
    return found


def variables_of_method(function: Callable[..., Any]) -> Mapping[Any, Any]:
    """Find what the variables of a generic class stand for in one of its methods, by the object that this is bound to."""
    method: Any = inspect.unwrap(function, stop=inspect.ismethod)
    if not (inspect.isroutine(method) or inspect.isclass(method)):  # an object with __call__
        method = getattr(method, "__call__", None)  # noqa: B004  # as it is bound
    if not inspect.ismethod(method):
        return {}
    owner: Any = method.__self__
    kind = owner if isinstance(owner, type) else type(owner)
    given = inspect.getattr_static(owner, "__orig_class__", None)  # of Rows[User]()
    variables = variables_of(given if get_origin(given) is kind else kind)
    for base in kind.__mro__:
        if any(getattr(value, "__func__", value) is method.__func__ for value in vars(base).values()):
            return variables.get(base, {})
    return {}


def substituted(hint: Any, types: Mapping[Any, Any]) -> Any:
    """Put types in place of the variables of a hint."""
    if isinstance(hint, TypeVar):
        return types.get(hint, hint)
    parameters = open_variables(hint)
    if types.keys().isdisjoint(parameters):
        return hint
    return hint[tuple(types.get(parameter, parameter) for parameter in parameters)]


def closed(hint: Any) -> Any:
    """Put in place of the variables of a hint what they say themselves: their default, bound or constraints."""
    variables = (hint,) if isinstance(hint, TypeVar) else open_variables(hint)
    return substituted(hint, {variable: own for variable in variables if (own := _own_type(variable)) is not None})


def _own_type(variable: Any) -> Any:
    if getattr(variable, "has_default", bool)():  # of Python 3.13, and of typing_extensions
        return variable.__default__
    if constraints := getattr(variable, "__constraints__", ()):
        return Union[constraints]  # noqa: UP007  # of many
    return getattr(variable, "__bound__", None)


def open_variable(hint: Any) -> Any:
    """The type variable that a hint leaves open, or None."""
    return hint if isinstance(hint, TypeVar) else next(iter(open_variables(hint)), None)


def open_variables(hint: Any) -> tuple[Any, ...]:
    """The type variables that a hint leaves open; those of a class without its arguments stand for anything."""
    given: tuple[Any, ...] = getattr(hint, "__parameters__", ())
    return () if isinstance(hint, type) and not get_args(hint) else given


def own_annotations(kind: type) -> Iterable[str]:
    """The names that are annotated in a class itself, not in its bases."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.STRING)
    annotations: dict[str, Any] = vars(kind).get("__annotations__", {})
    return annotations
