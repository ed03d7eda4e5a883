"""Writes Errai's marked values: the Java type of each Python type (notes sections 1.2 to 1.5).

One pass: each function returns the bytes of a value and its content. Containers are numbered on first sight and then referred
to, so lists may contain themselves.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
from array import array
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final

import attrs
import msgspec

from ...body import items_of, part_that_fails
from ...errors import EncodeError
from ...plugins.tools import form_of_struct, plain_form, scalar_form
from .declared import Arguments, Write, write_arguments
from .java import (
    BOOLEANS,
    HASHED_TYPES,
    KEY_PREFIX,
    LIST,
    MAP,
    NULL_KEY,
    SET,
    JavaEnum,
    JavaObject,
    JavaTypes,
    Numbering,
    Portable,
    constants_writer,
    json_text,
    number,
    quoted,
    throwable,
    write_date,
    write_decimal,
    write_double,
    write_integer,
    write_java_enum,
)

_SCALARS: Final = frozenset(f"java.lang.{name}" for name in "Boolean Byte Character Double Float Integer Long Short".split())
"""Errai's server answers 500 if their ``^NumVal`` is missing."""

_UNHASHABLE: Final = tuple(form.partition(b',"^ObjectID"')[0] for form in (LIST, SET, MAP))


class ValueWriter:
    def __init__(self, types: JavaTypes) -> None:
        self._types = types
        self._quote = lru_cache(1024)(quoted)
        self._by_type: dict[type, Write] = {
            type(None): lambda value, ids: b"null",
            str: quoted,
            bool: lambda value, ids: BOOLEANS[value],
            int: write_integer,
            float: write_double,
            dict: self._map,
            list: self._list,
            tuple: self._tuple,
            set: self._set,
            frozenset: self._frozen_set,
            bytes: self._bytes,
            bytearray: self._bytes,
            memoryview: self._bytes,
            datetime.datetime: write_date,
            decimal.Decimal: write_decimal,
            JavaObject: self._java_object,
            JavaEnum: write_java_enum,
            Arguments: lambda value, ids: write_arguments(value, ids, self._value),
        }

    def write(self, value: Any, ids: Numbering) -> bytes:
        """Write a value as JSON. May raise `EncodeError`, with the path of the part that cannot be written."""
        try:
            write = self._by_type.get(type(value))
            return self._other(value, ids) if write is None else write(value, ids)
        except EncodeError as error:
            if type(value) is Arguments:  # it reports the path itself
                raise
            raise EncodeError(error.text, part_that_fails(value, self._is_written)[0]) from error
        except RecursionError as error:
            raise EncodeError("nested too deeply", "$") from error

    def _value(self, value: Any, ids: Numbering) -> bytes:
        write = self._by_type.get(type(value))
        return self._other(value, ids) if write is None else write(value, ids)

    # -- containers ------------------------------------------------------------------------------------------------------

    def _list(self, value: Any, ids: Numbering) -> bytes:
        seen, me = ids.seen, id(value)
        if me in seen:
            return b'{"^EncodedType":"java.util.ArrayList","^ObjectID":"%d"}' % seen[me]
        seen[me] = given = ids.next  # as in `Numbering.add`
        ids.next = given + 1
        find, other = self._by_type.get, self._other
        items = b",".join([(find(type(item)) or other)(item, ids) for item in value])
        return LIST % (given, items)

    def _tuple(self, value: Any, ids: Numbering) -> bytes:
        """Write a tuple. Python has a single empty tuple; in Java each is a list of its own."""
        return self._list(value, ids) if value else LIST % (ids.one(), b"")

    def _frozen_set(self, value: Any, ids: Numbering) -> bytes:
        return self._set(value, ids) if value else SET % (ids.one(), b"")

    def _set(self, value: Any, ids: Numbering) -> bytes:
        known = ids.seen.get(id(value))
        if known is not None:
            return b'{"^EncodedType":"java.util.HashSet","^ObjectID":"%d"}' % known
        given = ids.add(value)
        return SET % (given, self._items(value, ids))

    def _items(self, items: Any, ids: Numbering) -> bytes:
        find, other = self._by_type.get, self._other
        return b",".join([(find(type(item)) or other)(item, ids) for item in items])

    def _map(self, value: Mapping[Any, Any], ids: Numbering) -> bytes:
        seen, me = ids.seen, id(value)
        if me in seen:
            return b'{"^EncodedType":"java.util.LinkedHashMap","^ObjectID":"%d"}' % seen[me]
        seen[me] = given = ids.next  # as in `Numbering.add`
        ids.next = given + 1
        find, quote, members = self._by_type.get, self._quote, []
        for name, item in value.items():
            write = find(type(item)) or self._other
            written = quote(name) if type(name) is str and name[:1] != "^" and len(name) < 64 else self._key(name, ids)
            members.append(written + b":" + write(item, ids))
        return MAP % (given, b",".join(members))

    def _key(self, key: Any, ids: Numbering) -> bytes:
        if key is None:
            return quoted(NULL_KEY)
        if isinstance(key, str) and not isinstance(key, enum.Enum) and not key.startswith((KEY_PREFIX, NULL_KEY)):
            return quoted(str.__str__(key))
        written = self._value(key, ids)
        if written.startswith(_UNHASHABLE):
            text = f"a key of type {type(key).__name__} is read as a list, set or dict, which cannot be a key: use text"
            raise EncodeError(text)
        return quoted(KEY_PREFIX + written.decode())

    def _bytes(self, value: Any, ids: Numbering) -> bytes:
        # Python shares empty and one-byte bytes objects, Java's arrays are distinct.
        known = ids.seen.get(id(value)) if len(value) > 1 else None
        if known is not None:
            return b'{"^EncodedType":"[B","^ObjectID":"%d"}' % known
        given = ids.add(value)
        signed = ",".join(map(str, array("b", bytes(value)))).encode()
        return b'{"^EncodedType":"[B","^ObjectID":"%d","^Value":[%b]}' % (given, signed)

    # -- objects ---------------------------------------------------------------------------------------------------------

    def _form_of(self, value: Any, ids: Numbering) -> Any:
        """Convert an object to its JSON form: members as a map or list, a UUID as text."""
        if isinstance(value, msgspec.Struct):
            made = form_of_struct(value)
        elif attrs.has(type(value)) or hasattr(type(value), "__dataclass_fields__"):
            made = {path.rpartition(".")[2]: item for path, item in items_of(value, "$") if item is not msgspec.UNSET}
        else:
            made = self._form_by_others(value)
        ids.keep.append(made)
        return made

    def _form_by_others(self, value: Any) -> Any:
        try:
            made = plain_form(value)
        except TypeError:  # msgspec knows more types
            made = value
        except Exception as error:  # for example a model that cannot be serialised
            raise EncodeError(f"{type(value).__name__} cannot be written: {error}") from error
        if type(made) in self._by_type:
            return made
        try:
            return msgspec.to_builtins(made, enc_hook=plain_form)
        except (TypeError, ValueError) as error:
            if isinstance(value, type):
                raise EncodeError(str(error)) from error
            raise EncodeError(f"{type(value).__name__} has no Java type: register it with JavaTypes.portable") from error

    def _exception(self, error: BaseException, ids: Numbering) -> bytes:
        """Write a RuntimeException with class and text but no stack, as Errai does for one that is not portable."""
        known = ids.seen.get(id(error))
        if known is not None:
            return b'{"^EncodedType":"java.lang.RuntimeException","^ObjectID":"%d"}' % known
        return throwable(f"{type(error).__name__}:{error}", ids, error)

    def _portable(self, how: Portable, value: Any, ids: Numbering) -> bytes:
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
                f"{value.type} does not keep its content in ^Value: declare the parameter as {value.type!r}, or write "
                f"JavaObject({value.type!r}, {{'^NumVal': ...}}), a Long as a string"
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
            return b"[%b]" % self._items(value, ids)
        return self._value(value, ids)

    def _node(self, node: Any, table: Mapping[str, Any], ids: Numbering) -> bytes:
        """Write a received node unchanged, with the ids of this message."""
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
            if (
                len(node) == 2 and getattr(target, "node", None) is not node
            ):  # a reference to an object that was not written yet
                return self._value(target, ids)
            given = ids.add(target)
        return b"{%b}" % b",".join(
            [
                b"%b:%b" % (json_text(key), b'"%d"' % given if key == "^ObjectID" and given else self._node(item, table, ids))
                for key, item in node.items()
            ]
        )

    # -- the rest --------------------------------------------------------------------------------------------------------

    def _other(self, value: Any, ids: Numbering) -> bytes:
        registered = self._types.of_class(type(value))
        if registered is not None:
            write: Write = constants_writer(registered) if isinstance(registered, str) else partial(self._portable, registered)
            self._by_type[type(value)] = write
            return write(value, ids)
        if isinstance(value, enum.Enum):
            return self._value(value.value, ids)
        for kind in (dict, list, tuple, set, frozenset):
            if isinstance(value, kind):
                return self._by_type[kind](value, ids)
        if isinstance(value, BaseException):
            return self._exception(value, ids)
        return self._value(self._form_of(value, ids), ids)

    def _is_written(self, part: Any) -> bool:
        try:
            self._value(part, Numbering())
        except (EncodeError, RecursionError):
            return False
        return True


def _bare(value: Any, ids: Numbering) -> bytes:
    """Write a field with a static Java type. May raise `EncodeError`: another type."""
    if type(value) is str:
        return quoted(value)
    if value is None:
        return b"null"
    if value is True or value is False:
        return b"true" if value else b"false"
    if type(value) is int:
        return b"%d" % value if -0x8000_0000 <= value <= 0x7FFF_FFFF else write_integer(value, ids)
    if type(value) is float:
        return number(value) if math.isfinite(value) else write_double(value, ids)
    made = scalar_form(value)
    if made is value:
        raise EncodeError(f"{type(value).__name__} where the class declares a string, a number or a bool")
    return _bare(made, ids)
