"""Remote procedure calls to Java interfaces, as in Errai (notes section 2.6).

A call is sent to ``<interface>:RPC``, with the method's signature as CommandType and the arguments in MethodParms. MethodReply
contains the result. On the bus, the subject is ``<interface>:RPC.<signature>`` and the body is the list of arguments. This
means that the bus's ordinary methods work, and that this module only has to create the names.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, ForwardRef, Protocol, TypeVar, get_args, get_origin, get_type_hints

from attrs import field, frozen

from ...errors import BadRequest
from ...plugins.tools import check_type, convert, misfit, scalar_form, shown, unreadable
from ...subjects import Subject
from .java import JavaEnum, JavaObject, JavaTypes, Portable
from .names import RPC_MARK
from .value_writer import Arguments, JavaType, java_type

F = TypeVar("F", bound=Callable[..., Any])

_JAVA_NAMES: Final[dict[Any, str]] = {
    int: "int",
    float: "double",
    bool: "boolean",
    str: "java.lang.String",
    list: "java.util.List",
    tuple: "java.util.List",
    dict: "java.util.Map",
    set: "java.util.Set",
    frozenset: "java.util.Set",
    bytes: "byte[]",
    datetime.datetime: "java.util.Date",
    decimal.Decimal: "java.math.BigDecimal",
}
_BOXED: Final = {"int": "java.lang.Integer", "double": "java.lang.Double", "boolean": "java.lang.Boolean"}


@frozen
class Method(Subject[Any, Any]):
    parameters: tuple[JavaType, ...] = field(default=(), eq=False)

    def given(self, body: Any) -> Any:
        """Attach the parameter types to the arguments so that each argument is written as its parameter's type."""
        return Arguments(body, self.parameters) if isinstance(body, (list, tuple)) else body


class HandlerRegistry(Protocol):
    """A bus or a router."""

    def handle(self, subject: Subject[Any, Any], /) -> Callable[..., Any]: ...


class RemoteInterface:
    """A Java interface with methods that you can call or implement over J.REP.

    ::

        calculator = RemoteInterface("com.acme.Calculator")
        ADD = calculator.method("add", int, int, returns=int)
        await bus.request(ADD, [2, 3])

        @calculator.handle(bus)
        async def add(left: int, right: int) -> int: ...

    Args:
        name: Java name of the interface.
        java: The application's types, if any parameters use them.

    Raises:
        TypeError, ValueError: If `name` is not a Java name, or `java` has the wrong type.
    """

    def __init__(self, name: str, java: JavaTypes | None = None) -> None:
        check_type(java, JavaTypes, "java", "JavaTypes()")
        _check_name(name, "an interface", "com.acme.Calculator")
        self.name: str = name
        self._java = java if java is not None else JavaTypes()

    def method(self, name: str, *parameters: Any, returns: Any = Any) -> Subject[Any, Any]:
        """Return a method's subject.

        To call the method, send a request to this subject with the list of arguments as body. Each argument is written as the
        type of its parameter.

        Args:
            name: Java name of the method.
            parameters: Types of the parameters, as Python types or as the names of Java types. ``int``, ``float`` and ``bool``
                mean Java's ``int``, ``double`` and ``boolean``, and ``int | None`` means ``java.lang.Integer``. Use names for
                other types: ``"long"``, ``"java.lang.Long"``, ``"char"``, ``"int[]"``, ``"java.util.List<java.lang.Long>"``.
            returns: Type to convert the result to.

        Raises:
            TypeError: If a type has no Java name.
            ValueError: If `name` is not a Java name.
        """
        return self._method(name, tuple(self._java_type(parameter) for parameter in parameters), returns)

    def _method(self, name: str, types: tuple[JavaType, ...], returns: Any) -> Method:
        _check_name(name, "a method", "add")
        signature = "".join(f"{kind.name}:" for kind in types)
        return Method(f"{self.name}{RPC_MARK}{name}:{signature}", list, returns, types)

    def call(self, bus: Any, method: str, *arguments: Any, returns: Any = Any, **options: Any) -> Any:
        """Call a method with the parameter types of these arguments. If the method has other parameter types, use `method`.

        Args:
            bus: A bus or a peer.
            method: Java name of the method.
            arguments: The arguments.
            returns: Type to convert the result to.
            options: Options of `Bus.request`: ``timeout``, ``headers``, ``to``.

        Returns:
            The `Reply`.

        Raises:
            TypeError: If an argument has no Java name.
            BusError: As in `Bus.request`.
        """
        subject = self.method(method, *map(self._type_of, arguments), returns=returns)
        return bus.request(subject, list(arguments), **options)

    def handle(self, router: HandlerRegistry, name: str | None = None, *parameters: Any) -> Callable[[F], F]:
        """Implement a method with a function that has the same positional parameters.

        Args:
            router: The bus or router.
            name: Java name of the method. Defaults to the name of the function.
            parameters: Types of the parameters, as for `method`. Defaults to the function's annotations, where ``int`` also
                matches ``Integer``.

        Raises:
            TypeError: If a parameter has no Java type, or the function cannot implement a method because it has keyword or
                variadic parameters, has a different number of parameters, or is a generator.
            ValueError: If `name` is not a Java name.
        """
        if not hasattr(router, "handle"):
            raise TypeError(f"handle({shown(router)}): pass a Bus or a Router, as in @interface.handle(bus)")

        def register(function: F) -> F:
            types = _types(function, named=not parameters)
            if parameters and len(parameters) != len(types):
                raise TypeError(f"{function.__qualname__} takes {len(types)} arguments, but {len(parameters)} types are given")
            java = tuple(self._java_type(kind) for kind in (parameters or types.values()))
            handler = _with_list(function, list(types.values()))
            router.handle(self._method(name or function.__name__, java, Any))(handler)
            if not parameters:
                boxed = tuple(JavaType(_BOXED.get(kind.name, kind.name)) for kind in java)
                if boxed != tuple(JavaType(kind.name) for kind in java):
                    router.handle(self._method(name or function.__name__, boxed, Any))(handler)
            return function

        return register

    def _type_of(self, value: Any) -> Any:
        if isinstance(value, (JavaObject, JavaEnum)):
            return value.type
        value = value if isinstance(value, enum.Enum) else scalar_form(value)
        if type(value) is not int or -0x8000_0000 <= value <= 0x7FFF_FFFF:
            return type(value)
        return "long" if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF else "java.math.BigInteger"

    def _java_type(self, kind: Any) -> JavaType:
        while get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        if isinstance(kind, ForwardRef):
            kind = kind.__forward_arg__
        if isinstance(kind, str):
            return java_type(kind)
        if kind is Any or kind is object or kind is type(None):
            return JavaType("java.lang.Object")
        arguments = get_args(kind)
        kinds = [one for one in arguments if one is not type(None)]
        if len(kinds) == 1 and type(None) in arguments:
            made = self._java_type(kinds[0])
            return JavaType(_BOXED.get(made.name, made.name), made.arguments)
        plain = get_origin(kind) or kind
        if isinstance(plain, type):
            registered = self._java.of_class(plain)
            if registered is not None:
                return JavaType(registered.java if isinstance(registered, Portable) else registered)
            if plain in _JAVA_NAMES:
                return JavaType(_JAVA_NAMES[plain], self._elements(arguments))
        raise TypeError(f"{kind!r} has no Java name: write it as a string, for example 'java.lang.Long', or register the type")

    def _elements(self, arguments: tuple[Any, ...]) -> tuple[JavaType, ...]:
        """Return the element types if the annotation names Java types. Otherwise the elements' values decide."""
        if not any(isinstance(one, (str, ForwardRef)) for one in arguments):
            return ()
        return tuple(self._java_type(one) for one in arguments if one is not Ellipsis)


