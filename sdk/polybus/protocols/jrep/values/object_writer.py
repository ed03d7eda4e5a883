"""Writes marked objects: registered types, those that are not registered, exceptions, and what came in and is passed on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs
import msgspec

from ....body import items_of
from ....errors import EncodeError
from ..messages.text import json_text, number, quoted
from ..object_ids import HASHED_TYPES, Numbering, throwable
from .java import JavaObject, Portable
from .scalars import write_double, write_integer

__all__ = ["ObjectWriter", "Write"]

_SCALARS: Final = frozenset(
    f"java.lang.{name}" for name in ("Boolean", "Byte", "Character", "Double", "Float", "Integer", "Long", "Short")
)
"""Errai's server answers 500 where it does not find their ``^NumVal``."""
Write: TypeAlias = "Callable[[Any, Numbering], bytes]"


class ObjectWriter:
    """Objects; their fields are written by the subclass."""

    def _value(self, value: Any, ids: Numbering) -> bytes:
        raise NotImplementedError

    def items_of(self, items: Any, ids: Numbering) -> bytes:
        raise NotImplementedError

    def _fields_of(self, value: Any, ids: Numbering) -> Any:
        """Form of an object as JSON has it: its fields as a map, a UUID as text."""
        dump = getattr(value, "model_dump", None)
        if dump is not None:
            made = dump()
        elif attrs.has(type(value)) or hasattr(value, "__dataclass_fields__") or isinstance(value, msgspec.Struct):
            made = {path.rpartition(".")[2]: item for path, item in _fields(value)}
        else:
            try:
                made = msgspec.to_builtins(value)
            except (TypeError, ValueError) as error:
                raise EncodeError(f"{type(value).__name__} has no Java type: register it with JavaTypes.portable") from error
        ids.keep.append(made)
        return made

    def _exception(self, error: BaseException, ids: Numbering) -> bytes:
        """As Errai does with one that is not portable: a RuntimeException with class and text, and no stack."""
        known = ids.seen.get(id(error))
        if known is not None:
            return b'{"^EncodedType":"java.lang.RuntimeException","^ObjectID":"%d"}' % known
        return throwable(f"{type(error).__name__}:{error}", ids, error)

    def _portable_of(self, how: Portable) -> Write:
        return lambda value, ids: self._portable(value, how, ids)

    def _portable(self, value: Any, how: Portable, ids: Numbering) -> bytes:
        name, known = quoted(how.java), ids.seen.get(id(value))
        if known is not None:
            return b'{"^EncodedType":%b,"^ObjectID":"%d"}' % (name, known)
        given = ids.add(value)
        members = [
            b",%b:%b" % (quoted(java), (_bare if bare else self._value)(getattr(value, ours), ids))
            for ours, java, bare in how.fields
        ]
        if not members:
            return b'{"^EncodedType":%b,"^ObjectID":"%d","^InstantiateOnly":true}' % (name, given)
        return b'{"^EncodedType":%b,"^ObjectID":"%d"%b}' % (name, given, b"".join(members))

    def _java_object(self, value: JavaObject, ids: Numbering) -> bytes:
        if value.node is not None:
            ids.copied = True
            return self._node(value.node, value.table or {}, ids)
        if value.value is not None and value.type in _SCALARS:
            raise EncodeError(
                f"{value.type} keeps its content in no ^Value: declare the parameter as {value.type!r}, or write "
                f"JavaObject({value.type!r}, {{'^NumVal': ...}}), of a Long as text"
            )
        name, known = quoted(value.type), ids.seen.get(id(value))
        if known is not None:
            return b'{"^EncodedType":%b,"^ObjectID":"%d"}' % (name, known)
        given = ids.add(value)
        members = [b",%b:%b" % (quoted(key), self._value(item, ids)) for key, item in value.items()]
        if value.value is not None:
            members.append(b',"^Value":%b' % self._content(value.value, ids))
        if not members:
            members = [b',"^InstantiateOnly":true']
        return b'{"^EncodedType":%b,"^ObjectID":"%d"%b}' % (name, given, b"".join(members))

    def _content(self, value: Any, ids: Numbering) -> bytes:
        if isinstance(value, (list, tuple)):
            return b"[%b]" % self.items_of(value, ids)
        return self._value(value, ids)

    def _node(self, node: Any, table: Mapping[str, Any], ids: Numbering) -> bytes:
        """Something that came in as it stood there, with the ids of this message."""
        if type(node) is list:
            return b"[%b]" % b",".join([self._node(item, table, ids) for item in node])
        if type(node) is not dict:
            return number(node) if type(node) is float else json_text(node)
        was, name = node.get("^ObjectID"), node.get("^EncodedType")
        target = table.get(was) if type(was) is str and name not in HASHED_TYPES else None
        given = None
        if target is not None:
            given = ids.seen.get(id(target))
            if given is not None:
                return b'{"^EncodedType":%b,"^ObjectID":"%d"}' % (json_text(name), given)
            if len(node) == 2 and getattr(target, "node", None) is not node:  # a reference to what has not been written yet
                return self._value(target, ids)
            given = ids.add(target)
        return b"{%b}" % b",".join(
            [
                b"%b:%b" % (json_text(key), b'"%d"' % given if key == "^ObjectID" and given else self._node(item, table, ids))
                for key, item in node.items()
            ]
        )


def _fields(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    return items_of(value, "$")


def _bare(value: Any, ids: Numbering) -> bytes:
    """A field whose static type Java knows."""
    if type(value) is str:
        return quoted(value)
    if value is None:
        return b"null"
    if value is True or value is False:
        return b"true" if value else b"false"
    if type(value) is int and -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return b"%d" % value
    if type(value) is float and math.isfinite(value):
        return number(value)
    return (
        quoted(str(value))
        if isinstance(value, str)
        else write_integer(value, ids)
        if isinstance(value, int)
        else write_double(value, ids)
    )
