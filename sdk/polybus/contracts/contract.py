"""Reads a contract from a Protocol class, and turns the methods of an implementation into handlers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, Final, ForwardRef, Literal, NoReturn, TypeAlias, get_args, get_origin

from attrs import frozen
from msgspec.structs import replace

from .._core.handlers.handler import Handler, check_body, check_result, plan, read_as
from .._core.handlers.signature import IMPORT_IT, Signature, gives_many, hints_of, injected, lost_result, read
from .._core.rpc.reply import Reply
from .._util.class_shapes import open_variable, own_annotations, substituted, variables_of
from .._util.typed_body import remembered, unreadable
from .._validation import shown, type_name
from ..errors import LocalProtocolError, ReservedSubject
from ..subjects import Subject, check_subject
from . import Marks

Style: TypeAlias = Literal["request", "stream", "notification"]

_MANY_BLOCKING: Final = (Iterator, Generator)
_PROMISES: Final = (Awaitable, Coroutine, Reply)
_FOR_IMPLEMENTATIONS: Final = ("__init__", "__init_subclass__", "__subclasshook__", "__annotate__", "__annotate_func__")


@frozen
class ContractMethod:
    """One method of a contract."""

    name: str  # With the name of the class
    attribute: str  # Without the name of the class
    function: Callable[..., Any]  # The function in the class
    signature: inspect.Signature  # Without ``self``
    takes: Any  # Type of the body, or None if there is no body
    returns: Any  # Type of the answer, or of a stream's items
    style: Style
    tail: str | int  # Part of the subject after the prefix. An integer or a URI is a whole subject.
    timeout: float | None  # Seconds, if the contract sets a timeout
    text: str  # The docstring

    @property
    def parameter(self) -> inspect.Parameter | None:
        return next(iter(self.signature.parameters.values()), None)

    @property
    def positional(self) -> bool:
        """True if the body may be passed by position."""
        return self.parameter is not None and self.parameter.kind is not self.parameter.KEYWORD_ONLY

    @property
    def hints(self) -> dict[str, Any]:
        """Types of the body and the result by annotation name."""
        many: Any = AsyncIterator
        body = {} if self.parameter is None else {self.parameter.name: self.takes}
        return {**body, "return": many[self.returns] if self.style == "stream" else self.returns}

    def subject(self, prefix: str) -> str | int:
        """Return the subject of the method under a prefix. Raises `TypeError` if it is not valid."""
        tail, whole = self.tail, isinstance(self.tail, int) or self.tail.startswith(("/", "up:/"))
        if whole and prefix:
            raise TypeError(
                f"{self.name} has its own subject {tail!r}, which cannot have the prefix {prefix!r}: leave out "
                "the prefix, and put methods with a number or a URI into a contract of their own"
            )
        subject = tail if whole or not prefix else f"{prefix}{'/' if '/' in prefix else '.'}{tail}"
        try:
            check_subject(subject)
        except (LocalProtocolError, ReservedSubject) as error:
            raise TypeError(f"{self.name} would have the invalid subject {shown(subject)}: {error}") from None
        return subject


@frozen
class ContractPlan:
    """A Protocol class and its methods."""

    name: str
    blocking: bool  # True if the methods are plain functions, for threads
    methods: tuple[ContractMethod, ...]  # In order of definition
    text: str  # The docstring

    @classmethod
    def of(cls, contract: Any) -> ContractPlan:
        """Read a Protocol class (cached). Raises `TypeError` if it cannot be used as a contract, and says what to write."""
        if not is_protocol(contract):
            own = isinstance(contract, type) and contract.__module__ != "builtins"
            why = f"; derive {contract.__name__} from typing.Protocol itself" if own else ""
            example = "class Users(Protocol): async def get(self, id: int) -> User: ..."
            raise TypeError(f"{shown(contract)} is not a contract: use a Protocol class, as in `{example}`{why}")
        return _read_once(contract)

    def subjects(self, prefix: str) -> dict[str | int, ContractMethod]:
        """Return the methods by subject. Raises `TypeError` if the prefix is not valid or two methods share a subject."""
        if not isinstance(prefix, str):
            raise TypeError(
                f"the prefix {shown(prefix)} of {self.name} must be a string such as 'user', not {type(prefix).__name__}"
            )
        if prefix.endswith((".", "/")):
            mark = "dot" if prefix.endswith(".") else "slash"
            raise TypeError(f"the prefix {prefix!r} of {self.name}: polybus adds the {mark}, write {prefix.rstrip('./')!r}")
        found: dict[str | int, ContractMethod] = {}
        for method in self.methods:
            other = found.setdefault(method.subject(prefix), method)
            if other is not method:
                raise TypeError(f"{method.name} and {other.name} have the same subject {method.subject(prefix)!r}: rename one")
        return found


def is_protocol(contract: Any) -> bool:
    """Return True for a Protocol class, including a generic class with type arguments."""
    kind = get_origin(contract) or contract
    return isinstance(kind, type) and bool(getattr(kind, "_is_protocol", False))


# -- the class ------------------------------------------------------------------------------------------------------------


def _read(contract: Any) -> ContractPlan:
    kind = get_origin(contract) or contract
    name = kind.__name__
    types = variables_of(contract)
    functions: dict[str, tuple[Any, dict[Any, Any]]] = {}
    for base in reversed(kind.__mro__):
        if getattr(base, "_is_protocol", False) and base.__module__ not in ("typing", "typing_extensions"):
            functions |= {key: (function, types[base]) for key, function in _functions(base, name).items()}
    if not functions:
        raise TypeError(f"{name} has no methods: write `async def get(self, id: int) -> User: ...`")
    blocking = not any(_is_asynchronous(function, f"{name}.{key}") for key, (function, _) in functions.items())
    methods = tuple(_PlanReader(f"{name}.{key}", *found, blocking).read() for key, found in functions.items())
    return ContractPlan(name, blocking, methods, inspect.cleandoc(vars(kind).get("__doc__") or ""))  # not Protocol's


_read_once = remembered(_read)


def _functions(base: type, name: str) -> dict[str, Any]:
    for attribute in own_annotations(base):
        if not attribute.startswith("_"):
            raise TypeError(f"{name}.{attribute} is an attribute, not a method: write `async def {attribute}(self) -> ...`")
    found = {}
    for attribute, value in vars(base).items():
        if attribute in _FOR_IMPLEMENTATIONS or (attribute.startswith("_") and not inspect.isfunction(value)):
            continue
        if attribute.startswith("__") and attribute.endswith("__"):
            raise TypeError(f"{name}.{attribute} is a special method of Python: give it another name")
        if attribute.startswith("_"):
            raise TypeError(f"{name}.{attribute} is private: methods of a contract are public, so move it elsewhere")
        if not inspect.isfunction(value):
            kind = {property: "a property", staticmethod: "a staticmethod", classmethod: "a classmethod"}.get(
                type(value), f"no method but a {type(value).__name__}"
            )
            raise TypeError(f"{name}.{attribute} is {kind}: a contract has only methods, `async def {attribute}(self) -> ...`")
        if value.__name__ == "_overload_dummy":  # left by typing.overload
            raise TypeError(f"{name}.{attribute} is overloaded, but a subject has one type: write a union, or two methods")
        found[attribute] = value
    return found


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # names known only to type checkers would be looked up
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _is_asynchronous(function: Callable[..., Any], name: str) -> bool:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    return gives_many(hints_of(function, _signature(function).parameters.values(), name).get("return"))


# -- one method -----------------------------------------------------------------------------------------------------------


@frozen
class _PlanReader:
    name: str
    function: Callable[..., Any]
    types: dict[Any, Any]
    blocking: bool

    def read(self) -> ContractMethod:
        function, name = self.function, self.name
        attribute = name.rpartition(".")[2]
        signature = _signature(function)
        first, parameters = next(iter(signature.parameters.values()), None), list(signature.parameters.values())[1:]
        if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
            self._wrong("has no self: write it as the first parameter")
        if first.name != "self" and first.annotation is not first.empty:
            self._wrong(f"has no self: write it as the first parameter, before {first.name!r}")
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                self._wrong(f"takes {shown(str(parameter))}, but a message has one body: write one parameter with its type")
        if len(parameters) > 1:
            names = " and ".join(f"{parameter.name!r}" for parameter in parameters)
            self._wrong(
                f"takes {names}, but a message has one body: put them into one class (attrs, dataclass, TypedDict, ...), "
                f"`{attribute}(self, query: {attribute.title().replace('_', '')})`"
            )
        hints = hints_of(function, parameters, name)
        style, returns = self._result(hints)
        takes = None
        for place, parameter in enumerate(parameters):
            takes = self._body(parameter, hints)
            if self.types:  # with its type arguments, because people see this signature
                parameters[place] = parameter.replace(annotation=takes)
        marks = Marks.of(function)
        if style == "notification" and marks.timeout is not None:
            self._wrong("is a notification, which has no answer: leave out timeout=")
        return ContractMethod(
            name,
            attribute,
            function,
            signature.replace(parameters=parameters),
            takes,
            returns,
            style,
            attribute if marks.name is None else marks.name,
            marks.timeout,
            inspect.getdoc(function) or "",
        )

    def _body(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
        if parameter.annotation is parameter.empty:
            self._wrong(f"has no type for {parameter.name!r}: write `{parameter.name}: GetUser`, or Any")
        hint = substituted(hints[parameter.name], self.types)
        try:
            given = injected(hint)
        except TypeError:
            given = hint
        if given is not None:
            self._wrong(
                f"takes {parameter.name!r}, {type_name(hint)}, which only handlers have: leave it out; "
                "an implementation takes it as `ctx: Context | None = None`, and bus.channel() opens a channel"
            )
        self._check_readable(hint, f"the type of {parameter.name!r}")
        return hint

    def _result(self, hints: dict[str, Any]) -> tuple[Style, Any]:
        function, marks = self.function, Marks.of(self.function)
        if (lost := lost_result(function, hints)) is not None:
            self._wrong(f"returns {lost}, which does not resolve: {IMPORT_IT}")
        if "return" not in hints:
            self._wrong("has no return type: write `-> User`, or `-> None`")
        hint = substituted(hints["return"], self.types)
        origin = get_origin(hint) or hint
        short = self.name.rpartition(".")[2]
        coroutine, many, blocks = inspect.iscoroutinefunction(function), gives_many(hint), origin in _MANY_BLOCKING
        stream = f"a stream is written `def {short}(self, ...) -> AsyncIterator[T]`"
        if coroutine and (many or blocks):
            self._wrong(f"is `async def` and returns {type_name(hint)}: {stream}")
        if origin in _PROMISES:
            self._wrong(
                f"returns {type_name(hint)}: write `async def {short}(self, ...) -> T`, which is the same for its caller"
            )
        if inspect.isasyncgenfunction(function) and not many:
            self._wrong(f"yields and returns {type_name(hint)}: {stream}")
        if not (coroutine or many or self.blocking):
            if blocks:
                self._wrong(f"returns {type_name(hint)}, which blocks: {stream}")
            self._wrong(
                f"is a plain `def` among others that are async: write `async def {short}(self, ...)`; {stream}; "
                "a contract for threads has only plain methods"
            )
        many = many or (self.blocking and blocks)
        returns = next(iter(get_args(hint)), Any) if many else hint
        if marks.notification and hint is not type(None):
            self._wrong(
                f"is a notification and returns {type_name(hint)}: it has no answer, so write `-> None` or leave out @notify"
            )
        self._check_readable(returns, "what it returns")
        return ("stream" if many else "notification" if marks.notification else "request"), returns

    def _check_readable(self, hint: Any, what: str) -> None:
        if (variable := open_variable(hint)) is not None:
            of = self.name.partition(".")[0]
            self._wrong(f"has the open type variable {variable}: set it where the contract is used, as in {of}[User]")
        if isinstance(hint, (str, ForwardRef)):
            self._wrong(f"cannot be sent, {what} is {type_name(hint)}: write the class itself, without quotes")
        if isinstance(hint, (list, tuple)):
            inner = ", ".join(map(type_name, hint))
            self._wrong(f"cannot be sent, {what} is {type_name(hint)}: it is not a type, write {type(hint).__name__}[{inner}]")
        if (problem := unreadable(hint)) is not None:
            self._wrong(f"cannot be sent, {what} is {type_name(hint)}: {problem}")

    def _wrong(self, text: str) -> NoReturn:
        raise TypeError(f"{self.name} {text}")


# -- implementations -------------------------------------------------------------------------------------------------------


def handlers_of(contract: Any, implementation: object, prefix: str) -> list[Handler]:
    """Return handlers that call the methods of an implementation. Raises `TypeError` if it does not match the contract."""
    if is_protocol(implementation) and not is_protocol(contract):
        name = getattr(implementation, "__name__", "Users")
        raise TypeError(f"{shown(contract)} is not a contract, but {name} is: write bus.implement({name}, ...)")
    read_contract = ContractPlan.of(contract)
    if implementation is None:
        raise TypeError(f"None does not implement {read_contract.name}: pass an object with its methods")
    if isinstance(implementation, type):
        name = implementation.__name__
        raise TypeError(f"{name} is a class: pass an object, bus.implement({read_contract.name}, {name}(), ...)")
    return [
        _handler(read_contract, method, subject, implementation) for subject, method in read_contract.subjects(prefix).items()
    ]


def _handler(contract: ContractPlan, method: ContractMethod, subject: str | int, implementation: object) -> Handler:
    name = f"{type(implementation).__name__}.{method.attribute}"
    function = getattr(implementation, method.attribute, None)
    wanted = _wanted(contract, method)
    if function is None:
        raise TypeError(
            f"{type(implementation).__name__} has no method {method.attribute!r} of {contract.name}: write {wanted}"
        )
    if not callable(function):
        raise TypeError(f"{name} is {shown(function)}, but {method.name} is a method: write {wanted}")
    if getattr(function, "__func__", None) is method.function:
        raise TypeError(f"{name} is inherited from the contract, where it does nothing: write {wanted}")
    if Marks.of(function) not in (Marks(), Marks.of(method.function)):
        raise TypeError(f"{name} has its own @method or @notify: move it to {method.name}")
    try:
        read_signature = read(function)
        hints = {of: hint for of, hint in read_signature.hints.items() if open_variable(hint) is None}
        signature = replace(read_signature, hints=hints)  # the contract supplies types that it leaves open
        named = plan(subject, signature).body_name
    except TypeError as error:
        raise TypeError(f"{error}; write {wanted}, for {method.name}") from error
    _check_style(method, signature, contract.blocking, wanted)
    parameter = method.parameter
    own = next((one for one in signature.parameters if one.name == named), None)
    demands = own is not None and own.default is own.empty
    if parameter is None:
        if demands:
            raise TypeError(
                f"{signature.name} takes {named!r}, but {method.name} takes nothing: leave it out, or give it a default"
            )
    else:
        if named is None:
            raise TypeError(f"{signature.name} takes no body, but {method.name} takes {parameter.name!r}: write {wanted}")
        if demands and parameter.default is not parameter.empty:
            raise TypeError(f"{signature.name}: {named!r} has no default, but it has one in {method.name}: write {wanted}")
        check_body(signature.name, named, hints.get(named, method.takes), method.takes, method.name)
        hints[named] = read_as(hints.get(named), method.takes)
    check_result(signature.name, hints.get("return", Any), method.returns, method.name)
    return plan(subject, replace(signature, hints=hints, description=method.text), Subject(subject, Any, method.returns))


def _check_style(method: ContractMethod, signature: Signature, blocking: bool, wanted: str) -> None:
    found, name = signature.style, signature.name
    if found == "channel":
        raise TypeError(f"{name} takes a Channel, but {method.name} has none: write {wanted}")
    if method.style == "stream":
        if found != "stream":
            raise TypeError(f"{name} returns a single answer, but {method.name} is a stream: write {wanted}")
    elif found == "stream":
        raise TypeError(f"{name} is a stream, but {method.name} returns a single answer: write {wanted}")
    elif blocking and found == "async":
        raise TypeError(f"{name} is async, but {method.name} is a plain `def`: write {wanted}, it runs in a thread")
    elif not blocking and found != "async" and not inspect.iscoroutinefunction(inspect.unwrap(signature.function)):
        raise TypeError(f"{name} is a plain `def`, but {method.name} is async: write {wanted}")


def _wanted(contract: ContractPlan, method: ContractMethod) -> str:
    """Return the signature that an implementation must have, for error messages."""
    yields = method.style == "stream"
    written = "async def" if yields or not contract.blocking else "def"
    parameters = str(method.signature.replace(return_annotation=method.signature.empty))[1:-1]
    self_too = f"self, {parameters}" if parameters else "self"
    return f"`{written} {method.attribute}({self_too})`{' with `yield`' if yields else ''}"
