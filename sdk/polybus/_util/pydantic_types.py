"""Decodes types with pydantic: its own models and constraints, annotated-types, and types that msgspec doesn't support.

pydantic is imported when a type first needs it. If pydantic cannot decode a class, or would decode it differently from msgspec,
the class is replaced by a TypedDict with its fields, and the object is created from these fields.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Mapping, MutableMapping, Reversible
from types import UnionType
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin

import msgspec

from ..body import is_of_pydantic
from .class_shapes import ClassField, Shape, opened

_PACKAGES: Final = ("pydantic", "pydantic_core", "annotated_types", "pydantic_extra_types", "fastapi")
_SERIALIZERS: Final = ("PlainSerializer", "WrapSerializer", "EncodedBytes", "EncodedStr")
_ALIASES: Final = ("alias", "validation_alias", "serialization_alias")
_OF_HTTP: Final = ("Query", "Header", "Cookie", "Form", "File")
_OCTETS: Final = (bytes, bytearray, memoryview)
_NO_VALUES: Final = (type, Callable)
_LAZY: Final = (Iterator, Generator)
_UNSEEN: Final = (Iterable, Reversible, Container)
"""msgspec doesn't validate the items of these containers."""
_LISTS: Final = (*_UNSEEN, Collection)
"""pydantic validates the items of these containers late or never."""
_CHECKS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
_META: Final = (*_CHECKS, "title", "description", "examples")


def has_own(target: Any) -> bool:
    """Return True if a type contains pydantic types or constraints, or items that msgspec doesn't validate.

    Raises `NameError` for an undefined name in an annotation, and `TypeError` if a class cannot be created from its fields.
    """
    return any(is_own(one) or (get_origin(one) in _UNSEEN and get_args(one)) for one in _walk(target, []))


def ambiguous(target: Any) -> Any:
    """Return a union within a type if it has several non-model classes that encode alike. Otherwise return None."""
    unions = (one for one in _walk(target, []) if get_origin(one) in (Union, UnionType))
    return next((one for one in unions if sum(map(_is_untagged, get_args(one))) > 1), None)


def _is_untagged(hint: Any) -> bool:
    if (get_origin(hint) or hint) in (dict, Mapping, MutableMapping):
        return True
    shape = None if hasattr(hint, "model_validate") else Shape.of(hint)
    return shape is not None and shape.tag is None


def adapter_of(target: Any, *, narrows: bool = False) -> Any:
    """Return a pydantic `TypeAdapter` that decodes a type as polybus encodes it.

    If `narrows` is set, it accepts objects converted by `opened`, and reduces instances of a model's subclasses to the model.

    Raises:
        NameError: If an annotation refers to an undefined name.
        TypeError: If pydantic isn't installed or cannot decode the type in that form. The message says what to write instead.
    """
    try:
        from pydantic import PydanticUserError, TypeAdapter
    except ImportError:
        text = "pydantic 2, which checks what its Annotated says, is not installed: msgspec.Meta does without"
        raise TypeError(text) from None
    try:
        return TypeAdapter(_Rewriting(narrows).of(target))
    except PydanticUserError as error:
        if error.code == "class-not-fully-defined":
            raise NameError(str(error)) from error
        raise TypeError(str(error).partition("\n")[0]) from error
    except ImportError as error:  # EmailStr
        raise TypeError(str(error)) from error


# -- contents of a type ------------------------------------------------------------------------------------------------


def _walk(hint: Any, seen: list[Any]) -> Iterator[Any]:
    """Yield a type, its metadata and its fields, recursively. pydantic types are not searched."""
    if any(hint is one for one in seen):
        return
    seen.append(hint)
    yield hint
    if is_own(hint):
        return
    if get_origin(hint) is Annotated:
        for one in hint.__metadata__:
            yield from (one, *getattr(one, "__metadata__", ()))
    for one in _inner(hint):
        yield from _walk(one, seen)
    if (shape := Shape.of(hint)) is not None:
        for field in shape.fields:
            yield field.default
            yield from _walk(field.type, seen)


