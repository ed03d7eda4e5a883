"""Counterparts of what only Java has: objects of unknown types, enum constants, and a registry for the application's own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import attrs

T = TypeVar("T", bound=type)

_BARE: Final = (int, bool, float, str)
"""Field types that Errai reads without a marker, because the Java field has a static type."""


class JavaObject(dict[str, Any]):
    """An object of a Java type that is not registered: its fields, as plain values. It is written again as it came.

    So ``returns=User`` and a typed body work without registering anything, and other protocols carry it as a plain object.
    Made by hand, ``JavaObject("x.Point", {"x": 1, "y": 2})``, its fields are written with markers of their own, as Errai does
    for fields of type Object. One that came in is written as it came, whatever is done to it: to change it, make another.

    Attributes:
        type: The Java class name.
        value: Of a type that keeps its content in ``^Value`` (collections, ``java.lang.Class``); else None.
        node: The JSON that came in; None of an object made by hand.
        table: The objects that the ids in `node` stand for.
    """

    __slots__ = ("node", "table", "type", "value")

    def __init__(self, type: str, fields: Mapping[str, Any] | None = None, value: Any = None) -> None:
        super().__init__(fields or {})
        self.type: str = type
        self.value: Any = value
        self.node: dict[str, Any] | None = None
        self.table: Mapping[str, Any] | None = None

    # As in Java where a class says nothing else: an object is equal to itself. It may contain itself.
    __hash__ = object.__hash__  # type: ignore[assignment]  # of dict it is None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        return f"JavaObject({self.type!r}, {', '.join(self) or 'no fields'})"


@attrs.frozen
class JavaEnum:
    """A constant of a Java enum that is not registered."""

    type: str
    name: str

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class Portable:
    """Rules by which objects of one registered class are written and read.

    Attributes:
        fields: For each: its name here, its name in Java, and whether its numbers stay bare.
        arguments: For each that ``__init__`` takes: the argument's name, the name in Java, the type to convert to, and whether
            it may be left out.
    """

    java: str
    cls: type
    fields: tuple[tuple[str, str, bool], ...]
    arguments: tuple[tuple[str, str, Any, bool], ...]

    def fill(self, made: Any, arguments: Mapping[str, Any]) -> None:
        """Make an object of what has been made already, so that what it contains may refer to it."""
        # attrs makes one of them; the former for a class with an __init__ of its own.
        init = "__attrs_init__" if hasattr(self.cls, "__attrs_init__") else "__init__"
        getattr(made, init)(**arguments)


class JavaTypes:
    """The application's own types and their Java names: ``Jrep(java=types)``.

    ::

        types = JavaTypes()

        @types.portable("com.acme.User")
        @attrs.frozen
        class User:
            name: str
            age: int            # a Java int: written without a marker
            boss: "User | None" = None

    Fill it before it is used; a registry is compared by identity.
    """

    def __init__(self) -> None:
        self._by_class: dict[type, Portable | str] = {}
        self._by_name: dict[str, Portable | type[enum.Enum]] = {}
        self._waiting: dict[str, tuple[Mapping[str, str], Mapping[str, Any] | None]] = {}
        # Classes whose fields have not been looked at: their annotations may name classes that come later.

    def portable(
        self, java: str, *, names: Mapping[str, str] | None = None, hints: Mapping[str, Any] | None = None
    ) -> Callable[[T], T]:
        """Register an attrs class, or an enum.

        Fields of the types ``int``, ``float``, ``bool`` and ``str`` count as such in Java too, so they are written bare. A
        field annotated ``Any`` or ``object`` is written with markers; so is an ``int`` beyond 32 bits, which Java calls long.
        What comes in is made with the class's own converters, validators and ``__attrs_post_init__``; fields with
        ``init=False`` are written only.

        Args:
            java: The Java class name, with its package; of an inner class with ``$``.
            names: From the names of fields in Python to those in Java, where they differ.
            hints: Types of fields, where annotations cannot be resolved.

        Raises:
            TypeError: The class is neither attrs nor enum.
            ValueError: The name or the class is registered already.
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
        """Rules for objects of a class; of an enum its Java name. May raise `TypeError`: an annotation cannot be resolved."""
        found = self._by_class.get(cls)
        return self._resolved(found) if isinstance(found, Portable) else found

    def of_name(self, java: str) -> Portable | type[enum.Enum] | None:
        """Rules for objects of a Java type. May raise `TypeError`: an annotation of the class cannot be resolved."""
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
            raise TypeError(f"{name}: {error}; say what it is with portable(..., hints=...)") from error
        fields, arguments = list[tuple[str, str, bool]](), list[tuple[str, str, Any, bool]]()
        for one in attrs.fields(portable.cls):
            hint, java = types.get(one.name, Any), names.get(one.name, one.name.lstrip("_"))
            fields.append((one.name, java, _is_bare(hint)))
            if one.init:  # a converter takes what it likes
                arguments.append((one.alias, java, Any if one.converter else hint, one.default is not attrs.NOTHING))
        made = Portable(portable.java, portable.cls, tuple(fields), tuple(arguments))
        self._by_class[portable.cls] = self._by_name[portable.java] = made
        del self._waiting[portable.java]
        return made


def _is_bare(hint: Any) -> bool:
    """True if a field's static type says what a bare JSON value is: ``int``, ``float | None`` and the like."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if hint in _BARE:
        return True
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if get_origin(hint) is not None else []
    return len(kinds) == 1 and kinds[0] in _BARE and len(get_args(hint)) == 2
