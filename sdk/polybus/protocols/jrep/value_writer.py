"""Writes Errai's marked values according to a Java signature or their Python types (notes sections 1.2 to 1.5).

Values are written in a single pass. Each writer function receives a value and the message's ids, and returns the JSON of the
value and its content. A container gets a number when it is first written, and later occurrences refer to that number, so a list
may contain itself.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import re
import struct
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import attrs
import msgspec
from attrs import field, frozen

from ...body import items_of, part_that_fails
from ...errors import EncodeError
from ...plugins.tools import form_of_struct, plain_form, scalar_form
from .java import (
    KEY_PREFIX,
    MAX_DIGITS,
    NULL_KEY,
    JavaEnum,
    JavaObject,
    JavaTypes,
    Numbering,
    Portable,
    is_far,
    json_text,
    number,
    quoted,
    throwable,
)

HASHED_TYPES: Final = frozenset(
    "java.math.BigInteger java.math.BigDecimal java.util.Date java.sql.Date java.sql.Time java.sql.Timestamp "
    "java.util.Optional".split()
)
"""Types that have a hash code in ``^ObjectID`` instead of an id (notes section 1.4)."""
LIST: Final = b'{"^EncodedType":"java.util.ArrayList","^ObjectID":"%d","^Value":[%b]}'
SET: Final = b'{"^EncodedType":"java.util.HashSet","^ObjectID":"%d","^Value":[%b]}'
MAP: Final = b'{"^EncodedType":"java.util.LinkedHashMap","^ObjectID":"%d","^Value":{%b}}'
_BOOLEAN: Final = b'{"^EncodedType":"java.lang.Boolean","^ObjectID":"-1","^NumVal":%b}'
BOOLEANS: Final = {True: _BOOLEAN % b"true", False: _BOOLEAN % b"false"}
_INTEGER: Final = b'{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":%d}'
_SMALL: Final = {value: _INTEGER % value for value in range(-128, 1024)}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def write_integer(value: int, ids: object) -> bytes:
    small = _SMALL.get(value)
    if small is not None:
        return small
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return _INTEGER % value
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return b'{"^EncodedType":"java.lang.Long","^ObjectID":"-1","^NumVal":"%d"}' % value
    return write_big_integer(value)


def write_big_integer(value: int) -> bytes:
    try:
        digits = str(value).encode()
    except ValueError as error:  # CPython's limit of 4,300 digits
        raise EncodeError(f"an integer of {value.bit_length()} bits is too large") from error
    return b'{"^EncodedType":"java.math.BigInteger","^ObjectID":"-1","^Value":"%b"}' % digits


def write_marked(java: str, value: bytes) -> bytes:
    return b'{"^EncodedType":"%b","^ObjectID":"-1","^NumVal":%b}' % (java.encode(), value)


def write_double(value: float, ids: object) -> bytes:
    if math.isfinite(value):
        return b'{"^EncodedType":"java.lang.Double","^ObjectID":"-1","^NumVal":%b}' % number(value)
    name = b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"
    return b'{"^EncodedType":"java.lang.Double","^ObjectID":"-1","^NumVal":"%b"}' % name


def write_decimal(value: decimal.Decimal, ids: object) -> bytes:
    if not value.is_finite():
        raise EncodeError(f"java.math.BigDecimal cannot represent {value}")
    if is_far(value):
        raise EncodeError(f"{value:.6E} has more than {MAX_DIGITS} digits before or after its point")
    return b'{"^EncodedType":"java.math.BigDecimal","^ObjectID":"-1","^Value":"%b"}' % str(value).encode()


def write_date(value: datetime.datetime, ids: object) -> bytes:
    """Write whole milliseconds, which is the precision of java.util.Date."""
    if value.tzinfo is None:
        raise EncodeError("a datetime needs a time zone, for example datetime.UTC, because java.util.Date is a moment")
    return b'{"^EncodedType":"java.util.Date","^ObjectID":"-1","^Value":"%d"}' % ((value - _EPOCH) // _MILLISECOND)


def constants_writer(java: str) -> Callable[[Any, Any], bytes]:
    written: dict[str, bytes] = {}

    def write(value: enum.Enum, ids: object) -> bytes:
        name = value._name_  # hashing a member costs more than the rest
        data = written.get(name)
        if data is None:
            data = written[name] = enum_constant(java, name)
        return data

    return write


def enum_constant(java: str, name: str) -> bytes:
    """Write an enum constant without an id, because Errai cannot read an enum that has an id (notes section 1.5)."""
    return b'{"^EncodedType":%b,"^EnumStringValue":%b}' % (quoted(java), quoted(name))


# -- declared types ---

Write: TypeAlias = "Callable[[Any, Numbering], bytes]"

_PRIMITIVES: Final[Mapping[str, tuple[str, str]]] = {
    "boolean": ("java.lang.Boolean", "Z"),
    "byte": ("java.lang.Byte", "B"),
    "char": ("java.lang.Character", "C"),
    "double": ("java.lang.Double", "D"),
    "float": ("java.lang.Float", "F"),
    "int": ("java.lang.Integer", "I"),
    "long": ("java.lang.Long", "J"),
    "short": ("java.lang.Short", "S"),
}
"""Maps each primitive type to its class, which is used as marker, and to its letter in array names."""
_OF_LETTER: Final = {letter: name for name, (_, letter) in _PRIMITIVES.items()}
_WHOLE: Final = {"java.lang.Byte": 8, "java.lang.Short": 16, "java.lang.Integer": 32, "java.lang.Long": 64}
_BARE: Final = frozenset(("byte", "short", "int", "double"))  # Array elements without markers (notes section 1.3)
_LISTS: Final = frozenset(("java.util.List", "java.util.Collection", "java.lang.Iterable", "java.util.ArrayList"))
_SETS: Final = frozenset(("java.util.Set", "java.util.HashSet"))
_MAPS: Final = frozenset(("java.util.Map", "java.util.HashMap", "java.util.LinkedHashMap"))
_SHORT: Final = {
    **{java.removeprefix("java.lang."): java for java, _ in _PRIMITIVES.values()},
    **{name: f"java.lang.{name}" for name in ("Object", "String")},
    **{name: f"java.util.{name}" for name in ("Collection", "List", "Map", "Set")},
}
_TOKENS: Final = re.compile(r"\s*(\[*[\w.$]+;?(?:\[\])*|[<>,])")
_PLAIN: Final = (str, int, float, bool, list, dict)
_AS_THEY_ARE: Final = (JavaObject, JavaEnum)


@frozen
class JavaType:
    name: str  # Name in a signature: ``int``, ``java.lang.Long``, ``int[]``, ``java.util.List``
    # Type arguments of a declared collection: ``java.util.List<java.lang.Long>``. Signatures lack them.
    arguments: tuple[JavaType, ...] = field(default=())

    @property
    def element(self) -> JavaType | None:
        """The element type of an array in any notation: ``int[]``, ``[I``, ``[Ljava.lang.String;``."""
        name = self.name
        if name.endswith("[]"):
            return JavaType(name[:-2])
        if not name.startswith("["):
            return None
        if name[1:2] == "L" and name.endswith(";"):
            return JavaType(name[2:-1])
        return JavaType(_OF_LETTER.get(name[1:], name[1:]))


def java_type(text: str) -> JavaType:
    """Parse a declaration such as ``java.util.List<java.lang.Long>``."""
    tokens = _TOKENS.findall(text)
    if "".join(tokens) != "".join(text.split()):
        tokens = []
    made = _taken(tokens)
    if made is None or tokens:
        raise TypeError(f"{text!r} is not a Java type: 'int', 'java.lang.Long', 'int[]' or 'java.util.List<java.lang.Long>'")
    return made


def _taken(tokens: list[str]) -> JavaType | None:
    if not tokens or tokens[0] in "<>,":
        return None
    name, arguments = tokens.pop(0), list[JavaType]()
    simple, bracket, rest = name.partition("[")
    name = _SHORT.get(simple, simple) + bracket + rest
    if tokens and tokens[0] == "<":
        while tokens and tokens[0] != ">":
            del tokens[0]
            argument = _taken(tokens)
            if argument is None or not tokens or tokens[0] not in (",", ">"):
                return None
            arguments.append(argument)
        del tokens[:1]
    return JavaType(name, tuple(arguments))


class Arguments(list[Any]):
    """The arguments of a remote procedure, and the parameter types that determine how each argument is written."""

    def __init__(self, values: Any, types: tuple[JavaType, ...]) -> None:
        super().__init__(values)
        self.types: tuple[JavaType, ...] = types


def write_arguments(arguments: Arguments, ids: Numbering, other: Write) -> bytes:
    if len(arguments) != len(arguments.types):
        names = ", ".join(kind.name for kind in arguments.types) or "none"
        raise EncodeError(f"{len(arguments)} arguments: the method takes {len(arguments.types)} ({names})")
    given, written = ids.one(), list[bytes]()
    for number_, (value, kind) in enumerate(zip(arguments, arguments.types, strict=True), 1):
        try:
            written.append(_Declared(ids, other).write(value, kind))
        except EncodeError as error:
            path = f"$[{number_ - 1}]{error.path[1:]}"
            raise EncodeError(f"argument {number_} ({kind.name}): {error.text}", path) from error
    return LIST % (given, b",".join(written))


class _Declared:
    """Writes values as their declared types. A value of another type is written as its own, and the peer decides."""

    def __init__(self, ids: Numbering, other: Write) -> None:
        self._ids = ids
        self._other = other

    def write(self, value: Any, kind: JavaType) -> bytes:
        if value is None:
            if kind.name in _PRIMITIVES:
                raise EncodeError(f"{kind.name} cannot be null: {_PRIMITIVES[kind.name][0]} can")
            return b"null"
        if isinstance(value, _AS_THEY_ARE):
            return self._other(value, self._ids)
        if type(value) not in _PLAIN and not isinstance(value, enum.Enum):
            value = scalar_form(value)
        scalar = _scalar(value, kind.name)
        if scalar is not None:
            return scalar
        element = kind.element
        if element is not None:
            return self._array(value, element)
        if kind.arguments:
            return self._collection(value, kind)
        return self._other(value, self._ids)

    def _array(self, value: Any, element: JavaType) -> bytes:
        if element.element is not None:
            raise EncodeError("Errai has no marshaller for arrays of arrays")
        letter = _PRIMITIVES.get(element.name, ("", ""))[1]
        name = f"[{letter}" if letter else f"[L{element.name};"
        if isinstance(value, (bytes, bytearray, memoryview)) and name == "[B":
            value = array("b", bytes(value))
        if not isinstance(value, (list, tuple, array)):
            return self._other(value, self._ids)
        given = self._ids.one()
        write = self._bare if element.name in _BARE else self.write
        items = b",".join([write(item, element) for item in value])
        return b'{"^EncodedType":%b,"^ObjectID":"%d","^Value":[%b]}' % (quoted(name), given, items)

    def _bare(self, value: Any, kind: JavaType) -> bytes:
        value = scalar_form(value)
        if type(value) is float and kind.name == "double" and value - value == 0:
            return number(value)
        if not isinstance(value, int) or isinstance(value, bool):
            return self.write(value, kind)
        _ = _scalar(value, kind.name)  # checks the range
        return number(float(value)) if kind.name == "double" else b"%d" % value

    def _collection(self, value: Any, kind: JavaType) -> bytes:
        name, types = kind.name, kind.arguments
        if name in _MAPS and len(types) == 2 and isinstance(value, Mapping):
            given = self._ids.one()
            entries = [self._key(key, types[0]) + b":" + self.write(item, types[1]) for key, item in value.items()]
            return MAP % (given, b",".join(entries))
        form = LIST if name in _LISTS else SET if name in _SETS else None
        if form is None or len(types) != 1 or not isinstance(value, (list, tuple, set, frozenset)):
            return self._other(value, self._ids)
        return form % (self._ids.one(), b",".join([self.write(item, types[0]) for item in value]))

    def _key(self, key: Any, kind: JavaType) -> bytes:
        if isinstance(key, str) and kind.name not in ("char", "java.lang.Character"):
            # Written as in any map, with an escape for texts that look like other keys.
            return self._other({key: None}, Numbering())[len(MAP % (1, b"")) - 2 : -len(b":null}}")]
        return quoted(KEY_PREFIX + self.write(key, kind).decode())


def _scalar(value: Any, name: str) -> bytes | None:
    marker = _PRIMITIVES[name][0] if name in _PRIMITIVES else name
    whole = isinstance(value, int) and not isinstance(value, bool)
    if marker in _WHOLE:
        return _whole(int(value), marker, name) if whole else None
    if marker == "java.lang.Character":
        return _character(value, name) if isinstance(value, str) else None
    if marker in ("java.lang.Float", "java.lang.Double"):
        return _floating(value, marker, name) if whole or isinstance(value, float) else None
    if marker == "java.math.BigInteger":
        return write_big_integer(int(value)) if whole else None
    if marker == "java.math.BigDecimal":
        return write_decimal(decimal.Decimal(value), None) if whole else None
    return None


def _whole(value: int, marker: str, name: str) -> bytes:
    most = 1 << (_WHOLE[marker] - 1)
    if not -most <= value < most:
        raise EncodeError(f"{value} is out of range for {name}: {-most} to {most - 1}")
    return write_marked(marker, b'"%d"' % value if marker == "java.lang.Long" else b"%d" % value)


def _character(value: str, name: str) -> bytes:
    if len(value) != 1 or ord(value) > 0xFFFF:
        raise EncodeError(f"{value[:20]!r} is not a {name}, which is a single character up to U+FFFF")
    return write_marked("java.lang.Character", quoted(value))


def _floating(value: float, marker: str, name: str) -> bytes:
    try:
        made = float(value)
        if marker == "java.lang.Double":
            return write_double(made, None)
        short: float = struct.unpack(">f", struct.pack(">f", made))[0]
    except OverflowError:
        raise EncodeError(f"{value} is out of range for {name}") from None
    if short - short != 0:
        return write_double(short, None).replace(b"java.lang.Double", b"java.lang.Float")
    return write_marked(marker, number(made))


# -- values of any type ---

_SCALARS: Final = frozenset(f"java.lang.{name}" for name in "Boolean Byte Character Double Float Integer Long Short".split())
"""Errai's server responds with status 500 if these types lack ``^NumVal``."""

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
            JavaEnum: lambda value, ids: enum_constant(value.type, value.name),
            Arguments: lambda value, ids: write_arguments(value, ids, self._value),
        }

    def write(self, value: Any, ids: Numbering) -> bytes:
        """Write a value as JSON. If a part cannot be written, the `EncodeError` contains its path."""
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
        """Write a tuple. Python has a single empty tuple object, but in Java each empty tuple is a separate list."""
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
            text = f"a key of type {type(key).__name__} is read as a list, set or dict, which cannot be a key: use a string"
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
        """Convert an object to its JSON form. For example, members become a map or list, and a UUID becomes a string."""
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
        """Write a RuntimeException with the class name and message, as Errai does for classes that are not portable."""
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
        """Write a received node unchanged except for the object ids."""
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
            if len(node) == 2 and getattr(target, "node", None) is not node:  # refers to an object that was not written yet
                return self._value(target, ids)
            given = ids.add(target)
        members = {key: self._node(item, table, ids) for key, item in node.items() if key != "^ObjectID" or not given}
        if given:
            members = {key: members.get(key, b'"%d"' % given) for key in node}
        return b"{%b}" % b",".join([b"%b:%b" % (json_text(key), item) for key, item in members.items()])

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
        raise EncodeError(f"{type(value).__name__} is invalid here: the class declares a string, a number or a bool")
    return _bare(made, ids)
