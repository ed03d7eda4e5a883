"""Reads Errai's marked values and any bare JSON in them (notes sections 1.2 to 1.5).

Class names from the wire are only looked up in the application's registry.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import attrs
import msgspec

from ...body import check_json
from ...errors import BadRequest, EncodeError
from ...plugins.tools import convert, misfit
from .java import KEY_PREFIX, MAX_DIGITS, NULL_KEY, JavaEnum, JavaObject, JavaTypes, Portable, is_far

_KEY_DEPTH: Final = 4
_ALIKE: Final = 64
"""Maximum number of set elements or map keys with the same hash. An attacker can easily find numbers with equal hashes, and
each is compared with all earlier ones. A set of 40,000 such numbers took eight seconds.
"""
_decode: Final = msgspec.json.Decoder().decode
_MAX_NODES: Final = 1_000_000
_SINGLE: Final = frozenset((type(None), bool, int, float, str, bytes))
Read: TypeAlias = "Callable[[ValueReading, dict[str, Any]], Any]"
_BUILT_IN: Final = ("java.lang.",)

_UTC: Final = datetime.UTC
_from_timestamp: Final = datetime.datetime.fromtimestamp
_SPECIAL: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _odd(node: dict[str, Any], wanted: str) -> NoReturn:
    raise BadRequest(f"{node['^EncodedType']} needs {wanted}")


def _whole(text: Any) -> int | None:
    try:
        return int(text) if type(text) is str and len(text) <= MAX_DIGITS else None
    except ValueError:
        return None


def read_integer(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal")
    if type(value) is int:
        return value
    made = _whole(value)  # a Long is text
    return made if made is not None else _odd(node, "a whole number in ^NumVal")


def read_float(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal")
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if -(10**300) < value < 10**300 else _odd(node, "a number in ^NumVal")
    special = _SPECIAL.get(value) if type(value) is str else None
    return special if special is not None else _odd(node, "a number in ^NumVal")


def read_boolean(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal")
    return value if type(value) is bool else _odd(node, "true or false in ^NumVal")


def read_text(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^NumVal", node.get("^Value"))
    return value if type(value) is str else _odd(node, "text in ^NumVal")


def read_big_integer(reading: object, node: dict[str, Any]) -> Any:
    made = _whole(node.get("^Value"))
    return made if made is not None else _odd(node, f"up to {MAX_DIGITS} digits as a string in ^Value")


def read_big_decimal(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^Value")
    if type(value) is str and len(value) <= MAX_DIGITS:
        try:
            if (made := decimal.Decimal(value)).is_finite() and not is_far(made):
                return made
        except decimal.InvalidOperation:
            pass
    return _odd(node, f"a decimal number as text in ^Value, with at most {MAX_DIGITS} digits before or after its point")


def read_date(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^Value")
    if value is None:
        value = node.get("^NumVal")
    if type(value) is int or (type(value) is str and len(value) <= 20):
        try:
            seconds, milliseconds = divmod(int(value), 1000)
            moment = _from_timestamp(seconds, _UTC)
            return moment.replace(microsecond=1000 * milliseconds) if milliseconds else moment
        except (ValueError, OverflowError, OSError):
            pass
    return _odd(node, "milliseconds as a string in ^Value, within the years 1 to 9999")


class Measure:
    """Measures the size of a message with references expanded, because a few bytes may refer to billions of values."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[int, int]] = {}
        """Number of values and levels by object `id()`. The message's values outlive this object."""
        self._total = 0

    def add(self, value: Any, depth: int) -> None:
        self._total += self._size_of(value, depth)[0]
        self._check(self._total, 0, depth)

    def _size_of(self, value: Any, depth: int) -> tuple[int, int]:
        if type(value) in _SINGLE:
            return 1, 1
        sizes = self._sizes
        found = sizes.get(id(value))
        if found is not None:
            return found
        sizes[id(value)] = 1, 1  # a cycle counts once
        size, deep = 1, 0
        for item in _content_of(value):
            more, below = self._size_of(item, depth)
            size, deep = size + more, max(deep, below)
        self._check(size, deep, depth)
        sizes[id(value)] = size, deep + 1
        return size, deep + 1

    def _check(self, size: int, deep: int, depth: int) -> None:
        if size > _MAX_NODES or deep > depth:
            text = f"with its references expanded, a message of more than {_MAX_NODES} values or {depth} levels"
            raise BadRequest(text)


def _content_of(value: Any) -> Any:
    if isinstance(value, JavaObject):
        return (*value.values(), value.value)
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, set)):
        return value
    if attrs.has(type(value)):
        return [getattr(value, one.name) for one in attrs.fields(type(value))]
    return ()


