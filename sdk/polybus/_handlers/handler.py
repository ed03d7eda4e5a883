"""Handlers: a function's signature becomes a plan for calling it, once, at registration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from attrs import define, field

from .._core.answer_sizes import AnswerSizes
from .._core.context import Context
from .._core.places import Places
from .._util.typed_body import convert_text, misfit, typed_body, unreadable
from ..errors import BadRequest
from ..message import Message
from ..subjects import Subject, captures
from .signature import ContextPart, Style, context_part, injected, name_of, read
from .subject_types import check_body, check_result

_NO_DEFAULT = inspect.Parameter.empty


class Misfit(BadRequest):
    """An argument that does not fit: told apart from a `BadRequest` that the function raises."""

    @classmethod
    def of(cls, error: BadRequest) -> Misfit:
        """The same error, as one of an argument."""
        return cls(error.text, reason=error.reason, detail=error.detail)


@define(eq=False)
class Handler:
    """A function with its subject and the makers of its arguments."""

    subject: str | int
    """The subject it answers, or the pattern it listens to."""
    function: Callable[..., Any]
    style: Style
    places: Places | None = None
    """Present where only so many of its calls may run at once."""
    answers: AnswerSizes = field(factory=AnswerSizes, init=False)
    body_name: str | None = field(default=None, init=False)
    _makers: list[tuple[str, Callable[..., Any]]] = field(factory=list, init=False)
    only_body: Callable[[Message], Any] | None = field(default=None, init=False)
    """Makes the body, where that is the function's one argument: the fast path."""

    @property
    def name(self) -> str:
        """The function's name, for errors and logs."""
        return name_of(self.function)

    def arguments(self, context: Callable[[], Context], message: Message, channel: Any = None) -> dict[str, Any]:
        """Make the keyword arguments for one message; `context` makes what is injected.

        Raises:
            Misfit: The body or a captured name does not fit its annotation.
        """
        try:
            return {name: make(context, message, channel) for name, make in self._makers}
        except BadRequest as error:
            raise Misfit.of(error) from error.__cause__

    def invoke(self, bus: Any, message: Message, deadline: float | None, channel: Any = None) -> Any:
        """Call the function: gives the coroutine, the async iterator or, of a plain function, the result.

        Raises:
            Misfit: An argument does not fit.
        """
        if self.only_body is None:
            return self.function(**self.arguments(partial(Context, bus, message, deadline), message, channel))
        try:
            body = self.only_body(message)
        except BadRequest as error:
            raise Misfit.of(error) from error.__cause__
        return self.function(body)


def plan(
    subject: str | int | Subject[Any, Any],
    function: Callable[..., Any],
    *,
    inline: bool = False,
    publication: bool = False,
    running: int | None = None,
) -> Handler:
    """Read a function's signature.

    Raises:
        TypeError: Two parameters could be the body, an annotation does not resolve, a pattern's name has no parameter with
            a usable type, or the function takes what no handler can be given. The text names the function.
    """
    signature = read(function, inline=inline)
    if publication and signature.style in ("stream", "channel"):
        raise TypeError(f"{signature.name}: a stream or channel answers requests (`handle`), publications have no answer")
    typed = subject if isinstance(subject, Subject) else None
    name = subject.name if isinstance(subject, Subject) else subject
    places = None if running is None else Places(running)
    handler = Handler(name, signature.function, signature.style, places)
    positions = captures(name)
    for parameter in signature.parameters:
        hint = signature.hints.get(parameter.name, Any)
        handler._makers.append((parameter.name, _maker(handler, parameter, hint, positions, signature.name)))
    names = {parameter.name for parameter in signature.parameters}
    if (missing := next((name for name in positions if name not in names), None)) is not None:
        raise TypeError(
            f"{signature.name} has no parameter for {{{missing}}} of the pattern {handler.subject!r}: name one so, or write *"
        )
    if typed is not None:
        if handler.body_name is not None:
            hint = signature.hints.get(handler.body_name, Any)
            check_body(signature.name, handler.body_name, hint, typed.takes)
        if not publication and signature.style != "channel":
            check_result(signature.name, signature.hints.get("return", Any), typed.returns)
    if len(signature.parameters) == 1 and signature.parameters[0].name == handler.body_name:
        single = signature.parameters[0]
        if single.kind is not inspect.Parameter.KEYWORD_ONLY:
            handler.only_body = _body_reader(signature.hints.get(single.name, Any), single.default)
    return handler


def _maker(
    handler: Handler, parameter: inspect.Parameter, hint: Any, positions: dict[str, int], function: str
) -> Callable[..., Any]:
    given = injected(hint)
    if isinstance(given, type) and issubclass(given, Context):
        if given is not Context and handler.style != "thread":
            raise TypeError(f"{function}: {given.__name__} is for def handlers that run in a thread; take polybus.Context")
        return lambda context, message, channel: context()
    if given is Message:
        return lambda context, message, channel: message
    if (part := context_part(given)) is not None:
        return _part_maker(part, given, handler, parameter.name, function)
    if given is not None:
        arguments = get_args(given)
        receives = arguments[0] if len(arguments) == 2 else Any
        return lambda context, message, channel: channel.typed(receives)
    if parameter.name in positions:
        return _capture_maker(positions[parameter.name], hint, parameter.name)
    if handler.body_name is not None:
        raise TypeError(
            f"{function}: both {handler.body_name!r} and {parameter.name!r} could be the body; "
            "annotate the others with Context or Message, or name them in the pattern"
        )
    if (problem := unreadable(hint)) is not None:
        raise TypeError(f"{function}: no body can be read as the type of parameter {parameter.name!r}: {problem}")
    handler.body_name = parameter.name
    read_body = _body_reader(hint, parameter.default)
    return lambda context, message, channel: read_body(message)


def _part_maker(part: ContextPart, given: type, handler: Handler, name: str, function: str) -> Callable[..., Any]:
    if part.in_thread and handler.style != "thread":
        raise TypeError(f"{function}: {given.__name__} is for def handlers that run in a thread; take polybus.{part.title}")
    if handler.style == "thread" and not part.in_thread:
        raise TypeError(
            f"{function}: {given.__name__} is of the event loop, and a def handler runs in a thread: annotate {name!r} with "
            f"polybus.sync.Blocking{part.title}"
        )
    return lambda context, message, channel: getattr(context(), part.name)


def _capture_maker(position: int, hint: Any, name: str) -> Callable[..., Any]:
    def make(context: Callable[[], Context], message: Message, channel: Any) -> Any:
        text = str(message.subject).split(".")[position]
        if hint is Any or hint is str:
            return text
        try:
            return convert_text(text, hint)
        except Exception as error:
            raise BadRequest(f"{name} in the subject: {misfit(error)[0]}") from error

    return make


def _body_reader(hint: Any, default: Any) -> Callable[[Message], Any]:
    def reader(message: Message) -> Any:
        if default is not _NO_DEFAULT and not message.has_body:
            return default
        try:
            return typed_body(message, hint)
        except BadRequest:
            raise
        except Exception as error:  # also what a check of the application's own raises
            text, faults = misfit(error)
            raise BadRequest(f"the body does not fit: {text}", detail=faults or None) from error

    return _body if hint is Any and default is _NO_DEFAULT else reader


def _body(message: Message) -> Any:
    return message.body
