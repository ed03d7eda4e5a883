"""Inspects the signatures of handlers once, at registration."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from msgspec import Struct

from ..._util.class_shapes import substituted, variables_of_method
from ..._util.pydantic_types import is_own
from ..._validation import name_of
from ...message import Message
from ..rpc.channel import Channel
from ..runtime.context import Context
from ..runtime.injection import ProviderStyle

Style: TypeAlias = Literal["async", "inline", "thread", "stream", "channel"]
"""Ways to call a handler: await it, call it in place or in a thread, iterate over it, or pass it a channel."""

T = TypeVar("T")

IMPORT_IT: Final = "import it outside of `if TYPE_CHECKING:`, and define it at the top of its module"

_MANY = (AsyncIterator, AsyncGenerator, AsyncIterable)
_GIVEN = (Message, Channel)
_NONE = type(None)
_MARK: Final = "__context_part__"
"""Attribute that marks classes for injection by annotation."""


class ContextPart(Struct, frozen=True):
    """An attribute of `Context` that handlers receive if they have a parameter annotated with its class.

    Attributes:
        name: Name of the attribute.
        in_thread: True if the class is the blocking one, which `def` handlers in a thread receive.
    """

    name: str
    in_thread: bool

    @property
    def title(self) -> str:
        return self.name.title()


def injected_as(name: str, *, in_thread: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class injectable. Parameters annotated with the class receive this attribute of `Context`."""

    def decorate(kind: type[T]) -> type[T]:
        setattr(kind, _MARK, ContextPart(name, in_thread))
        return kind

    return decorate


def context_part(given: Any) -> ContextPart | None:
    return vars(given).get(_MARK) if isinstance(given, type) else None


class Signature(Struct, frozen=True):
    name: str
    function: Callable[..., Any]
    parameters: list[inspect.Parameter]
    hints: dict[str, Any]
    style: Style
    lost: str | None = None
    """Annotation of the result or its items, if only type checkers can resolve it."""
    description: str = ""
    """Description from a contract, used if the function has no docstring."""

    @property
    def text(self) -> str:
        function = _without_partial(self.function)
        if not (inspect.isroutine(function) or inspect.isclass(function)):
            function = type(function).__call__  # without a docstring, objects return their class's
        return inspect.getdoc(function) or self.description


def read(function: Any, *, inline: bool = False) -> Signature:
    name = name_of(function)
    if isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, classmethod):
        raise TypeError(f"{name} is an unbound classmethod: register the bound one, bus.handle(...)(Class.{name})")
    if not callable(function):
        raise TypeError(f"{name} is not callable: a handler must be a function")
    parameters = _parameters(function, name)
    hints = hints_of(function, parameters, name)
    lost = lost_result(function, hints)
    if "return" in hints:
        hints["return"] = _awaited(hints["return"])
    if parameters and _is_unbound(function, parameters[0], hints):
        method = name.rpartition(".")[2]
        raise TypeError(f"{name} is an unbound method: register the bound one, bus.handle(...)(service.{method})")
    return Signature(name, function, parameters, hints, _style(function, name, parameters, hints, inline), lost)


def read_provider(function: Callable[..., Any], name: str) -> tuple[list[inspect.Parameter], dict[str, Any], ProviderStyle]:
    """Inspect the signature of a dependency. Raises `TypeError` if it has no signature or a decorator hides a generator."""
    parameters = _parameters(function, name)
    called = _called(function)
    inner = _innermost(called)
    style: ProviderStyle = "plain"
    if inspect.isasyncgenfunction(called):
        style = "async generator"
    elif inspect.isgeneratorfunction(called):
        style = "generator"
    elif inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise TypeError(
            f"{name}: leave out @contextmanager or @asynccontextmanager, Depends() takes the generator function itself"
        )
    elif inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(inner):
        style = "async"
    return parameters, hints_of(function, parameters, name), style