def _check_name(name: Any, what: str, example: str) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"name={shown(name)} must be the Java name of {what}, for example {example!r}, not {type(name).__name__}"
        )
    parts = name.split(".") if "." in example else [name]
    if not all(part.replace("$", "_").isidentifier() for part in parts):
        raise ValueError(f"name={shown(name)} must be the Java name of {what}, for example {example!r}")


def _types(function: Callable[..., Any], *, named: bool) -> dict[str, Any]:
    """Return the types of the parameters. With `named`, each needs an annotation, which identifies the method."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator: a Java method has one result")
    hints = get_type_hints(function, include_extras=True)
    types: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and one.default is not one.empty:
            continue
        if one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
            text = f"{str(one)!r} cannot be passed: a Java method has only positional parameters"
            raise TypeError(f"{function.__qualname__}: {text}")
        if named and one.name not in hints:
            text = f"parameter {one.name!r} has no annotation, but a Java method is found by its types"
            raise TypeError(f"{function.__qualname__}: {text}")
        types[one.name] = hints.get(one.name, Any)
        if (problem := unreadable(types[one.name])) is not None:
            raise TypeError(f"{function.__qualname__}: no argument can be read as the type of {one.name!r}: {problem}")
    return types


def _with_list(function: Callable[..., Any], types: list[Any]) -> Callable[..., Any]:
    """Wrap a function as a handler that takes the list of arguments as its body."""

    def taken(body: Any) -> list[Any]:
        body = [] if body is None else body
        if not isinstance(body, (list, tuple)) or len(body) != len(types):
            raise BadRequest(f"the body must be a list of {len(types)} arguments")
        made = []
        for number, (value, kind) in enumerate(zip(body, types, strict=True)):
            try:
                made.append(convert(value, kind))
            except Exception as error:  # the application's own checks may raise anything
                raise BadRequest(f"argument {number + 1}: {misfit(error)[0]}") from error
        return made

    if inspect.iscoroutinefunction(function):

        async def answer(body: Any) -> Any:
            return await function(*taken(body))

        return _named(answer, function)

    def answer_plainly(body: Any) -> Any:
        return function(*taken(body))

    return _named(answer_plainly, function)


def _named(made: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    made.__name__, made.__qualname__, made.__module__ = function.__name__, function.__qualname__, function.__module__
    return made