class ValueReading:
    """Reads the values of one message. Its parts share object ids."""

    __slots__ = ("_known", "_readers", "_strict", "_types", "referred")

    def __init__(self, types: JavaTypes, strict: bool, readers: dict[str, Read]) -> None:
        self._types = types
        self._strict = strict
        self._readers = readers
        self._known: dict[str, Any] = {}
        self.referred: Measure | None = None  # Set at the first reference to an earlier object

    def read(self, node: Any, depth: int) -> Any:
        value = self.value(node)
        if self.referred is not None:
            self.referred.add(value, depth)
        return value

    def value(self, node: Any) -> Any:
        kind = type(node)
        if kind is dict:
            name = node.get("^EncodedType")
            read = self._readers.get(name) if type(name) is str else None
            return read(self, node) if read is not None else self._other(node, name)
        if kind is list:
            return self._items(node, [])
        return node

    def _items(self, nodes: list[Any], made: list[Any]) -> list[Any]:
        add, find = made.append, self._readers.get
        for node in nodes:
            kind = type(node)
            if kind is str:
                add(node)
            elif kind is dict:
                try:
                    read = find(node["^EncodedType"])
                except (KeyError, TypeError):  # no marker, or a list as marker
                    read = None
                add(read(self, node) if read is not None else self._other(node, node.get("^EncodedType")))
            elif kind is list:
                add(self._items(node, []))
            else:
                add(node)
        return made

    # -- containers ------------------------------------------------------------------------------------------------------

    def _list(self, node: dict[str, Any]) -> Any:
        id, content, known = node.get("^ObjectID"), node.get("^Value"), self._known
        made: list[Any] = []
        if type(content) is not list or type(id) is not str or id in known or id == "-1":
            id, content, found = self._content(node, list)
            if found is not None:
                return found
        if id is not None:
            known[id] = made
        return self._items(content, made)

    def _set(self, node: dict[str, Any]) -> Any:
        id, content, found = self._content(node, list)
        if found is not None:
            return found
        items = self._items(content, [])
        try:
            if len(items) > _ALIKE:
                _check_alike(max(Counter(map(hash, items)).values()))
            made: Any = set(items)
        except TypeError:  # lists or maps, which a Python set cannot hold
            made = items
        except Exception as error:
            raise _unhashable(error, "an element of a set") from error
        if id is not None:
            self._known[id] = made
        return made

    def _map(self, node: dict[str, Any]) -> Any:
        id, content, known = node.get("^ObjectID"), node.get("^Value"), self._known
        if type(content) is not dict or type(id) is not str or id in known or id == "-1":
            id, content, found = self._content(node, dict)
            if found is not None:
                return found
        made: dict[Any, Any] = {}
        if id is not None:
            known[id] = made
        find, alike = self._readers.get, None
        for name, item in content.items():
            if name[:1] != "^":
                key: Any = name
            else:
                key = self._key(name)
                alike = Counter[int]() if alike is None else alike
                alike[hash(key)] += 1
                _check_alike(alike[hash(key)])
            if type(item) is str:
                made[key] = item
            elif type(item) is dict and type(marker := item.get("^EncodedType")) is str and (read := find(marker)) is not None:
                made[key] = read(self, item)
            else:
                made[key] = self.value(item)
        return made

    def _key(self, name: str) -> Any:
        if name == NULL_KEY:
            return None
        if not name.startswith(KEY_PREFIX):
            return name
        text = name[len(KEY_PREFIX) :].encode()
        try:
            check_json(text, 2 * _KEY_DEPTH)
            key = self.value(_decode(text))
        except (ValueError, RecursionError, EncodeError) as error:
            raise BadRequest(f"the map key {name[:60]!r} is not the JSON of a value: {error}") from error
        try:
            hash(key)
        except TypeError:
            raise BadRequest(f"the map key {name[:60]!r} is a {type(key).__name__}, which cannot be a key here") from None
        except Exception as error:
            raise _unhashable(error, f"the map key {name[:60]!r}") from error
        return key

    def _bytes(self, node: dict[str, Any]) -> Any:
        id, content, found = self._content(node, list)
        if found is not None:
            return found
        try:
            made = array("b", content).tobytes()
        except (TypeError, OverflowError) as error:
            raise BadRequest("[B contains whole numbers from -128 to 127") from error
        if id is not None:
            self._known[id] = made
        return made

    # -- objects ---------------------------------------------------------------------------------------------------------

    def _reference(self, node: dict[str, Any]) -> tuple[str | None, Any]:
        """Return an object's id, and the object itself if it has already been read."""
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
            raise BadRequest(f"two objects have the ^ObjectID {id!r}")
        return id, None

    def _content(self, node: dict[str, Any], kind: type) -> tuple[str | None, Any, Any]:
        """Return the id and the ``^Value`` of a container, and the object if it was already read or has no ``^Value``."""
        id, found = self._reference(node)
        content = node.get("^Value")
        if found is None and type(content) is not kind:
            found = self._opaque(node, id)
        return id, content, found

    def _other(self, node: dict[str, Any], name: Any) -> Any:
        if type(name) is not str:
            if name is not None:
                raise BadRequest(f"^EncodedType must be a string, not {type(name).__name__}")
            return {key: self.value(item) for key, item in node.items()}
        try:
            registered = self._types.of_name(name)
        except TypeError as error:
            raise BadRequest(str(error)) from error
        if registered is not None:
            made = _portable(registered) if isinstance(registered, Portable) else _constants(registered, name)
            self._readers[name] = made
            return made(self, node)
        if "^EnumStringValue" in node:
            return self._enum(node, name)
        if name[:1] == "[":  # any array
            return self._list(node)
        id, found = self._reference(node) if "^ObjectID" in node else (None, None)
        return found if found is not None else self._opaque(node, id, known=name.startswith(_BUILT_IN))

    def _enum(self, node: dict[str, Any], name: str) -> JavaEnum:
        constant = node["^EnumStringValue"]
        if type(constant) is not str:
            raise BadRequest(f"{name}: ^EnumStringValue must be a string")
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
        except Exception as error:  # the application's own checks may raise anything
            raise BadRequest(f"{how.java}: {misfit(error)[0]}") from error
        return made

    def _opaque(self, node: dict[str, Any], id: str | None, known: bool = False) -> JavaObject:
        """Store an object of an unregistered type, unless the mode is strict."""
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

    def _object(self, node: dict[str, Any]) -> Any:
        """Read a ``java.lang.Object``. Errai writes a null outside a message as such an object with a null value."""
        if "^Value" in node and node["^Value"] is None:
            return None
        return self._opaque(node, self._reference(node)[0])