def injected(hint: Any) -> Any:
    """Return the class to inject for a hint, including for ``Context | None``. Raises `TypeError` for other unions."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        choices = [choice for choice in get_args(hint) if choice is not _NONE]
        given = [found for choice in choices if (found := injected(choice)) is not None]
        if given and len(choices) > 1:
            raise TypeError(f"{hint} is neither the body nor something to inject: annotate with one of them")
        return given[0] if given else None
    if get_origin(hint) is Message:
        raise TypeError(f"{hint}: a handler receives a plain Message; add another parameter for the converted body")
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and issubclass(kind, Context):  # including the class for threads
        return kind
    if context_part(hint) is not None:
        return hint
    return hint if hint in _GIVEN or get_origin(hint) is Channel else None


# -- parameters and their types ------------------------------------------------------------------------------------------


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (ValueError, NameError) as error:  # builtins have no signature; Python 3.14 looks annotations up here
        if isinstance(error, NameError):
            raise _unresolved(function, name, error) from error
        raise TypeError(f"{name} has no signature: wrap it in a function with named parameters") from error
    bound = function.keywords if isinstance(function, functools.partial) else ()
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in bound]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise TypeError(
                f"{name}: {stars}{parameter.name} cannot be filled from a message: name the parameters "
                "(in a decorator, functools.wraps shows those of the function inside)"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name}: positional-only parameter {parameter.name!r} cannot be injected by name: remove the /")
    return parameters


def hints_of(function: Callable[..., Any], parameters: Iterable[inspect.Parameter], name: str) -> dict[str, Any]:
    """Resolve the annotations. A result that only type checkers can resolve is left out, but a parameter raises `TypeError`."""
    target = _annotated(function)
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        hints = _hints_one_by_one(target, parameters, name, error)
    except Exception as error:
        raise TypeError(f"{name}: an annotation does not resolve: {error}") from error
    for parameter in parameters:
        if parameter.name not in hints and parameter.annotation is not parameter.empty:
            hints[parameter.name] = parameter.annotation
    types = variables_of_method(_without_partial(function))
    for of, hint in hints.items():
        try:
            hints[of] = substituted(without_name(hint), types)
        except NameError as error:
            if of != "return":
                raise _unresolved(target, name, error, of) from error
        except TypeError as error:
            raise TypeError(f"{name}: the annotation of {of!r}: {error}") from None
    return hints


def lost_result(function: Callable[..., Any], hints: dict[str, Any]) -> str | None:
    text = _annotation_texts(_annotated(function)).get("return")
    hint = hints.get("return")
    if text is None or (hint is not None and not (gives_many(hint) and not get_args(hint) and "[" in text)):
        return None
    return text


def _awaited(hint: Any) -> Any:
    """Return the type of the awaited result if a plain function returns an awaitable. Otherwise return the hint."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        choices = tuple(map(_awaited, arguments))
        return hint if choices == arguments else Union[choices]  # noqa: UP007  # of several choices
    if isinstance(kind, type) and issubclass(kind, Awaitable):
        return arguments[-1] if arguments else Any
    return hint


def without_name(hint: Any) -> Any:
    """Resolve a type alias such as ``type Rows[T] = list[T]``.

    On Python 3.11, aliases come from typing_extensions, so their class is recognized by name. Pydantic's own aliases, such as
    `JsonValue`, refer to themselves and are left unchanged.

    Raises:
        NameError: If the alias refers to an undefined name.
        TypeError: If the alias refers to itself.
    """
    seen: list[Any] = []
    while type(named := get_origin(hint) or hint).__name__ == "TypeAliasType" and not is_own(named):
        if any(named is one for one in seen):
            raise TypeError(f"the type {named} is defined as itself")
        seen.append(named)
        given = get_args(hint)
        if isinstance(named.__value__, str):  # only pydantic can resolve it
            return hint
        hint = named.__value__[given] if given else named.__value__
    return hint


def _hints_one_by_one(target: Any, parameters: Iterable[inspect.Parameter], name: str, error: NameError) -> dict[str, Any]:
    texts = _annotation_texts(target)
    wanted = {parameter.name for parameter in parameters}
    values = {} if sys.version_info >= (3, 14) else target.__annotations__  # some values may not be strings
    hints = {}
    for of, text in texts.items():
        probe = type("Probe", (), {"__annotations__": {of: values.get(of, text)}})()
        try:
            hints.update(typing.get_type_hints(probe, getattr(_innermost(target), "__globals__", {}), include_extras=True))
        except Exception as inner:
            if of in wanted:
                raise _unresolved(target, name, inner if isinstance(inner, NameError) else error, of) from error
            if of == "return" and re.match(r"(typing\.|collections\.abc\.)?Async(Iter|Gener)", text):
                hints[of] = AsyncIterator  # the item type does not matter
    return hints


