"""Finds the fields of attrs classes, dataclasses, Structs, NamedTuples and TypedDicts, as msgspec encodes them."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec

from ..body import scalar_form


def variables_of(hint: Any) -> dict[Any, dict[Any, Any]]:
    """Return the types of the type variables of a class and, because they may differ, of each base class."""
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
    """Return the types of a generic class's type variables in a method. They depend on the object that it is bound to."""
    method: Any = inspect.unwrap(function, stop=inspect.ismethod)
    if not (inspect.isroutine(method) or inspect.isclass(method)):  # an object with __call__
        method = getattr(method, "__call__", None)  # noqa: B004  # as a bound method
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
    if isinstance(hint, TypeVar):
        return types.get(hint, hint)
    parameters = open_variables(hint)
    if types.keys().isdisjoint(parameters):
        return hint
    return hint[tuple(types.get(parameter, parameter) for parameter in parameters)]


def closed(hint: Any) -> Any:
    """Replace the type variables in a hint with their default, constraints or bound."""
    return substituted(hint, {variable: own for variable in open_variables(hint) if (own := _own_type(variable)) is not None})


def _own_type(variable: Any) -> Any:
    if getattr(variable, "has_default", bool)():  # Python 3.13 and typing_extensions
        return variable.__default__
    if constraints := getattr(variable, "__constraints__", ()):
        return Union[constraints]  # noqa: UP007  # of many
    return getattr(variable, "__bound__", None)


def open_variable(hint: Any) -> Any:
    """Return the first unbound type variable of a hint, or None."""
    return next(iter(open_variables(hint)), None)


def open_variables(hint: Any) -> tuple[Any, ...]:
    """Return the unbound type variables of a hint. The variables of a class without arguments are not included."""
    if isinstance(hint, TypeVar):
        return (hint,)
    given: tuple[Any, ...] = getattr(hint, "__parameters__", ())
    return () if isinstance(hint, type) and not get_args(hint) else given


def own_annotations(kind: type) -> Iterable[str]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.STRING)
    annotations: dict[str, Any] = vars(kind).get("__annotations__", {})
    return annotations


_DEFAULTS: Final = "_field_defaults"
"""Attribute of NamedTuple classes that contains the defaults. It is part of Python's documented API."""
_QUALIFIERS: Final = ("Required", "NotRequired", "ReadOnly")


class ClassField(msgspec.Struct, frozen=True):
    name: str
    """Encoded name."""
    argument: str
    """Name of the constructor argument."""
    type: Any
    """Type, including ``Annotated`` metadata."""
    required: bool
    default: Any = None
    """Default value, unless a factory creates it."""
    converted: bool = False
    """True if attrs converts the value."""


class Shape(msgspec.Struct, frozen=True):
    """The encoded form of a class. `fields` are the constructor's arguments."""

    kind: type
    fields: tuple[ClassField, ...]
    is_array: bool = False
    """True if objects are encoded as arrays without names."""
    is_closed: bool = False
    """True if unknown fields are errors."""
    tag: tuple[str, Any] | None = None
    """Name and value of the tag in the encoded form."""

    @classmethod
    def of(cls, hint: Any) -> Shape | None:
        """Return the shape of a class, which may be generic, or None for other types.

        Raises `NameError` for an undefined name in an annotation, and `TypeError` if the encoded fields cannot make an object.
        """
        kind: Any = get_origin(hint) or hint
        if not isinstance(kind, type):
            return None
        if issubclass(kind, msgspec.Struct):
            config = kind.__struct_config__
            tag = None if config.tag is None else (str(config.tag_field), config.tag)
            return cls(kind, _of_struct(kind, _types(hint, kind)), config.array_like, config.forbid_unknown_fields, tag)
        if attrs.has(kind):
            return cls(kind, _of_attrs(kind, _types(hint, kind)))
        if dataclasses.is_dataclass(kind):
            return cls(kind, _of_dataclass(kind, _types(hint, kind)))
        if hasattr(kind, "__required_keys__"):
            return cls(kind, _of_typed_dict(kind, _types(hint, kind)))
        if issubclass(kind, tuple) and hasattr(kind, _DEFAULTS):
            return cls(kind, _of_named_tuple(kind, _types(hint, kind)), is_array=True)
        return None

    def written(self, rewritten: Callable[[ClassField], Any]) -> dict[str, Any]:
        """Return the fields of a TypedDict for the encoded form, with each type converted by `rewritten`."""
        found: dict[str, Any] = {} if self.tag is None else {self.tag[0]: Required[Literal[self.tag[1]]]}
        for one in self.fields:
            made: Any = Required if one.required else NotRequired
            found[one.name] = made[rewritten(one)]
        return found

    def names(self) -> list[str]:
        return [*([] if self.tag is None else [self.tag[0]]), *(one.name for one in self.fields)]

    def make(self, written: dict[str, Any]) -> Any:
        """Create an object from its encoded fields. For a TypedDict these are returned unchanged."""
        if hasattr(self.kind, "__required_keys__"):
            return written
        return self.kind(**{one.argument: written[one.name] for one in self.fields if one.name in written})


