"""The types that the variables of generic classes stand for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_origin


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


def substituted(hint: Any, types: Mapping[Any, Any]) -> Any:
    """Put types in place of the variables of a hint."""
    if isinstance(hint, TypeVar):
        return types.get(hint, hint)
    parameters = open_variables(hint)
    return hint if not parameters else hint[tuple(types.get(parameter, parameter) for parameter in parameters)]


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