def _unresolved(target: Any, name: str, error: NameError, parameter: str | None = None) -> TypeError:
    missing = error.name or str(error)
    if parameter is None:
        texts = _annotation_texts(target)
        parameter = next((of for of, text in texts.items() if re.search(rf"\b{re.escape(missing)}\b", text)), None)
    where = f" of parameter {parameter!r}" if parameter not in (None, "return") else ""
    return TypeError(
        f"{name}: the annotation{where} does not resolve, because {missing!r} is unknown when the handler is registered: "
        f"{IMPORT_IT}, above the handler"
    )


def _annotation_texts(target: Any) -> dict[str, str]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(target, format=annotationlib.Format.STRING))
    return {of: text if isinstance(text, str) else repr(text) for of, text in getattr(target, "__annotations__", {}).items()}


def _annotated(function: Any) -> Any:
    function = _without_partial(function)
    if inspect.isroutine(function) or inspect.isclass(function):
        return function.__init__ if inspect.isclass(function) else function
    return getattr(function, "__wrapped__", None) or type(function).__call__  # an object with __call__


def _is_unbound(function: Any, first: inspect.Parameter, hints: dict[str, Any]) -> bool:
    return (
        first.name in ("self", "cls")
        and first.name not in hints
        and inspect.isfunction(function)
        and not function.__qualname__.endswith(f"<locals>.{function.__name__}")
        and "." in function.__qualname__
    )


# -- decorators ----------------------------------------------------------------------------------------------------------


def takes_by_position(function: Callable[..., Any]) -> bool:
    return _all_take(function, 1, ())


def check_takes_by_name(function: Callable[..., Any], names: Iterable[str], name: str) -> None:
    """Raise `TypeError` if a function does not accept its arguments by name.

    This happens with decorators that show the signature of the function that they wrap.
    """
    if not _all_take(function, 0, names):
        raise TypeError(
            f"{name}: a decorator around it does not accept the arguments by name, {', '.join(names)}: let its wrapper "
            "take *args and **kwargs"
        )


def _all_take(function: Any, count: int, names: Iterable[str]) -> bool:
    layers = [function]
    while (inner := getattr(layers[-1], "__wrapped__", None)) is not None and inner not in layers:
        layers.append(inner)
    bound = inspect.ismethod(function)
    for layer in layers:
        given = [None] * (count + (bound and not inspect.ismethod(layer)))  # `self`, for a function of a class
        try:
            signature = inspect.signature(layer, follow_wrapped=False)
        except Exception:  # no signature, or an unresolved annotation
            continue
        try:
            signature.bind(*given, **dict.fromkeys(names))
        except TypeError:
            return False
    return True


# -- how it runs ---------------------------------------------------------------------------------------------------------


def _style(function: Any, name: str, parameters: list[inspect.Parameter], hints: dict[str, Any], inline: bool) -> Style:
    called = _called(function)
    inner = _innermost(called)  # behind plain decorators
    if any(_is_channel(hints.get(parameter.name), name, parameter) for parameter in parameters):
        if not (inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(inner)):
            raise TypeError(f"{name} takes a Channel, so it must be an `async def` function without `yield`")
        return "channel"
    if inspect.isgeneratorfunction(called) or inspect.isgeneratorfunction(inner):
        raise TypeError(f"{name} is a plain generator: make it `async def` with `yield` to answer bus.stream()")
    if inspect.isasyncgenfunction(called) or inspect.isasyncgenfunction(inner) or gives_many(hints.get("return")):
        return "stream"
    if inspect.iscoroutinefunction(called):
        return "async"
    no_threads = sys.platform == "emscripten"  # in a browser
    return "inline" if inline or no_threads or inspect.iscoroutinefunction(inner) else "thread"


def _is_channel(hint: Any, name: str, parameter: inspect.Parameter) -> bool:
    try:
        given = injected(hint)
    except TypeError as error:
        raise TypeError(f"{name}: the annotation of parameter {parameter.name!r}: {error}") from None
    return given is Channel or get_origin(given) is Channel


def gives_many(hint: Any) -> bool:
    return hint in _MANY or get_origin(hint) in _MANY


def items_of(hint: Any) -> Any:
    """Return the item type of a result with many items. Otherwise return the hint."""
    return next(iter(get_args(hint)), Any) if gives_many(hint) else hint


def _called(function: Any) -> Any:
    function = _without_partial(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


def _without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _innermost(function: Any) -> Any:
    try:
        return inspect.unwrap(function)
    except ValueError:  # wrapped in a loop
        return function