def _inner(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return ()
    if (named := _named(hint)) is not hint:
        return (named,)
    arguments = get_args(hint)
    return arguments[:1] if get_origin(hint) is Annotated else arguments


def _named(hint: Any) -> Any:
    if isinstance(hint, NewType):
        return hint.__supertype__
    named = get_origin(hint) or hint
    if type(named).__name__ != "TypeAliasType":
        return hint
    given = get_args(hint)
    return named.__value__[given] if given else named.__value__


def is_own(found: Any) -> bool:
    """Return True if a type or a part of its metadata belongs to pydantic or a related package."""
    kind: Any = get_origin(found) or found
    if type(kind).__name__ == "TypeAliasType":
        return _is_of_packages(kind)
    kind = kind if isinstance(kind, type) else type(kind)
    if any(map(_is_of_packages, kind.__mro__)) or is_of_pydantic(kind):
        return True
    return hasattr(kind, "model_validate") or hasattr(kind, "__pydantic_config__")


def _is_of_packages(found: Any) -> bool:
    return str(found.__module__).partition(".")[0] in _PACKAGES


# -- the type for pydantic ---------------------------------------------------------------------------------------------


class _Rewriting:
    """Replaces the parts of a type that pydantic cannot decode."""

    def __init__(self, narrows: bool) -> None:
        self._narrows = narrows
        self._made: list[tuple[Any, Any]] = []
        self._within: list[Any] = []
        self._recursive: list[Any] = []

    def of(self, hint: Any, beside: tuple[Any, ...] = ()) -> Any:
        if is_own(hint):
            return self._of_own(hint, beside)
        if hint in _OCTETS:
            return _octets(hint)
        if (named := _named(hint)) is not hint:
            return self._of_named(hint, named)
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return Annotated[(self.of(arguments[0], beside), *map(_said, arguments[1:]))]
        if (shape := Shape.of(hint)) is not None:
            return self._of_class(hint, shape)
        if origin in (Union, UnionType):
            choices = tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in arguments)
            return Union[tuple(self.of(one, choices) for one in arguments if one is not msgspec.UnsetType)]  # noqa: UP007  # of many
        if (origin or hint) in _NO_VALUES:
            raise TypeError(f"no message can provide the value of {hint}")
        if not arguments or origin is Literal:
            return hint
        if origin in _LAZY:
            raise TypeError(f"{hint} would be validated too late, during iteration: use list[...]")
        return (list if origin in _LISTS else origin)[tuple(one if one is ... else self.of(one) for one in arguments)]

    def _of_own(self, hint: Any, beside: tuple[Any, ...]) -> Any:
        if not self._narrows or not isinstance(hint, type):
            return _checked(hint)
        if hasattr(hint, "model_validate"):
            return _narrowed(hint, beside)
        shape = Shape.of(hint)
        return hint if shape is None else self._of_class(hint, shape)

    def _of_named(self, hint: Any, named: Any) -> Any:
        if any(hint is one for one in self._within):
            self._recursive.append(hint)
            return hint
        self._within.append(hint)
        made = self.of(named)
        self._within.pop()
        if made == named:
            return hint
        if any(hint is one for one in self._recursive):
            raise TypeError(f"the type {hint} contains itself, with constraints in it: make it a model or another class")
        return made

    def _of_class(self, hint: Any, shape: Shape) -> Any:
        from pydantic import WrapValidator
        from typing_extensions import TypedDict  # pydantic depends on it

        for known, made in self._made:
            if known == hint:
                return made
        name = shape.kind.__name__
        make: Any = TypedDict
        fields = make(name, {})
        fields.__doc__ = shape.kind.__doc__
        fields.__pydantic_config__ = {"extra": "forbid" if shape.is_closed else "ignore"}
        described = [_ArraySchema(shape)] if shape.is_array else []
        made = Annotated[fields, WrapValidator(_maker(shape, self._narrows)), *described]
        self._made.append((hint, made))  # it may contain itself
        fields.__annotations__ = shape.written(lambda field: self._of_field(field, name))
        return made

    def _of_field(self, field: ClassField, owner: str) -> Any:
        where = f"{field.name!r} of {owner}"
        if hasattr(field.default, "default_factory") and is_own(field.default):
            raise TypeError(f"{where} has a Field() as its default, which only works in models: put it into Annotated")
        if field.converted:
            return Any
        said = field.type.__metadata__ if get_origin(field.type) is Annotated else ()
        if any(_has_alias(one) for one in said if is_own(one)):
            raise TypeError(f"{where} has an alias, which only works in models: make {owner} a model")
        return self.of(field.type)


