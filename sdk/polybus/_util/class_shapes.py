"""Classes with fields as msgspec writes them: attrs, dataclasses, Structs, NamedTuples and TypedDicts."""

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
    """Types of the type variables of a class and of each of its bases, where one variable may have several."""
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
    """Types of a generic class's variables in one of its methods, from the object that the method is bound to."""
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
    """Replace the variables of a hint by types."""
    if isinstance(hint, TypeVar):
        return types.get(hint, hint)
    parameters = open_variables(hint)
    if types.keys().isdisjoint(parameters):
        return hint
    return hint[tuple(types.get(parameter, parameter) for parameter in parameters)]


def closed(hint: Any) -> Any:
    """Replace the variables of a hint by their default, bound or constraints."""
    variables = (hint,) if isinstance(hint, TypeVar) else open_variables(hint)
    return substituted(hint, {variable: own for variable in variables if (own := _own_type(variable)) is not None})


def _own_type(variable: Any) -> Any:
    if getattr(variable, "has_default", bool)():  # Python 3.13 and typing_extensions
        return variable.__default__
    if constraints := getattr(variable, "__constraints__", ()):
        return Union[constraints]  # noqa: UP007  # of many
    return getattr(variable, "__bound__", None)


def open_variable(hint: Any) -> Any:
    """The type variable that a hint leaves open, or None."""
    return hint if isinstance(hint, TypeVar) else next(iter(open_variables(hint)), None)


def open_variables(hint: Any) -> tuple[Any, ...]:
    """The type variables that a hint leaves open; a class without arguments leaves its own open."""
    given: tuple[Any, ...] = getattr(hint, "__parameters__", ())
    return () if isinstance(hint, type) and not get_args(hint) else given