def opened(value: Any) -> Any:
    """Convert objects, including objects in containers, to their encoded form. pydantic models are left unchanged."""
    kind = type(value)
    if hasattr(kind, "model_dump"):
        return value
    if isinstance(value, enum.Enum):
        return opened(value.value)
    if isinstance(value, msgspec.Struct):
        return opened(form_of_struct(value))
    if fields := attrs.fields(kind) if attrs.has(kind) else getattr(kind, "__dataclass_fields__", {}).values():
        return {one.name: opened(getattr(value, one.name)) for one in fields if hasattr(value, one.name)}
    if isinstance(value, Mapping):
        return {opened(name): opened(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [opened(item) for item in value]
    return {opened(item) for item in value} if isinstance(value, (set, frozenset)) else scalar_form(value)


@lru_cache(256)
def _members_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return the attribute, encoded name, and default or factory of each member of a Struct."""
    return tuple(
        (one.name, one.encode_name, one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory)
        for one in msgspec.structs.fields(kind)
    )


def form_of_struct(value: msgspec.Struct) -> Any:
    """Return the members of a Struct as msgspec encodes them, according to the options of its class."""
    config = value.__struct_config__
    if config.array_like:
        tag = [] if config.tag is None else [config.tag]
        return tag + [getattr(value, name) for name in value.__struct_fields__]
    made: dict[Any, Any] = {} if config.tag is None else {config.tag_field: config.tag}
    for attribute, name, default in _members_of(type(value)):
        item = getattr(value, attribute)
        if item is not msgspec.UNSET and not (config.omit_defaults and _is_default(item, default)):
            made[name] = item
    return made


def _is_default(item: Any, default: Any) -> bool:
    """Return True if msgspec omits the member, because it is its default or an empty container of the default's type."""
    return item is default or (default in (list, dict, set) and type(item) is default and not item)


def _types(hint: Any, kind: type) -> dict[str, Any]:
    variables = variables_of(hint)
    given = {variable: value for types in variables.values() for variable, value in types.items()}
    owners = {name: base for base in reversed(kind.__mro__) for name in own_annotations(base)}
    return {
        name: substituted(of, {**given, **variables.get(owners.get(name), {})})
        for name, of in get_type_hints(kind, include_extras=True).items()
    }


def _of_struct(kind: Any, types: dict[str, Any]) -> tuple[ClassField, ...]:
    return tuple(
        ClassField(one.encode_name, one.name, types[one.name], one.required, one.default)
        for one in msgspec.structs.fields(kind)
    )


def _of_attrs(kind: Any, types: dict[str, Any]) -> tuple[ClassField, ...]:
    return tuple(
        ClassField(
            one.name, one.alias, types.get(one.name, Any), one.default is attrs.NOTHING, one.default, one.converter is not None
        )
        for one in attrs.fields(kind)
        if one.init
    )


def _of_dataclass(kind: Any, types: dict[str, Any]) -> tuple[ClassField, ...]:
    if any(isinstance(of, dataclasses.InitVar) for of in types.values()):
        raise TypeError(f"{kind.__name__} has an InitVar, which is not encoded and therefore cannot be decoded")
    missing = dataclasses.MISSING
    return tuple(
        ClassField(one.name, one.name, types[one.name], one.default is missing and one.default_factory is missing, one.default)
        for one in dataclasses.fields(kind)
        if one.init
    )


def _of_typed_dict(kind: Any, types: dict[str, Any]) -> tuple[ClassField, ...]:
    return tuple(_key(name, of, name in kind.__required_keys__) for name, of in types.items())


def _key(name: str, hint: Any, required: bool) -> ClassField:
    said: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated and _qualifier(hint.__origin__) is not None:  # either may be the outer one
        hint, said = hint.__origin__, hint.__metadata__
    while (word := _qualifier(hint)) is not None:
        required = {"Required": True, "NotRequired": False}.get(word, required)
        hint = get_args(hint)[0]
    return ClassField(name, name, Annotated[(hint, *said)] if said else hint, required)


def _qualifier(hint: Any) -> str | None:
    word = getattr(get_origin(hint), "_name", None) or getattr(get_origin(hint), "__name__", None)
    return word if word in _QUALIFIERS and get_origin(hint) is not Annotated else None


def _of_named_tuple(kind: Any, types: dict[str, Any]) -> tuple[ClassField, ...]:
    defaults = getattr(kind, _DEFAULTS)
    return tuple(
        ClassField(name, name, types.get(name, Any), name not in defaults, defaults.get(name)) for name in kind.__match_args__
    )
