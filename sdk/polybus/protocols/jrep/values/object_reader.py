"""Reads marked objects: their identity in a message, registered types, and types that are not known here.

What a marker claims is data: no class is ever looked up by a name from the wire, only in the application's own registry.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from ...._util.typed_body import convert, misfit
from ....errors import BadRequest
from .java import JavaEnum, JavaObject, JavaTypes, Portable
from .references import Measure

__all__ = ["ObjectReading", "Read"]

Read: TypeAlias = "Callable[[Any, dict[str, Any]], Any]"
"""Reads a node of one Java type for a reading."""
_BUILT_IN: Final = ("java.lang.",)


class ObjectReading:
    """The objects of one message: its parts share their ids."""

    __slots__ = ("_known", "_readers", "_strict", "_types", "referred")

    def __init__(self, types: JavaTypes, strict: bool, readers: dict[str, Read]) -> None:
        self._types = types
        self._strict = strict
        self._readers = readers
        self._known: dict[str, Any] = {}
        self.referred: Measure | None = None
        """There once something was met a second time."""

    def value(self, node: Any) -> Any:
        """The Python value of decoded JSON; the containers are the subclass's."""
        raise NotImplementedError

    def _list(self, node: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _reference(self, node: dict[str, Any]) -> tuple[str | None, Any]:
        """The id of an object, and the object if it has been met before.

        Raises:
            BadRequest: A reference to nothing.
        """
        id = node.get("^ObjectID")
        if type(id) is not str or id == "-1":
            if self._strict:
                raise BadRequest(f"{node.get('^EncodedType')} without an ^ObjectID")
            return None, None
        if len(node) == 2:
            if id in self._known:
                self.referred = self.referred or Measure()
                return id, self._known[id]
            if self._strict:
                raise BadRequest(f"a reference to {id!r}, which is not in this message")
        elif id in self._known:
            raise BadRequest(f"^ObjectID {id!r} is given to two objects")
        return id, None

    def _other(self, node: dict[str, Any], name: Any) -> Any:
        if type(name) is not str:
            if name is not None:
                raise BadRequest(f"^EncodedType is text, not {type(name).__name__}")
            return {key: self.value(item) for key, item in node.items()}
        try:
            registered = self._types.of_name(name)
        except TypeError as error:
            raise BadRequest(str(error)) from error
        if registered is not None:
            read = self._readers[name] = (
                _portable(registered) if isinstance(registered, Portable) else _constants(registered, name)
            )
            return read(self, node)
        if "^EnumStringValue" in node:
            return self._enum(node, name)
        if name[:1] == "[":  # an array of anything
            return self._list(node)
        id, found = self._reference(node) if "^ObjectID" in node else (None, None)
        return found if found is not None else self._opaque(node, id, known=name.startswith(_BUILT_IN))

    def _enum(self, node: dict[str, Any], name: str) -> JavaEnum:
        constant = node["^EnumStringValue"]
        if type(constant) is not str:
            raise BadRequest(f"{name}: ^EnumStringValue is text")
        if self._strict:
            raise BadRequest(f"the Java type {name[:100]!r} is not known here")
        return JavaEnum(name, constant)

    def _portable(self, node: dict[str, Any], how: Portable) -> Any:
        id, found = self._reference(node)
        if found is not None:
            return found
        made: Any = object.__new__(how.cls)
        if id is not None:
            self._known[id] = made
        arguments: dict[str, Any] = {}
        for name, java, hint, optional in how.arguments:
            if java in node:
                arguments[name] = _fitting(self.value(node[java]), hint, f"{how.java}.{java}")
            elif not optional:
                raise BadRequest(f"{how.java} needs a field {java!r}")
        try:
            how.fill(made, arguments)
        except Exception as error:  # whatever the application's own checks make of what a peer has sent
            raise BadRequest(f"{how.java}: {misfit(error)}") from error
        return made

    def _opaque(self, node: dict[str, Any], id: str | None, known: bool = False) -> JavaObject:
        """A type that is not registered: kept as it came.

        Raises:
            BadRequest: In strict mode.
        """
        name = node["^EncodedType"]
        if self._strict and not known:
            raise BadRequest(f"the Java type {name[:100]!r} is not known here, or its ^Value is missing")
        made = JavaObject(name)
        made.node, made.table = node, self._known
        if id is not None:
            self._known[id] = made
        for key, item in node.items():
            if key[:1] != "^":
                made[key] = self.value(item)
        if "^Value" in node:
            made.value = self.value(node["^Value"])
        return made


def _portable(how: Portable) -> Read:
    return lambda reading, node: reading._portable(node, how)


def _constants(kind: type[enum.Enum], java: str) -> Read:
    """With an ``^ObjectID`` or without, as both are met (notes section 9)."""
    constants: dict[Any, Any] = dict(kind.__members__)

    def read(reading: ObjectReading, node: dict[str, Any]) -> Any:
        constant = node.get("^EnumStringValue")
        found = constants.get(constant) if type(constant) is str else None
        if found is None:
            raise BadRequest(f"{java} has no constant {str(constant)[:60]!r}")
        return found

    return read


def _fitting(value: Any, hint: Any, where: str) -> Any:
    if hint is Any or hint is object or type(value) is hint:
        return value
    if hint is float and type(value) is int:
        return float(value)
    try:
        return convert(value, hint)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise BadRequest(f"{where}: {error}") from error