def own_annotations(kind: type) -> Iterable[str]:
    """Names annotated in a class itself, not in its bases."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.STRING)
    annotations: dict[str, Any] = vars(kind).get("__annotations__", {})
    return annotations


_DEFAULTS: Final = "_field_defaults"
"""Of a NamedTuple, as documented by Python."""
_QUALIFIERS: Final = ("Required", "NotRequired", "ReadOnly")


class ClassField(msgspec.Struct, frozen=True):
    """A field of a class.

    Attributes:
        name: Name in the written form.
        argument: Name of the argument when an object is created.
        type: Type, including its ``Annotated`` metadata.
        required: True without a default.
        default: The default, if it is a value.
        converted: True if a converter creates the value.
    """

    name: str
    argument: str
    type: Any
    required: bool
    default: Any = None
    converted: bool = False


class Shape(msgspec.Struct, frozen=True):
    """Fields of a class, and how they are written.

    Attributes:
        kind: The class.
        fields: Fields that create an object.
        is_array: Written as an array, without names.
        is_closed: Unknown fields are refused.
        tag: Name and value of a tag in the written form.
    """

    kind: type
    fields: tuple[ClassField, ...]
    is_array: bool = False
    is_closed: bool = False
    tag: tuple[str, Any] | None = None

    @classmethod
    def of(cls, hint: Any) -> Shape | None:
        """Read a class, or a generic one with its arguments; None for other types.

        Raises:
            NameError: An annotation has a name that is not known (yet).
            TypeError: No object can be created from its fields.
        """
        kind: Any = get_origin(hint) or hint
        if not isinstance(kind, type):
            return None
        if issubclass(kind, msgspec.Struct):
            config = kind.__struct_config__
            tag = None if config.tag is None else (str(config.tag_field), config.tag)
            return cls(kind, _of_struct(hint, kind), config.array_like, config.forbid_unknown_fields, tag)
        if attrs.has(kind):
            return cls(kind, _of_attrs(hint, kind))
        if dataclasses.is_dataclass(kind):
            return cls(kind, _of_dataclass(hint, kind))
        if hasattr(kind, "__required_keys__"):
            return cls(kind, _of_typed_dict(hint, kind))
        if issubclass(kind, tuple) and hasattr(kind, _DEFAULTS):
            return cls(kind, _of_named_tuple(hint, kind), is_array=True)
        return None

    def written(self, rewritten: Callable[[ClassField], Any]) -> dict[str, Any]:
        """Types in the written form by name, as in a TypedDict, each converted by a function."""
        found: dict[str, Any] = {} if self.tag is None else {self.tag[0]: Required[Literal[self.tag[1]]]}
        for one in self.fields:
            made: Any = Required if one.required else NotRequired
            found[one.name] = made[rewritten(one)]
        return found

    def names(self) -> list[str]:
        return [*([] if self.tag is None else [self.tag[0]]), *(one.name for one in self.fields)]

    def make(self, written: dict[str, Any]) -> Any:
        """Create an object from values by name; for a TypedDict returns the values."""
        if hasattr(self.kind, "__required_keys__"):
            return written
        return self.kind(**{one.argument: written[one.name] for one in self.fields if one.name in written})


def opened(value: Any) -> Any:
    """Convert objects with fields, also in containers, to their written form; models of pydantic stay."""
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
    """Members of a Struct: attribute, name, and default or its factory."""
    return tuple(
        (one.name, one.encode_name, one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory)
        for one in msgspec.structs.fields(kind)
    )


def form_of_struct(value: msgspec.Struct) -> Any:
    """Members as msgspec writes them: by their written names, with the tag, as a list, or without defaults."""
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
    """True if msgspec omits a member: it is the default itself, or an empty container like the default."""
    return item is default or (default in (list, dict, set) and type(item) is default and not item)


def _types(hint: Any, kind: type) -> dict[str, Any]:
    """Types of all annotations of a class, with its type variables replaced."""
    variables = variables_of(hint)
    given = {variable: value for types in variables.values() for variable, value in types.items()}
    owners = {name: base for base in reversed(kind.__mro__) for name in own_annotations(base)}
    return {
        name: substituted(of, {**given, **variables.get(owners.get(name), {})})
        for name, of in get_type_hints(kind, include_extras=True).items()
    }


def _of_struct(hint: Any, kind: Any) -> tuple[ClassField, ...]:
    types = _types(hint, kind)
    found = [
        ClassField(one.encode_name, one.name, types[one.name], one.required, one.default)
        for one in msgspec.structs.fields(kind)
    ]
    return tuple(found)


def _of_attrs(hint: Any, kind: Any) -> tuple[ClassField, ...]:
    types = _types(hint, kind)
    return tuple(
        ClassField(
            one.name,
            one.alias,
            types.get(one.name, Any),
            one.default is attrs.NOTHING,
            one.default,
            one.converter is not None,
        )
        for one in attrs.fields(kind)
        if one.init
    )


def _of_dataclass(hint: Any, kind: Any) -> tuple[ClassField, ...]:
    types = _types(hint, kind)
    if any(isinstance(of, dataclasses.InitVar) for of in types.values()):
        raise TypeError(f"{kind.__name__} has an InitVar, which is not written and so cannot be read again")
    missing = dataclasses.MISSING
    return tuple(
        ClassField(
            one.name,
            one.name,
            types[one.name],
            one.default is missing and one.default_factory is missing,
            one.default,
        )
        for one in dataclasses.fields(kind)
        if one.init
    )


def _of_typed_dict(hint: Any, kind: Any) -> tuple[ClassField, ...]:
    required = kind.__required_keys__
    return tuple(_key(name, of, name in required) for name, of in _types(hint, kind).items())


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


def _of_named_tuple(hint: Any, kind: Any) -> tuple[ClassField, ...]:
    types, defaults = _types(hint, kind), getattr(kind, _DEFAULTS)
    return tuple(
        ClassField(name, name, types.get(name, Any), name not in defaults, defaults.get(name)) for name in kind.__match_args__
    )
