"""Agreement of a handler's annotations with the types of its `Subject`, as far as registration can see."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from ..._validation import type_name
from .signature import items_of

_CONTAINERS: Final = (list, set, frozenset, dict, Sequence, Iterable, Collection, Mapping)


def check_body(function: str, parameter: str, hint: Any, takes: Any, of: str = "its Subject") -> None:
    """Check that what is asked under a subject is what its handler reads.

    Args:
        function: Its name.
        parameter: The name of that which is the body.
        hint: The annotation.
        takes: The type that was promised.
        of: Where it was promised: the subject, or the method of a contract.

    Raises:
        TypeError: It is not.
    """
    if not _accepts(hint, takes):
        raise TypeError(
            f"{function} reads {parameter!r} as {type_name(hint)}, and {of} takes {type_name(takes)}: annotate it so, or "
            f"change {_promise(of)}"
        )


def read_as(hint: Any, takes: Any) -> Any:
    """Find the type that a body is read as: the annotation, with what the promised type says beyond it.

    Args:
        hint: The annotation; None where there is none.
        takes: The type that was promised.
    """
    if hint is None:
        return takes
    if takes is Any or hint == takes or _bare(hint) != _bare(takes):
        return hint
    return Annotated[(takes, *hint.__metadata__)] if get_origin(hint) is Annotated else takes


def _bare(hint: Any) -> Any:
    """A type without what its ``Annotated`` say, at any depth."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    origin, arguments = get_origin(hint), get_args(hint)
    if not arguments or origin is Literal:
        return hint
    if origin in (Union, UnionType):
        return frozenset(map(_bare, arguments))
    return origin, *map(_bare, arguments)


def check_result(function: str, hint: Any, returns: Any, of: str = "its Subject") -> None:
    """Check that a handler answers what its subject, or the method of a contract, promises.

    Raises:
        TypeError: It does not.
    """
    hint = items_of(hint)
    if not _accepts(returns, hint):
        raise TypeError(
            f"{function} returns {type_name(hint)}, and {of} returns {type_name(returns)}: annotate it so, or "
            f"change {_promise(of)}"
        )


def _promise(of: str) -> str:
    return of.replace("its ", "the ")


def _accepts(wanted: Any, given: Any) -> bool:
    """Tell whether a value of one type may be given where another is wanted; also where that cannot be seen."""
    wanted, given = _plain(wanted), _plain(given)
    if wanted in (Any, object) or given in (Any, object) or wanted == given:
        return True
    if get_origin(given) in (Union, UnionType):
        return all(_accepts(wanted, choice) for choice in get_args(given))
    if get_origin(wanted) in (Union, UnionType):
        return any(_accepts(choice, given) for choice in get_args(wanted))
    one, other = get_origin(wanted) or wanted, get_origin(given) or given
    if not (isinstance(one, type) and isinstance(other, type)):
        return True
    if not (_is_subclass(other, one) or one is float and other is int):
        return False
    return all(map(_accepts, *items)) if (items := _items(wanted, given)) else True


def _items(wanted: Any, given: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The types of the items of two containers, where each has as many."""
    if (get_origin(wanted) or wanted) not in _CONTAINERS or (get_origin(given) or given) not in _CONTAINERS:
        return None
    items, others = get_args(wanted), get_args(given)
    return (items, others) if len(items) == len(others) else None


def _is_subclass(kind: type, of: type) -> bool:
    try:
        return issubclass(kind, of)
    except TypeError:  # a protocol with members that are no methods
        return True


def _plain(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return type(None) if hint is None else hint
