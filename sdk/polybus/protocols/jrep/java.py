"""Java's values in JSON as Errai reads and writes them (notes sections 0.3 and 1.2 to 1.5).

It has the text and ids that all writers use, objects of unknown types, enum constants, the registry of the application's types,
and single values in both directions. Readers get the object with the marker, writers the value and the ids of the message.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import attrs
import msgspec

from ...errors import BadRequest, EncodeError

_encode: Final = msgspec.json.Encoder().encode
_ESCAPE: Final = re.compile(rb"\\(u[0-9a-f]{4}|.)", re.DOTALL)


def quoted(text: str, ids: object = None) -> bytes:
    """Write a JSON string (`ids` is unused, as writers take it). May raise `EncodeError`: lone surrogate."""
    try:
        data = _encode(text)
    except UnicodeEncodeError as error:
        raise EncodeError(f"lone surrogate at character {error.start}") from error
    return upper_case(data) if b"\\u" in data else data


def json_text(value: object) -> bytes:
    data = _encode(value)
    return upper_case(data) if b"\\u" in data else data


def upper_case(data: bytes) -> bytes:
    """Convert ``\\uXXXX`` escapes to upper case; escaped backslashes are skipped."""
    return _ESCAPE.sub(_upper, data)


def _upper(found: re.Match[bytes]) -> bytes:
    escape: bytes = found[1]
    return b"\\u" + escape[1:].upper() if len(escape) == 5 else found[0]


def number(value: float) -> bytes:
    """A finite float in Java's notation: ``2.5``, ``1.0E21``."""
    text = float.__repr__(value)
    if "e" not in text:
        return text.encode()
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}".encode()


KEY_PREFIX: Final = "^${$JSON$}$::"
NULL_KEY: Final = "^NullVal"
HASHED_TYPES: Final = frozenset(
    "java.math.BigInteger java.math.BigDecimal java.util.Date java.sql.Date java.sql.Time java.sql.Timestamp "
    "java.util.Optional".split()
)
"""Types with a hash code in ``^ObjectID``, which is not an id (notes section 1.4)."""
LIST: Final = b'{"^EncodedType":"java.util.ArrayList","^ObjectID":"%d","^Value":[%b]}'
SET: Final = b'{"^EncodedType":"java.util.HashSet","^ObjectID":"%d","^Value":[%b]}'
MAP: Final = b'{"^EncodedType":"java.util.LinkedHashMap","^ObjectID":"%d","^Value":{%b}}'


class Numbering:
    """The ids of one message: each object gets its own, counted from 1 across all parts."""

    __slots__ = ("copied", "keep", "next", "seen")

    def __init__(self, first: int = 1) -> None:
        self.next: int = first
        self.seen: dict[int, int] = {}
        self.copied: bool = False  # True if a received part may have levels without ids
        self.keep: list[Any] = []  # Temporary objects, kept alive so that no other object gets the same `id()`

    def add(self, value: object) -> int:
        """Assign the id of an object that may be referred to."""
        given = self.next
        self.next = given + 1
        self.seen[id(value)] = given
        return given

    def one(self) -> int:
        given = self.next
        self.next = given + 1
        return given


def throwable(text: str, ids: Numbering, of: object = None) -> bytes:
    """Write a RuntimeException, which each Errai client knows, without a stack."""
    first, second = ids.add(of if of is not None else ids), ids.one()
    return (
        b'{"^EncodedType":"java.lang.RuntimeException","^ObjectID":"%d","stackTrace":{"^EncodedType":'
        b'"[Ljava.lang.StackTraceElement;","^ObjectID":"%d","^Value":[]},"message":%b,"cause":null}'
    ) % (first, second, quoted(text))


# -- Java's own values ---------------------------------------------------------------------------------------------------

T = TypeVar("T", bound=type)

_BARE: Final = (int, bool, float, str)
"""Field types that Errai reads without a marker, because the Java field has a static type."""


class JavaObject(dict[str, Any]):
    """An object of an unregistered Java type: its fields as plain values. It is written again unchanged.

    So ``returns=User`` and a typed body work without registration, and other protocols carry it as a plain object. An object
    that you make, ``JavaObject("x.Point", {"x": 1, "y": 2})``, is written with a marker for each field, as Errai does for
    fields of type Object. A received object is written as received, even if you change it: make another instead.

    Attributes:
        type: Java class name.
        value: Content in ``^Value`` (collections, ``java.lang.Class``); otherwise None.
        node: Received JSON; None for an object that you made.
        table: Objects by the ids in `node`.
    """

    __slots__ = ("node", "table", "type", "value")

    def __init__(self, type: str, fields: Mapping[str, Any] | None = None, value: Any = None) -> None:
        super().__init__(fields or {})
        self.type: str = type
        self.value: Any = value
        self.node: dict[str, Any] | None = None
        self.table: Mapping[str, Any] | None = None

    # Equal only to itself, as Java's default. It may contain itself.
    __hash__ = object.__hash__  # type: ignore[assignment]  # of dict it is None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        return f"JavaObject({self.type!r}, {', '.join(self) or 'no fields'})"


