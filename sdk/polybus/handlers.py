"""Handlers: a function's signature is read once, at registration, and becomes a plan for calling it."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin

from .body import convert, typed_body
from .channel import Channel
from .context import Context
from .errors import BadRequest
from .message import Message
from .subjects import captures

if TYPE_CHECKING:
    from .bus import Bus

__all__ = ["Handler", "plan"]

Style: TypeAlias = Literal["async", "inline", "thread", "stream", "channel"]
Bind: TypeAlias = "Callable[[Bus, Message, float | None, Any], dict[str, Any]]"

_NO_DEFAULT = inspect.Parameter.empty


class Handler:
    """A function, where it belongs, and how its arguments are made.

    Attributes:
        subject: The subject it answers, or the pattern it listens to.
        style: How it runs: awaited, called in place, called in a thread, iterated (stream), or given a channel.
    """

    __slots__ = ("_makers", "body_name", "function", "only_body", "style", "subject")

    def __init__(self, subject: str | int, function: Callable[..., Any], style: Style) -> None:
        self.subject: str | int = subject
        self.function: Callable[..., Any] = function
        self.style: Style = style
        self.body_name: str | None = None
        self._makers: list[tuple[str, Callable[..., Any]]] = []
        self.only_body: Callable[[Message], Any] | None = None
        """Makes the body, where that is the function's one argument: the fast path."""

    @property
    def name(self) -> str:
        """For errors and logs."""
        return getattr(self.function, "__qualname__", repr(self.function))

    def arguments(self, bus: Bus, message: Message, deadline: float | None, channel: Any = None) -> dict[str, Any]:
        """The keyword arguments for one message.

        Raises:
            BadRequest: The body or a captured name does not fit its annotation.
        """
        return {name: make(bus, message, deadline, channel) for name, make in self._makers}

    def invoke(self, bus: Bus, message: Message, deadline: float | None, channel: Any = None) -> Any:
        """Call the function: the coroutine, the async iterator or, of a plain function, the result.

        Raises:
            BadRequest: An argument does not fit.
        """
        if self.only_body is not None:
            return self.function(self.only_body(message))
        return self.function(**self.arguments(bus, message, deadline, channel))


def plan(subject: str | int, function: Callable[..., Any], *, inline: bool = False, publication: bool = False) -> Handler:
    """Read a function's signature.

    Raises:
        TypeError: Two parameters could be the body, an annotation does not resolve, a pattern's name has no parameter with
            a usable type, or the function takes what no handler can be given. The text names the function.
    """
    name = getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise TypeError(f"{name} is not callable")
    parameters, hints = _signature(function, name)
    handler = Handler(subject, function, _style(function, hints, parameters, inline))
    if publication and handler.style in ("stream", "channel"):
        raise TypeError(f"{name}: a stream or channel answers requests (`handle`), publications have no answer")
    positions = captures(subject)
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        handler._makers.append((parameter.name, _maker(handler, parameter, hint, positions, name)))
    if len(parameters) == 1 and parameters[0].name == handler.body_name:
        single = parameters[0]
        if single.kind is not inspect.Parameter.KEYWORD_ONLY:
            handler.only_body = _body_reader(hints.get(single.name, Any), single.default)
    return handler


def _signature(function: Callable[..., Any], name: str) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target) and not inspect.isclass(target):
        target = type(target).__call__  # an object with __call__
    try:
        hints = typing.get_type_hints(target, include_extras=False)
    except Exception as error:
        raise TypeError(f"{name}: an annotation does not resolve: {error}") from error
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{name}: *{parameter.name} cannot be filled from a message; name the parameters")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name}: positional-only parameter {parameter.name!r} cannot be injected by name")
        if parameter.name not in hints and parameter.annotation is not _NO_DEFAULT:
            hints[parameter.name] = parameter.annotation
        parameters.append(parameter)
    return parameters, hints


def _style(function: Callable[..., Any], hints: dict[str, Any], parameters: list[inspect.Parameter], inline: bool) -> Style:
    target = function.func if isinstance(function, functools.partial) else function
    if not inspect.isroutine(target):
        target = getattr(target, "__call__", target)  # noqa: B004  # the bound method of an object, for inspect
    if any(_is(hints.get(parameter.name), Channel) for parameter in parameters):
        return "channel"
    if inspect.isasyncgenfunction(target):
        return "stream"
    if inspect.iscoroutinefunction(target):
        return "stream" if _is(hints.get("return"), AsyncIterator) else "async"
    return "inline" if inline else "thread"


def _is(hint: Any, wanted: type) -> bool:
    return hint is wanted or get_origin(hint) is wanted


def _maker(
    handler: Handler, parameter: inspect.Parameter, hint: Any, positions: dict[str, int], function: str
) -> Callable[..., Any]:
    if hint is Context:
        return lambda bus, message, deadline, channel: Context(bus, message, deadline)
    if hint is Message:
        return lambda bus, message, deadline, channel: message
    if _is(hint, Channel):
        arguments = get_args(hint)
        types = tuple(arguments) if len(arguments) == 2 else (Any, Any)
        return lambda bus, message, deadline, channel: channel.typed(*types)
    if parameter.name in positions:
        return _capture_maker(positions[parameter.name], hint, parameter.name)
    if handler.body_name is not None:
        raise TypeError(
            f"{function}: both {handler.body_name!r} and {parameter.name!r} could be the body; "
            "annotate the others with Context or Message, or name them in the pattern"
        )
    handler.body_name = parameter.name
    read = _body_reader(hint, parameter.default)
    return lambda bus, message, deadline, channel: read(message)


def _capture_maker(position: int, hint: Any, name: str) -> Callable[..., Any]:
    def make(bus: Bus, message: Message, deadline: float | None, channel: Any) -> Any:
        text = str(message.subject).split(".")[position]
        if hint is Any or hint is str:
            return text
        try:
            return hint(text) if hint in (int, float) else convert(text, hint)
        except (ValueError, TypeError) as error:
            raise BadRequest(f"{name} in the subject: {error}") from error

    return make


def _body_reader(hint: Any, default: Any) -> Callable[[Message], Any]:
    def read(message: Message) -> Any:
        if default is not _NO_DEFAULT and not message.has_body:
            return default
        try:
            return typed_body(message, hint)
        except (ValueError, TypeError) as error:
            raise BadRequest(f"the body does not fit: {error}") from error

    return _body if hint is Any and default is _NO_DEFAULT else read


def _body(message: Message) -> Any:
    return message.body
