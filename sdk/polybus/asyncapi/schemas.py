"""Creates JSON schemas for Python types with msgspec and pydantic, in the AsyncAPI 3 dialect (draft 07)."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
import msgspec.inspect

from ..plugins.tools import adapter_of, convert, is_read_by_pydantic, shown, writes_aliases

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Keys:
    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def free(self, name: str) -> str:
        """Reserve a key that resembles a name, adding a number if the name is taken."""
        clean = key = _UNSAFE.sub("_", name).strip("_") or "empty"
        number = self._last.get(clean, 1)
        while key in self._taken:
            number += 1
            key = f"{clean}_{number}"
        self._last[clean] = number
        self._taken.add(key)
        return key


Schema: typing.TypeAlias = "dict[str, Any]"
_Mode: typing.TypeAlias = Literal["validation", "serialization"]
_Wanted: typing.TypeAlias = "tuple[Any, _Mode]"

REFERENCE: Final = "#/components/schemas/"
OMITS: Final = "x-polybus-omits-defaults"
"""Keyword that marks a class that omits default values when written."""


class Schemas:
    """Schemas of all types that a bus reads or writes. A model's members may have different names when written."""

    def __init__(self, read: Iterable[Any], written: Iterable[Any] = ()) -> None:
        self.keys: Keys = Keys()
        self.components: dict[str, Schema] = {}
        self._of: dict[Any, Schema] = {}
        wanted: dict[Any, _Wanted] = {(_key(kind), "validation"): (kind, "validation") for kind in read}
        wanted |= {(_key(kind), "serialization"): (kind, "serialization") for kind in written}
        models = [one for one in wanted.values() if _is_read_by_pydantic(one[0])]
        self._add([one for one in wanted.values() if one not in models], _of_msgspec)
        if models:
            self._add(models, _of_pydantic)
        self.components = {name: self.components[name] for name in sorted(self.components)}

    def of(self, kind: Any, *, written: bool = False) -> Schema:
        return self._of[_key(kind), "serialization" if written else "validation"]

    def _add(
        self, kinds: list[_Wanted], schemas_of: Callable[[list[_Wanted]], tuple[Iterable[Schema], dict[str, Schema]]]
    ) -> None:
        readable = []
        for kind, mode in kinds:
            try:
                schemas_of([(kind, mode)])
                readable.append((kind, mode))
            except Exception:  # a type of a library, which an adapter reads
                self._of[_key(kind), mode] = {"description": f"{_name(kind)}, which JSON Schema cannot describe"}
        try:
            made = [(readable, *schemas_of(readable))]
        except KeyError:  # the names of two classes differ only in non-ASCII letters
            made = [([one], *schemas_of([one])) for one in readable]
        for group, schemas, components in made:
            names = {name: self.keys.free(name) for name in components}
            self.components |= {names[name]: draft_07(schema, names) for name, schema in components.items()}
            for (kind, mode), schema in zip(group, schemas, strict=True):
                self._of[_key(kind), mode] = draft_07(schema, names)


def _key(kind: Any) -> Any:
    """Return the type itself, or its `id` if it is unhashable, like ``Annotated[int, {"unit": "m"}]``."""
    try:
        hash(kind)
    except TypeError:
        return id(kind)
    return kind


def _is_read_by_pydantic(kind: Any) -> bool:
    try:
        return is_read_by_pydantic(kind)
    except Exception:  # it contains an unknown name, or no library can read it
        return False


def _of_msgspec(kinds: list[_Wanted]) -> tuple[Iterable[Schema], dict[str, Schema]]:
    schemas, components = msgspec.json.schema_components([kind for kind, _ in kinds], ref_template=REFERENCE + "{name}")
    for kind in _structs([kind for kind, _ in kinds]):
        if kind.__struct_config__.omit_defaults and kind.__name__ in components:
            components[kind.__name__][OMITS] = True
    return schemas, components