def _narrowed(model: Any, beside: tuple[Any, ...]) -> Any:
    """Return a type that reduces instances of a model's subclasses to the model itself.

    The instance isn't validated again, because a model may not be able to decode its own encoded form.
    """
    from pydantic import WrapValidator

    def narrow(value: Any, check: Callable[[Any], Any]) -> Any:
        kind = next((one for one in type(value).__mro__ if one is model or one in beside), None)
        if kind is None:
            return check(value)
        if kind is type(value):
            return value
        made = value.model_copy()
        object.__setattr__(made, "__class__", kind)  # fields of the subclass aren't encoded
        return made

    return Annotated[model, WrapValidator(narrow)]


def _maker(shape: Shape, narrows: bool) -> Callable[[Any, Callable[[Any], Any]], Any]:
    names = shape.names()

    def make(value: Any, check: Callable[[Any], Any]) -> Any:
        if not hasattr(shape.kind, "__required_keys__") and isinstance(value, shape.kind):
            if not narrows:
                return value  # from a protocol that transmits classes
            value = opened(value)
        if shape.is_array and isinstance(value, (list, tuple)):
            if len(value) > len(names):
                raise ValueError(f"an array of {len(value)} items, but there are at most {len(names)}")
            value = dict(zip(names, value, strict=False))
        return shape.make(check(value))

    make.__name__ = make.__qualname__ = shape.kind.__name__
    return make


class _ArraySchema:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def __get_pydantic_json_schema__(self, schema: Any, describe: Any) -> dict[str, Any]:
        members = describe.resolve_ref_schema(describe(schema))
        required = [name for name in self._shape.names() if name in members.get("required", ())]
        made = {
            "title": self._shape.kind.__name__,
            "type": "array",
            "prefixItems": [members["properties"][name] for name in self._shape.names()],
            "minItems": len(required),
            "maxItems": len(self._shape.names()),
        }
        return made


def unwritable(target: Any) -> str | None:
    """Return the reason why values of a type would be encoded differently from its declaration, or None if none is known."""
    try:
        found = list(_walk(target, []))
    except Exception:  # an undefined name, or any error of the libraries, which is reported elsewhere
        return None
    try:
        for one in found:
            _ = _checked(one) if is_own(one) else one
            _refuse_serializer(one)
    except TypeError as error:
        return str(error)
    return None


def _checked(hint: Any, seen: list[Any] | None = None) -> Any:
    """Return a pydantic type. Raises `TypeError` if msgspec would encode it in another form."""
    seen = [] if seen is None else seen
    kind: Any = get_origin(hint) or hint
    if any(kind is one for one in seen):
        return hint
    seen.append(kind)
    if any(str(base.__module__).startswith("pydantic.v1") for base in getattr(kind, "__mro__", ())):
        raise TypeError(
            f"{kind.__name__} is a pydantic.v1 model, which Pydantic 2 cannot validate: make it a pydantic.BaseModel"
        )
    is_model = hasattr(kind, "model_validate")
    shape = None if is_model else Shape.of(hint)
    fields = _fields_of_model(kind) if is_model else {} if shape is None else {one.name: [one.type] for one in shape.fields}
    for name, said in fields.items():
        for one in [inner for part in said for inner in _walk(part, [])]:
            if is_own(one):
                _ = _checked(one, seen)
            elif is_model and isinstance(one, msgspec.Meta) and any(getattr(one, word) is not None for word in _CHECKS):
                raise TypeError(f"{kind.__name__} has msgspec.Meta at {name!r}, which Pydantic does not check: use Field(...)")
    for form, found in () if shape is None else _forms_of(kind, shape):
        if found:
            raise TypeError(f"{kind.__name__} has {form}, which only works in models: make it a BaseModel")
    return hint