@attrs.frozen
class JavaEnum:
    """A constant of an unregistered Java enum."""

    type: str
    name: str

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class Portable:
    """Rules for writing and reading objects of one registered class.

    Attributes:
        fields: Each field's Python name, Java name, and True if its numbers have no marker.
        arguments: Each ``__init__`` argument's name, Java name, type to convert to, and True if optional.
    """

    java: str
    cls: type
    fields: tuple[tuple[str, str, bool], ...]
    arguments: tuple[tuple[str, str, Any, bool], ...]

    def fill(self, made: Any, arguments: Mapping[str, Any]) -> None:
        """Initialise an object that was created earlier, so that its parts may refer to it."""
        # attrs generates `__attrs_init__` for a class with its own `__init__`.
        init = "__attrs_init__" if hasattr(self.cls, "__attrs_init__") else "__init__"
        getattr(made, init)(**arguments)


class JavaTypes:
    """The application's types and their Java names: ``Jrep(java=types)``.

    ::

        types = JavaTypes()

        @types.portable("com.acme.User")
        @attrs.frozen
        class User:
            name: str
            age: int            # a Java int: written without a marker
            boss: "User | None" = None

    Register all types before use; registries are compared by identity.
    """

    def __init__(self) -> None:
        self._by_class: dict[type, Portable | str] = {}
        self._by_name: dict[str, Portable | type[enum.Enum]] = {}
        self._waiting: dict[str, tuple[Mapping[str, str], Mapping[str, Any] | None]] = {}
        # Classes with unresolved fields: their annotations may name later classes.

    def portable(
        self, java: str, *, names: Mapping[str, str] | None = None, hints: Mapping[str, Any] | None = None
    ) -> Callable[[T], T]:
        """Register an attrs class or an enum.

        Fields of type ``int``, ``float``, ``bool`` and ``str`` have the same static type in Java, so they are written without
        markers. A field annotated ``Any`` or ``object`` gets a marker, as does an ``int`` beyond 32 bits, a Java long. Received
        objects are made with the class's converters, validators and ``__attrs_post_init__``; fields with ``init=False`` are
        only written.

        Args:
            java: Java class name with its package; ``$`` separates an inner class.
            names: Java names of fields, by Python name, if different.
            hints: Types of fields with annotations that cannot be resolved.

        Raises:
            TypeError: The class is neither attrs nor enum.
            ValueError: The name or the class is already registered.
        """

        def register(cls: T) -> T:
            if java in self._by_name:
                raise ValueError(f"{java} is registered already, as {self._by_name[java]!r}")
            if cls in self._by_class:
                raise ValueError(f"{cls.__name__} is registered already")
            if issubclass(cls, enum.Enum):
                self._by_class[cls] = java
                self._by_name[java] = cls
                return cls
            kind: type = cls
            if not attrs.has(kind):
                raise TypeError(f"{cls.__name__}: only attrs classes and enums can be registered as {java}")
            portable = Portable(java, cls, (), ())
            self._by_class[cls] = self._by_name[java] = portable
            self._waiting[java] = names or {}, hints
            return cls

        return register

    def of_class(self, cls: type) -> Portable | str | None:
        """Rules for a class, or the Java name of an enum. May raise `TypeError`: unresolvable annotation."""
        found = self._by_class.get(cls)
        return self._resolved(found) if isinstance(found, Portable) else found

    def of_name(self, java: str) -> Portable | type[enum.Enum] | None:
        """Rules for a Java type. May raise `TypeError`: unresolvable annotation."""
        found = self._by_name.get(java)
        return self._resolved(found) if isinstance(found, Portable) else found

    def _resolved(self, portable: Portable) -> Portable:
        waiting = self._waiting.get(portable.java)
        if waiting is None:
            return portable
        names, hints = waiting
        try:
            types = hints if hints is not None else get_type_hints(portable.cls, include_extras=True)
        except NameError as error:
            name = f"{portable.cls.__name__}, registered as {portable.java}"
            raise TypeError(f"{name}: {error}; name its type with portable(..., hints=...)") from error
        fields, arguments = list[tuple[str, str, bool]](), list[tuple[str, str, Any, bool]]()
        for one in attrs.fields(portable.cls):
            hint, java = types.get(one.name, Any), names.get(one.name, one.name.lstrip("_"))
            fields.append((one.name, java, _is_bare(hint)))
            if one.init:  # a converter takes any type
                arguments.append((one.alias, java, Any if one.converter else hint, one.default is not attrs.NOTHING))
        made = Portable(portable.java, portable.cls, tuple(fields), tuple(arguments))
        self._by_class[portable.cls] = self._by_name[portable.java] = made
        del self._waiting[portable.java]
        return made