def _structs(kinds: list[Any]) -> set[type[msgspec.Struct]]:
    found, waiting, seen = set[type[msgspec.Struct]](), list[Any](msgspec.inspect.multi_type_info(kinds)), set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, (tuple, list)):
            waiting.extend(one)
        elif isinstance(one, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(one) not in seen:  # types can be recursive
            seen.add(id(one))
            waiting.extend(getattr(one, name) for name in one.__struct_fields__)
            if isinstance(one, msgspec.inspect.StructType):
                found.add(one.cls)
    return found


def _of_pydantic(kinds: list[_Wanted]) -> tuple[Iterable[Schema], dict[str, Schema]]:
    from pydantic import TypeAdapter  # installed, because the types contain pydantic types
    from pydantic.json_schema import GenerateJsonSchema

    class AsWritten(GenerateJsonSchema):
        def model_schema(self, schema: Any) -> dict[str, Any]:
            aliases = self.by_alias
            self.by_alias = aliases and (self.mode == "validation" or writes_aliases(schema["cls"]))
            try:
                return super().model_schema(schema)
            finally:
                self.by_alias = aliases

    adapters: list[tuple[int, _Mode, Any]] = [(place, mode, adapter_of(kind)) for place, (kind, mode) in enumerate(kinds)]
    schemas, rest = TypeAdapter.json_schemas(adapters, ref_template=REFERENCE + "{model}", schema_generator=AsWritten)
    return [schemas[place, mode] for place, mode, _ in adapters], rest.get("$defs", {})


_VALUES: Final = ("default", "enum", "const", "examples")
"""Keywords that contain values of the type, not schemas."""
_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords that contain schemas by name. The names can be the same as keywords."""
_FOREIGN: Final = "discriminator"
"""An object in OpenAPI, but a string in AsyncAPI. Each of the alternatives also contains its tag."""


def draft_07(schema: Any, names: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Convert a schema from draft 2020-12 to draft 07. Leaves out values that JSON does not support, such as infinity.

    `names` maps names of components to the names that references get.
    """
    if isinstance(schema, list):
        return [draft_07(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: _part(key, value, names)
        for key, value in schema.items()
        if key != _FOREIGN and (_is_json(value) or (key not in _VALUES and isinstance(value, (dict, list))))
    }
    if "$defs" in made:
        made["definitions"] = made.pop("$defs")
    if "prefixItems" in made:
        rest = made.pop("items", True)
        made["items"] = made.pop("prefixItems")
        if rest is not True:
            made["additionalItems"] = rest
    if isinstance(made.get("description"), str) and _is_made_up(made):
        del made["description"]
    if isinstance(reference := made.get("$ref"), str) and (name := reference.removeprefix(REFERENCE)) in names:
        made["$ref"] = REFERENCE + names[name]
    if "$ref" in made and len(made) > 1:  # draft 07 ignores siblings of a reference
        made["allOf"] = [{"$ref": made.pop("$ref")}]
    return made


def _part(key: str, value: Any, names: Mapping[str, str]) -> Any:
    if key in _VALUES:
        return value
    if key in _BY_NAME and isinstance(value, dict):
        return {name: draft_07(one, names) for name, one in value.items()}
    return draft_07(value, names)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _is_made_up(schema: Schema) -> bool:
    """Return True for a generated docstring such as ``User(id, name)``."""
    return bool(schema.get("title")) and schema["description"].startswith(f"{schema['title']}(")


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else shown(kind)


# -- examples ---------------------------------------------------------------------------------------------------------------

_DEEP: Final = 6
_TEXTS: Final = {
    "date-time": "2027-01-31T12:00:00Z", "date": "2027-01-31", "time": "12:00:00Z", "duration": "PT1H", "decimal": "1.5",
    "uuid": "00000000-0000-4000-8000-000000000000", "uuid4": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1", "ipvanyaddress": "192.0.2.1", "ipv6": "2001:db8::1",
    "email": "ann@example.org", "uri": "https://example.org",
}  # fmt: skip


class _Endless(Exception):
    """Raised if an example of the schema would be infinite."""


def fitting_example(schema: Any, components: dict[str, Schema], kind: Any) -> Any:
    """Return an example that the schema's type accepts, or `None` if none was found."""
    try:
        made = example(schema, components)
        return None if made is None or convert(made, kind) is None else made
    except Exception:  # for example a pattern, or a check by the application
        return None


def example(schema: Any, components: dict[str, Schema], within: tuple[str, ...] = ()) -> Any:
    """Return an example of a schema, or None if it would be infinite."""
    try:
        return _value(schema, components, within)
    except _Endless:
        return None


def _value(schema: Any, components: dict[str, Schema], within: tuple[str, ...]) -> Any:
    if not isinstance(schema, dict):
        return None
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if listed := schema.get("examples") or schema.get("enum"):
        return listed[0]
    if (reference := schema.get("$ref")) is not None:
        if reference in within or len(within) > _DEEP:
            raise _Endless
        return _value(components.get(reference.removeprefix(REFERENCE)), components, (*within, reference))
    for key in ("allOf", "anyOf", "oneOf"):
        if schema.get(key):
            return _first(schema[key], components, within)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        return dict(_members(schema, components, within))
    if kind == "array":
        items = schema.get("items", {})
        if isinstance(items, list):
            return [_value(one, components, within) for one in items]
        with suppress(_Endless):
            return [_value(items, components, within)] if isinstance(items, dict) and items else []
        return []
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + (1 if "exclusiveMinimum" in schema else 0))
        return least or 1
    if schema.get("contentEncoding") == "base64":
        return "dGV4dA=="
    return {"string": _TEXTS.get(schema.get("format", ""), "text"), "boolean": True}.get(str(kind))


def _first(choices: list[Any], components: dict[str, Schema], within: tuple[str, ...]) -> Any:
    for one in choices:
        with suppress(_Endless):
            return _value(one, components, within)
    raise _Endless


def _members(schema: Schema, components: dict[str, Schema], within: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield examples for members that are required, have no default, or identify the object."""
    wanted = schema.get("required", [])
    for name, one in schema.get("properties", {}).items():
        if name in wanted:
            yield name, _value(one, components, within)
        elif "default" not in one or "const" in one:
            with suppress(_Endless):
                yield name, _value(one, components, within)


def check_document(given: Any, function: str) -> None:
    """Raise `TypeError` unless `given` is an AsyncAPI document of polybus."""
    operations = given.get("operations") if isinstance(given, Mapping) else None
    if not isinstance(operations, Mapping) or not all("x-polybus-style" in one for one in operations.values()):
        raise TypeError(
            f"{function}({shown(given)}): pass a document that polybus has generated, as in {function}(document(bus))"
        )
