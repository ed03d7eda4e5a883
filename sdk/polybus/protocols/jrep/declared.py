"""Writes values as the types of a Java signature, which decide on the markers of arguments."""

from __future__ import annotations

import decimal
import enum
import re
import struct
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from ...errors import EncodeError
from ...plugins.tools import scalar_form
from .java import (
    KEY_PREFIX,
    LIST,
    MAP,
    SET,
    JavaEnum,
    JavaObject,
    Numbering,
    number,
    quoted,
    write_big_integer,
    write_decimal,
    write_double,
    write_marked,
)

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
"""Primitives with their class, which is the marker, and their letter in array names."""
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
    """A type as Java names it.

    Attributes:
        name: Name in a signature: ``int``, ``java.lang.Long``, ``int[]``, ``java.util.List``.
        arguments: Type arguments of a declared collection: ``java.util.List<java.lang.Long>``. Signatures lack them.
    """

    name: str
    arguments: tuple[JavaType, ...] = field(default=())

    @property
    def element(self) -> JavaType | None:
        """Element type of an array in any spelling: ``int[]``, ``[I``, ``[Ljava.lang.String;``."""
        name = self.name
        if name.endswith("[]"):
            return JavaType(name[:-2])
        if not name.startswith("["):
            return None
        if name[1:2] == "L" and name.endswith(";"):
            return JavaType(name[2:-1])
        return JavaType(_OF_LETTER.get(name[1:], name[1:]))


def java_type(text: str) -> JavaType:
    """Parse a declaration such as ``java.util.List<java.lang.Long>``. May raise `TypeError`: not a Java type."""
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
    """Arguments of a remote procedure with their parameter types, which decide how each is written."""

    def __init__(self, values: Any, types: tuple[JavaType, ...]) -> None:
        super().__init__(values)
        self.types: tuple[JavaType, ...] = types


def write_arguments(arguments: Arguments, ids: Numbering, other: Write) -> bytes:
    """Write a list of arguments; `other` writes values without declared type. May raise `EncodeError`: wrong number or type."""
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
    """Writes values as their declared types. A value of another kind is written as its own, for the other side to judge."""

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
        name = _array_name(element.name)
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
    """Write a single value; None if type or value is not single. May raise `EncodeError`: out of range."""
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
        raise EncodeError(f"{value} does not fit {name}: {-most} to {most - 1}")
    return write_marked(marker, b'"%d"' % value if marker == "java.lang.Long" else b"%d" % value)


def _character(value: str, name: str) -> bytes:
    if len(value) != 1 or ord(value) > 0xFFFF:
        raise EncodeError(f"{value[:20]!r} does not fit {name}: one character, not beyond U+FFFF")
    return write_marked("java.lang.Character", quoted(value))


def _floating(value: float, marker: str, name: str) -> bytes:
    try:
        made = float(value)
        if marker == "java.lang.Double":
            return write_double(made, None)
        short: float = struct.unpack(">f", struct.pack(">f", made))[0]
    except OverflowError:
        raise EncodeError(f"{value} does not fit {name}") from None
    if short - short != 0:
        return write_double(short, None).replace(b"java.lang.Double", b"java.lang.Float")
    return write_marked(marker, number(made))


def _array_name(element: str) -> str:
    letter = _PRIMITIVES.get(element, ("", ""))[1]
    return f"[{letter}" if letter else f"[L{element};"
