"""Handlers and subscribers. A function's signature is inspected once, at registration, and becomes a plan for calling it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from ..._util.class_shapes import closed
from ..._util.pydantic_types import unwritable
from ..._util.typed_body import conforming, misfit, typed_body, uncheckable, unreadable
from ..._validation import check_choice, check_count, check_given, check_type, name_of, shown, type_name
from ...errors import BadRequest
from ...message import MISSING, Message
from ...outcomes import Misfit
from ...plugins.registry import make_extension
from ...subjects import Subject, captures
from ..rpc.channel import Channel, typed
from ..runtime.context import Context
from ..runtime.injection import InjectedStream, Injection, Provider
from ..runtime.memory_budgets import AnswerSizes
from ..runtime.workers import Places
from .providers import asked_for, capture_maker, check_default, closed_type, context_maker, of_the_web, provider_of
from .signature import IMPORT_IT, Signature, Style, check_takes_by_name, injected, items_of, read, takes_by_position

if TYPE_CHECKING:
    from ...plugins.extensions import Reading
    from ..runtime.services import Services
    from ..runtime.threads import CallThreads

_CONTAINERS: Final = (list, set, frozenset, dict, Sequence, Iterable, Collection, Mapping)


def check_body(function: str, parameter: str, hint: Any, takes: Any, of: str = "its Subject") -> None:
    """Raise `TypeError` if a handler cannot accept the promised body. `of` names where the promise was made."""
    if not _accepts(hint, takes):
        raise TypeError(
            f"{function} reads {parameter!r} as {type_name(hint)}, but {of} takes {type_name(takes)}: change the annotation or "
            f"{of.replace('its ', 'the ')}"
        )


def read_as(hint: Any, takes: Any) -> Any:
    """Return the type that a body is converted to: the annotation, if any, with the constraints of the promised type."""
    if hint is None:
        return takes
    if takes is Any or hint == takes or _bare(hint) != _bare(takes):
        return hint
    return Annotated[(takes, *hint.__metadata__)] if get_origin(hint) is Annotated else takes


def _bare(hint: Any) -> Any:
    """Return a type without its ``Annotated`` metadata, at any depth."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    origin, arguments = get_origin(hint), get_args(hint)
    if not arguments or origin is Literal:
        return hint
    if origin in (Union, UnionType):
        return frozenset(map(_bare, arguments))
    return origin, *map(_bare, arguments)


def check_result(function: str, hint: Any, returns: Any, of: str = "its Subject") -> None:
    hint = items_of(hint)
    if not _accepts(returns, hint):
        raise TypeError(
            f"{function} returns {type_name(hint)}, but {of} returns {type_name(returns)}: change the annotation or "
            f"{of.replace('its ', 'the ')}"
        )


def _accepts(wanted: Any, given: Any) -> bool:
    """Return True if one type fits another, or if that cannot be determined."""
    wanted, given = _plain(wanted), _plain(given)
    if wanted in (Any, object) or given in (Any, object) or wanted == given:
        return True
    if get_origin(given) in (Union, UnionType):
        return all(_accepts(wanted, choice) for choice in get_args(given))
    if get_origin(wanted) in (Union, UnionType):
        return any(_accepts(choice, given) for choice in get_args(wanted))
    one, other = get_origin(wanted) or wanted, get_origin(given) or given
    if not (isinstance(one, type) and isinstance(other, type)):
        return True
    if not (_is_subclass(other, one) or one is float and other is int):
        return False
    return all(map(_accepts, *items)) if (items := _items(wanted, given)) else True