def _is_bare(hint: Any) -> bool:
    """True if a field's static type determines its bare JSON: ``int``, ``float | None`` and the like."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if hint in _BARE:
        return True
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if get_origin(hint) is not None else []
    return len(kinds) == 1 and kinds[0] in _BARE and len(get_args(hint)) == 2


BOOLEANS: Final = {
    value: b'{"^EncodedType":"java.lang.Boolean","^ObjectID":"-1","^NumVal":%b}' % text
    for value, text in ((True, b"true"), (False, b"false"))
}
_SMALL: Final = {
    value: b'{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":%d}' % value for value in range(-128, 1024)
}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_UTC: Final = datetime.UTC
_from_timestamp: Final = datetime.datetime.fromtimestamp
_MAX_DIGITS: Final = 4300
_SPECIAL: Final[Mapping[str, float]] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _is_far(value: decimal.Decimal) -> bool:
    """True for values like ``1E+900000000``, with gigabytes of digits as an int."""
    return abs(value.adjusted()) > _MAX_DIGITS


# -- reading -------------------------------------------------------------------------------------------------------------


def _odd(node: dict[str, Any], wanted: str) -> NoReturn:
    raise BadRequest(f"{node['^EncodedType']} needs {wanted}")


def _whole(text: Any) -> int | None:
    try:
        return int(text) if type(text) is str and len(text) <= _MAX_DIGITS else None
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
    return made if made is not None else _odd(node, f"up to {_MAX_DIGITS} digits as a string in ^Value")


def read_big_decimal(reading: object, node: dict[str, Any]) -> Any:
    value = node.get("^Value")
    if type(value) is str and len(value) <= _MAX_DIGITS:
        try:
            if (made := decimal.Decimal(value)).is_finite() and not _is_far(made):
                return made
        except decimal.InvalidOperation:
            pass
    return _odd(node, f"a decimal number as text in ^Value, with at most {_MAX_DIGITS} digits before or after its point")


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


# -- writing -------------------------------------------------------------------------------------------------------------


def write_integer(value: int, ids: object) -> bytes:
    small = _SMALL.get(value)
    if small is not None:
        return small
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return b'{"^EncodedType":"java.lang.Integer","^ObjectID":"-1","^NumVal":%d}' % value
    if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        return b'{"^EncodedType":"java.lang.Long","^ObjectID":"-1","^NumVal":"%d"}' % value
    return write_big_integer(value)


def write_big_integer(value: int) -> bytes:
    return b'{"^EncodedType":"java.math.BigInteger","^ObjectID":"-1","^Value":"%b"}' % _digits(value)


def write_marked(java: str, value: bytes) -> bytes:
    return b'{"^EncodedType":"%b","^ObjectID":"-1","^NumVal":%b}' % (java.encode(), value)


def _digits(value: int) -> bytes:
    try:
        return str(value).encode()
    except ValueError as error:  # CPython's limit of 4,300 digits
        raise EncodeError(f"an integer of {value.bit_length()} bits is too long") from error


def write_double(value: float, ids: object) -> bytes:
    if math.isfinite(value):
        return b'{"^EncodedType":"java.lang.Double","^ObjectID":"-1","^NumVal":%b}' % number(value)
    name = b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity"
    return b'{"^EncodedType":"java.lang.Double","^ObjectID":"-1","^NumVal":"%b"}' % name


def write_decimal(value: decimal.Decimal, ids: object) -> bytes:
    if not value.is_finite():
        raise EncodeError(f"java.math.BigDecimal has no {value}")
    if _is_far(value):
        raise EncodeError(f"{value:.6E} has more than {_MAX_DIGITS} digits before or after its point")
    return b'{"^EncodedType":"java.math.BigDecimal","^ObjectID":"-1","^Value":"%b"}' % str(value).encode()


def write_date(value: datetime.datetime, ids: object) -> bytes:
    """Write whole milliseconds, the precision of java.util.Date."""
    if value.tzinfo is None:
        raise EncodeError("a datetime without a time zone: java.util.Date is a moment; give it one, for example datetime.UTC")
    return b'{"^EncodedType":"java.util.Date","^ObjectID":"-1","^Value":"%d"}' % ((value - _EPOCH) // _MILLISECOND)


def write_java_enum(value: JavaEnum, ids: object) -> bytes:
    return enum_constant(value.type, value.name)


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
    """Write a constant without an id, because real Errai does not read an enum with one (notes section 1.5)."""
    return b'{"^EncodedType":%b,"^EnumStringValue":%b}' % (quoted(java), quoted(name))