def _fields_of_model(model: Any) -> dict[str, list[Any]]:
    return {name: [one.annotation, *one.metadata] for name, one in getattr(model, "model_fields", {}).items()}


def _forms_of(kind: Any, shape: Shape) -> Iterator[tuple[str, Any]]:
    """Yield each feature that makes pydantic encode a dataclass differently, and True if the class uses it."""
    decorated = getattr(kind, "__pydantic_decorators__", None)
    for word in ("field_serializers", "model_serializers", "computed_fields"):
        yield f"a {word[:-1]}", getattr(decorated, word, None)
    config = getattr(kind, "__pydantic_config__", {})
    yield "an alias_generator", config.get("alias_generator")
    for field in shape.fields:
        for one in (field.default, *_walk(field.type, [])):
            if is_own(one):
                yield f"an alias of {field.name!r}", _has_alias(one)
            yield f"a serializer of {field.name!r}", type(one).__name__ in _SERIALIZERS
            yield f"bytes in {field.name!r}", isinstance(one, type) and one in _OCTETS
            yield f"msgspec.Meta at {field.name!r}", isinstance(one, msgspec.Meta)
            yield f"exclude= at {field.name!r}", getattr(one, "exclude", None) is True


def _has_alias(found: Any) -> bool:
    return any(getattr(found, name, None) is not None for name in _ALIASES)


def _said(found: Any) -> Any:
    """Convert ``Annotated`` metadata for pydantic. Raises `TypeError` if pydantic has no equivalent."""
    if get_origin(found) is Annotated:
        raise TypeError(f"{found!r:.100} has no effect inside Annotated: it is a type, so use it as the type")
    _refuse_serializer(found)
    if type(found).__name__ in _OF_HTTP and is_own(found):
        raise TypeError(f"{type(found).__name__}() exists only in HTTP: headers are in ctx.message.headers")
    if is_own(found) and (getattr(found, "embed", None) or _has_alias(found)):
        raise TypeError(f"{found!r:.100} sets an alias, which only works in models: make it a field of a model")
    if type(found).__name__ == "Timezone" and is_own(found):
        raise TypeError(f"{found!r:.100}, which Pydantic does not check: use AwareDatetime or NaiveDatetime")
    if not isinstance(found, msgspec.Meta):
        return found
    from pydantic import Field

    if found.tz is not None:
        raise TypeError(
            "msgspec.Meta(tz=...) has no effect on types that Pydantic validates: use AwareDatetime or NaiveDatetime"
        )
    return Field(**{name: value for name in _META if (value := getattr(found, name)) is not None})


def _refuse_serializer(found: Any) -> None:
    if type(found).__name__ in _SERIALIZERS and is_own(found):
        raise TypeError(
            f"{found!r:.100} sets how a value is serialized, which only works in models: make it a field of a model"
        )


def _octets(kind: type) -> Any:
    """Return a bytes type that decodes base64. With pydantic's own type, the result would be the characters of the string."""
    from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

    schema = WithJsonSchema({"type": "string", "contentEncoding": "base64"})
    return Annotated[bytes, BeforeValidator(_from_base64), AfterValidator(kind), schema]


def _from_base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise ValueError("invalid base64 encoded string") from None