def _items(wanted: Any, given: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    if (get_origin(wanted) or wanted) not in _CONTAINERS or (get_origin(given) or given) not in _CONTAINERS:
        return None
    items, others = get_args(wanted), get_args(given)
    return (items, others) if len(items) == len(others) else None


def _is_subclass(kind: type, of: type) -> bool:
    try:
        return issubclass(kind, of)
    except TypeError:  # a protocol with members other than methods
        return True


def _plain(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return type(None) if hint is None else hint


_NO_DEFAULT = inspect.Parameter.empty
_PLAIN_BODY: Final = attrgetter("body")


@define(eq=False, repr=False)
class Handler:
    subject: str | int
    """Subject of the requests, or pattern of the publications."""
    function: Callable[..., Any]
    style: Style
    places: Places | None = None
    """Slots for concurrent calls, if their number is limited."""
    answers: AnswerSizes = field(factory=AnswerSizes, init=False)
    signature: Signature | None = field(default=None, init=False)
    takes: Any = field(default=Any, init=False)
    """Type of the body, or of a channel's incoming items. None if the handler has no body."""
    returns: Any = field(default=Any, init=False)
    """Type of the answer, or of the outgoing items."""
    checks: tuple[Any, ...] = field(default=(), init=False)
    """Types that an answer or item is checked against: the annotated and the promised type."""
    body_name: str | None = field(default=None, init=False)
    reads: Any = field(default=Any, init=False)
    injection: Injection | None = field(default=None, init=False)
    _makers: list[tuple[str, Callable[..., Any]]] = field(factory=list, init=False)
    only_body: Callable[[Message], Any] | None = field(default=None, init=False)
    """Provider of the body if that is the only argument. This is the fast path."""

    @property
    def name(self) -> str:
        return name_of(self.function)

    def arguments(self, context: Callable[[], Context], message: Message, channel: Any = None) -> dict[str, Any]:
        """Return the keyword arguments, with injected ones from `context`. Raises `Misfit` if a value has the wrong type."""
        try:
            return {name: make(context, message, channel) for name, make in self._makers}
        except BadRequest as error:
            raise Misfit.of(error) from error.__cause__

    def invoke(self, services: Services, message: Message, deadline: float | None, channel: Any = None) -> Any:
        if self.only_body is None:
            if self.injection is not None:
                return self._injected(self.injection, services, message, deadline, channel)
            context = partial(Context, services.bus, message, deadline, self.subject)
            return self.function(**self.arguments(context, message, channel))
        body = message.decoded
        if body is MISSING or self.only_body is not _PLAIN_BODY:
            try:
                body = self.only_body(message)
            except BadRequest as error:
                raise Misfit.of(error) from error.__cause__
        return self.function(body)

    def checked(self, value: Any) -> Any:
        """Validate an answer or item, and drop undeclared fields. Raises `TypeError` if the handler's value is invalid."""
        made = value
        for kind in self.checks:
            try:
                made = conforming(made, kind)
            except Exception as error:
                says = f"{'its annotation' if kind is self.checks[0] else 'its subject'} says {type_name(kind)}"
                raise TypeError(f"{self.name} returned {shown(value)}, but {says}: {misfit(error)[0]}") from error
        return made

    @property
    def unchecked(self) -> str | None:
        """Reason why answers cannot be checked, or None if they can."""
        if not self.checks and self.signature is not None and self.signature.lost is not None:
            return f"the annotation {self.signature.lost!r} does not resolve, {IMPORT_IT}"
        return next((f"{type_name(kind)}: {why}" for kind in self.checks if (why := uncheckable(kind)) is not None), None)

    def check_that_answers_are_checked(self) -> None:
        if (why := self.unchecked) is not None:
            raise TypeError(f"{self.name}: its answers cannot be checked: {why}; with `-> Any` they are sent unchecked")

    def _injected(
        self, injection: Injection, services: Services, message: Message, deadline: float | None, channel: Any
    ) -> Any:
        context, in_thread = Context(services.bus, message, deadline, self.subject), self.style == "thread"

        def bound(threads: CallThreads | None) -> Callable[..., Any]:
            make_context = partial(services.executor.thread_context, context, threads) if in_thread else lambda: context
            return partial(self.function, **self.arguments(make_context, message, channel))

        if self.style == "stream":
            return InjectedStream(injection.items(bound, services, context))
        return injection.call(bound, services, context, in_thread=in_thread)


def plan(
    subject: str | int,
    function: Callable[..., Any] | Signature,
    typed: Subject[Any, Any] | None = None,
    *,
    inline: bool = False,
    publication: bool = False,
    running: int | None = None,
) -> Handler:
    """Create the handler for a subject or pattern. `typed` contains the promised types.

    Raises:
        TypeError: If two parameters could be the body, an annotation cannot be resolved, a name in the pattern has no suitable
            parameter, or a value for a parameter is not available. The text names the function.
    """
    signature = function if isinstance(function, Signature) else read(function, inline=inline)
    signature = replace(signature, hints={of: closed(hint) for of, hint in signature.hints.items()})
    if publication and signature.style in ("stream", "channel"):
        raise TypeError(f"{signature.name}: register streams and channels with handle(), because publications have no answer")
    places = None if running is None else Places(running)
    handler = Handler(subject, signature.function, signature.style, places)
    takes = Any if typed is None else typed.takes
    positions = captures(subject)
    needs: list[tuple[str, Provider]] = []
    others: list[inspect.Parameter] = []
    names = {parameter.name for parameter in signature.parameters}
    for parameter in signature.parameters:
        hint = signature.hints.get(parameter.name, Any)
        if (wanted := asked_for(parameter, hint, signature.name)) is not None:
            needs.append((parameter.name, provider_of(wanted, signature.name, positions, names)))
        else:
            others.append(parameter)
    if (missing := next((name for name in positions if name not in names), None)) is not None:
        raise TypeError(
            f"{signature.name} has no parameter for {{{missing}}} of the pattern {handler.subject!r}: add it, or use *"
        )
    for parameter in others:
        check_default(parameter, signature.name)
        hint = signature.hints.get(parameter.name)
        handler._makers.append((parameter.name, _maker(handler, parameter, hint, positions, signature.name, takes)))
    if needs:
        handler.injection = Injection(signature.name, needs)
    if typed is not None:
        if handler.body_name is not None:
            hint = signature.hints.get(handler.body_name, Any)
            check_body(signature.name, handler.body_name, hint, typed.takes)
    if (problem := unwritable(items_of(signature.hints.get("return", Any)))) is not None:
        raise TypeError(f"{signature.name}: its answer cannot be encoded as its type: {problem}")
    handler.signature = signature
    read_as_annotated, returns = _body_types(handler, signature)
    if not publication:
        returns = closed_type(returns, f"{signature.name}: what it returns", Any if typed is None else typed.returns)
    promised = returns if typed is None or typed.returns is Any else typed.returns
    if not publication:
        check_result(signature.name, returns, promised)
    handler.takes = takes if read_as_annotated is Any else read_as_annotated
    handler.returns = promised
    handler.checks = tuple(one for one in ([returns] if returns == promised else [returns, promised]) if one is not Any)
    if len(signature.parameters) == 1 and signature.parameters[0].name == handler.body_name:
        single = signature.parameters[0]
        if single.kind is not inspect.Parameter.KEYWORD_ONLY and takes_by_position(signature.function):
            handler.only_body = _body_reader(handler.reads, single.default)
            return handler
    check_takes_by_name(signature.function, [parameter.name for parameter in signature.parameters], signature.name)
    return handler


def _body_types(handler: Handler, signature: Signature) -> tuple[Any, Any]:
    hints = signature.hints
    if signature.style == "channel":
        of_channel = next(get_args(hint) for hint in map(injected, hints.values()) if (get_origin(hint) or hint) is Channel)
        return of_channel or (Any, Any)
    takes = None if handler.body_name is None else handler.reads
    return takes, items_of(hints.get("return", Any))


def _maker(
    handler: Handler, parameter: inspect.Parameter, hint: Any, positions: dict[str, int], function: str, takes: Any
) -> Callable[..., Any]:
    """Return the function that provides an argument. `hint` is None without an annotation. `takes` is the promised type."""
    given = injected(hint)
    in_thread = handler.style == "thread"
    if given is not None and (make := context_maker(given, parameter.name, function, in_thread=in_thread)) is not None:
        return make
    if given is not None:
        arguments = get_args(given)
        closed_type(given, f"{function}: the type of {parameter.name!r}")
        receives = read_as(arguments[0] if len(arguments) == 2 else None, takes)
        if (problem := unreadable(receives)) is not None:
            raise TypeError(f"{function}: items cannot be decoded as the type of {parameter.name!r}: {problem}")
        return lambda context, message, channel: typed(channel, receives)
    if parameter.name in positions:
        return capture_maker(positions[parameter.name], Any if hint is None else hint, parameter.name, function)
    if (of_web := of_the_web(parameter, hint)) not in (None, "Body"):
        raise TypeError(
            f"{function}: {parameter.name!r} is not the body: {of_web} exists only in HTTP: headers are in "
            "ctx.message.headers, the rest in ctx (annotate it with Context)"
        )
    if handler.body_name is not None:
        raise TypeError(
            f"{function}: both {handler.body_name!r} and {parameter.name!r} could be the body; put them into one class, "
            "annotate the others with Context or Message, or name them in the pattern"
        )
    reads = read_as(closed_type(hint, f"{function}: the type of {parameter.name!r}", takes), takes)
    if (problem := unreadable(reads)) is not None:
        raise TypeError(f"{function}: bodies cannot be decoded as the type of parameter {parameter.name!r}: {problem}")
    handler.body_name, handler.reads = parameter.name, reads
    read_body = _body_reader(reads, parameter.default)
    return lambda context, message, channel: read_body(message)


def _body_reader(hint: Any, default: Any) -> Callable[[Message], Any]:
    def reader(message: Message) -> Any:
        if default is not _NO_DEFAULT and not message.has_body:
            return default
        try:
            return typed_body(message, hint)
        except (BadRequest, NameError):  # a type that names something unknown is not the sender's mistake
            raise
        except Exception as error:  # including errors of the application's own checks
            text, faults = misfit(error)
            raise BadRequest(f"invalid body: {text}", detail=faults or None) from error

    return _PLAIN_BODY if hint is Any and default is _NO_DEFAULT else reader


# -- functions registered by `on` --------------------------------------------------------------------------------------------

WhenFull: TypeAlias = Literal["block", "drop_oldest", "drop_newest", "latest"]
"""Policy for a message that arrives when the queue is full.

``drop_oldest`` and ``drop_newest`` drop one message. ``latest`` drops an older message with the same subject if there is one.
``block`` makes publishers in this process wait. Messages from links then wait in addition to the queue, up to
`Limits.queue_bytes`. If they exceed that limit, a subscription ends with `SlowConsumer`, and an `on` handler loses the oldest
messages. Links and other readers are not affected.
"""


_GROUP: Final = re.compile(r"(?=.{1,100}\Z)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class SubscriberSpec(Struct, frozen=True):
    handler: Handler
    queue: int | None
    """Maximum number of messages. If None, only `Limits.queue_bytes` applies."""
    when_full: WhenFull
    concurrency: int
    group: str | None = None
    reading: Reading | None = None
    """Arguments for reading stored messages. None for live publications."""
    peers: bool = True
    """False to receive only publications of the handler's own bus."""


def reading_of(
    durable: Any,
    retry: Any,
    ack_wait: Any,
    start: Any,
    ordered: Any,
    *,
    group: Any = None,
    concurrency: int = 1,
    of_handler: tuple[int | None, str] | None = None,
) -> Reading | None:
    """Return how `on` or `subscribe` reads stored messages. Returns None for live messages.

    Args:
        of_handler: The `queue` and `when_full` arguments of a handler, or None for a subscription.

    Raises:
        TypeError, ValueError: If an argument is invalid or cannot be combined with another argument.
    """
    if durable is None and retry is None and ack_wait is None and start is None and not ordered:
        return None
    made: Reading | None = make_extension("reading", durable, retry, ack_wait, start, ordered, group, concurrency, of_handler)
    return made


def check_group(group: Any) -> None:
    check_type(group, str, "group", "group='billing'")
    if group is not None and not _GROUP.fullmatch(group):
        raise ValueError(
            f"group={group!r:.60} must have 1 to 100 letters, digits, '-', '_' or '.', and no leading, trailing or double dots"
        )


def check_peers(peers: object, group: str | None, durable: str | None) -> None:
    check_given(peers, bool, "peers", "peers=False")
    if not peers and (group is not None or durable is not None):
        given = f"group={group!r}" if group is not None else f"durable={durable!r}"
        raise ValueError(
            f"peers=False and {given}: publications that an engine stores, or shares among the members of a group, do not name "
            "their publisher; leave one of them out, and decide with Bus(authorize=...) what peers publish"
        )


def check_queue(queue: int | None, when_full: str) -> None:
    if queue is not None:
        check_count(queue, "queue")
    check_choice(when_full, get_args(WhenFull), "when_full")
