"""Java values as the JSON that Errai reads and writes (notes sections 0.3 and 1.2 to 1.5): strings, ids, objects and enums of
unknown types, and the registry of application types.
"""

from __future__ import annotations

import decimal
import enum
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import attrs
import msgspec

from ...errors import EncodeError

_encode: Final = msgspec.json.Encoder().encode
_ESCAPE: Final = re.compile(rb"\\(u[0-9a-f]{4}|.)", re.DOTALL)


def quoted(text: str, ids: object = None) -> bytes:
    """Write a JSON string. `ids` is unused, but every writer has this parameter."""
    try:
        data = _encode(text)
    except UnicodeEncodeError as error:
        raise EncodeError(f"lone surrogate at character {error.start}") from error
    return upper_case(data) if b"\\u" in data else data


def json_text(value: object) -> bytes:
    data = _encode(value)
    return upper_case(data) if b"\\u" in data else data


def upper_case(data: bytes) -> bytes:
    """Convert ``\\uXXXX`` escapes to upper case, except after an escaped backslash."""
    return _ESCAPE.sub(_upper, data)


def _upper(found: re.Match[bytes]) -> bytes:
    escape: bytes = found[1]
    return b"\\u" + escape[1:].upper() if len(escape) == 5 else found[0]


def number(value: float) -> bytes:
    """Write a finite float in Java's notation: ``2.5``, ``1.0E21``."""
    text = float.__repr__(value)
    if "e" not in text:
        return text.encode()
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}".encode()


KEY_PREFIX: Final = "^${$JSON$}$::"
NULL_KEY: Final = "^NullVal"


class Numbering:
    """Assigns the object ids of one message, counted from 1 across all parts."""

    __slots__ = ("copied", "keep", "next", "seen")

    def __init__(self, first: int = 1) -> None:
        self.next: int = first
        self.seen: dict[int, int] = {}
        self.copied: bool = False  # True if a received part may have levels without ids
        self.keep: list[Any] = []  # Temporary objects, kept alive so that no other object gets the same `id()`

    def add(self, value: object) -> int:
        given = self.next
        self.next = given + 1
        self.seen[id(value)] = given
        return given

    def one(self) -> int:
        given = self.next
        self.next = given + 1
        return given


def throwable(text: str, ids: Numbering, of: object = None) -> bytes:
    """Write a RuntimeException without a stack trace. Every Errai client knows this class."""
    first, second = ids.add(of if of is not None else ids), ids.one()
    return (
        b'{"^EncodedType":"java.lang.RuntimeException","^ObjectID":"%d","stackTrace":{"^EncodedType":'
        b'"[Ljava.lang.StackTraceElement;","^ObjectID":"%d","^Value":[]},"message":%b,"cause":null}'
    ) % (first, second, quoted(text))


# -- Java's own values ---------------------------------------------------------------------------------------------------

T = TypeVar("T", bound=type)

_BARE: Final = (int, bool, float, str)
"""Field types that Errai reads without a marker because the Java field has a static type."""


class JavaObject(dict[str, Any]):
    """An object of an unregistered Java type, with its fields as plain values. If you send a received object, it is written
    unchanged.

    This makes ``returns=User`` and typed bodies work without registration, and other protocols transport a plain object. If you
    create an object yourself, such as ``JavaObject("x.Point", {"x": 1, "y": 2})``, each field is written with a marker, as
    Errai does for fields of type Object. A received object is always written as it was received, so create a new object instead
    of changing it.

    Attributes:
        type: Java class name.
        value: Content of ``^Value`` (collections, ``java.lang.Class``), otherwise `None`.
        node: The received JSON, or `None` for an object that you have created.
        table: Maps ids in `node` to objects.
    """

    __slots__ = ("node", "table", "type", "value")

    def __init__(self, type: str, fields: Mapping[str, Any] | None = None, value: Any = None) -> None:
        super().__init__(fields or {})
        self.type: str = type
        self.value: Any = value
        self.node: dict[str, Any] | None = None
        self.table: Mapping[str, Any] | None = None

    # Equal only to itself, which is the default in Java, and because it may contain itself.
    __hash__ = object.__hash__  # type: ignore[assignment]  # dict sets it to None

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
    java: str
    cls: type
    fields: tuple[tuple[str, str, bool], ...]  # Each field's Python name, Java name, and True if its numbers have no marker
    # Each ``__init__`` argument's name, Java name, type to convert to, and True if optional
    arguments: tuple[tuple[str, str, Any, bool], ...]

    def fill(self, made: Any, arguments: Mapping[str, Any]) -> None:
        """Initialise an object that has already been created, because its parts may refer to it."""
        # attrs generates `__attrs_init__` for a class with its own `__init__`.
        init = "__attrs_init__" if hasattr(self.cls, "__attrs_init__") else "__init__"
        getattr(made, init)(**arguments)


class JavaTypes:
    """The application's types and their Java names, for ``Jrep(java=types)``.

    ::

        types = JavaTypes()

        @types.portable("com.acme.User")
        @attrs.frozen
        class User:
            name: str
            age: int            # a Java int: written without a marker
            boss: "User | None" = None

    Register all types before use. Registries are compared by identity.
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

        Fields of type ``int``, ``float``, ``bool`` and ``str`` are written without markers because the Java fields have the
        same static type. Fields annotated with ``Any`` or ``object`` are written with markers. This also applies to an ``int``
        of more than 32 bits, which is a Java long. When an object is received, the class's converters, validators and
        ``__attrs_post_init__`` run. Fields with ``init=False`` are written but not read.

        Args:
            java: Java class name with its package; ``$`` separates an inner class.
            names: Maps Python field names to Java field names that differ.
            hints: Types of fields with annotations that cannot be resolved.

        Raises:
            TypeError: If the class is neither an attrs class nor an enum.
            ValueError: If the name or the class is already registered.
        """

        def register(cls: T) -> T:
            if java in self._by_name:
                raise ValueError(f"{java} is already registered as {self._by_name[java]!r}")
            if cls in self._by_class:
                raise ValueError(f"{cls.__name__} is already registered")
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
        """Return the rules for a class, or the Java name of an enum. Raises `TypeError` for an unresolved annotation."""
        found = self._by_class.get(cls)
        return self._resolved(found) if isinstance(found, Portable) else found

    def of_name(self, java: str) -> Portable | type[enum.Enum] | None:
        """Return the rules for a Java type, or its enum. Raises `TypeError` for an unresolved annotation."""
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
    """Return True if a field's static type determines its JSON form, as with ``int`` and ``float | None``."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if hint in _BARE:
        return True
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if get_origin(hint) is not None else []
    return len(kinds) == 1 and kinds[0] in _BARE and len(get_args(hint)) == 2


MAX_DIGITS: Final = 4300


def is_far(value: decimal.Decimal) -> bool:
    """Return True for values such as ``1E+900000000``, which would have gigabytes of digits as an int."""
    return abs(value.adjusted()) > MAX_DIGITS