def _portable(how: Portable) -> Read:
    return lambda reading, node: reading._portable(node, how)


def _constants(kind: type[enum.Enum], java: str) -> Read:
    """Accept enum constants with and without ``^ObjectID``, because both forms occur (notes section 9)."""
    constants: dict[Any, Any] = dict(kind.__members__)

    def read(reading: ValueReading, node: dict[str, Any]) -> Any:
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
        raise BadRequest(f"{where}: {misfit(error)[0]}") from error


def _check_alike(count: int) -> None:
    if count > _ALIKE:
        raise BadRequest(f"more than {_ALIKE} elements of a set, or keys of a map, have the same hash")


def _unhashable(error: Exception, what: str) -> BadRequest:
    """Return the error for an object that cannot be hashed, for example because it contains itself."""
    return error if isinstance(error, BadRequest) else BadRequest(f"{what} cannot be hashed: {misfit(error)[0]}")


def _named(package: str, names: str) -> list[str]:
    return [f"{package}.{name}" for name in names.split()]


READERS: Final[Mapping[str, Read]] = {
    **dict.fromkeys(_named("java.lang", "Integer Long Byte Short"), read_integer),
    **dict.fromkeys(_named("java.lang", "Double Float"), read_float),
    **dict.fromkeys(_named("java.lang", "Character String StringBuilder StringBuffer"), read_text),
    **dict.fromkeys(["java.util.Date", *_named("java.sql", "Date Time Timestamp")], read_date),
    **dict.fromkeys(_named("java.util", "Map HashMap LinkedHashMap SortedMap TreeMap"), ValueReading._map),
    **dict.fromkeys(_named("java.util", "Set HashSet LinkedHashSet SortedSet TreeSet"), ValueReading._set),
    **dict.fromkeys(_named("java.util", "List ArrayList LinkedList AbstractList Collection Vector Stack"), ValueReading._list),
    **dict.fromkeys(_named("java.util", "Queue PriorityQueue Arrays$ArrayList"), ValueReading._list),
    **dict.fromkeys(_named("java.util", "Collections$UnmodifiableList Collections$SynchronizedList"), ValueReading._list),
    **dict.fromkeys(_named("java.util", "Collections$SingletonList Collections$EmptyList"), ValueReading._list),
    "java.util.concurrent.ConcurrentHashMap": ValueReading._map,
    "java.util.Optional": lambda reading, node: reading.value(node.get("^Value")),
    "java.lang.Object": ValueReading._object,
    "java.lang.Boolean": read_boolean,
    "java.math.BigInteger": read_big_integer,
    "java.math.BigDecimal": read_big_decimal,
    "[B": ValueReading._bytes,
}
