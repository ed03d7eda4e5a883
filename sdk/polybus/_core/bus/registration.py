"""Registers handlers. `Bus` and `Router` share this code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec.structs import replace

from ..._util.misuse import HANDLE
from ..._validation import check_count, check_given, explains, shown
from ...nodes import Start
from ...retry import Retry
from ...subjects import AnySubject, Subject, bare, check_pattern, check_subject, warn_of_literal_wildcards
from ..handlers.handler import Handler, SubscriberSpec, WhenFull, check_group, check_peers, check_queue, plan, reading_of
from ..handlers.lookup import HandlerLookup, declared

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from ..handlers.subject_handlers import HandlerOf, SubscriberOf

F = TypeVar("F", bound=Callable[..., Any])
In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")


class Router:
    """A group of handlers that `Bus.include` adds to a bus.

    Args:
        prefix: Prefix for the subjects and patterns of all handlers, as in ``Router(prefix="user.")``.

    Raises:
        TypeError: If `prefix` is not a string.
        ValueError: If `prefix` does not end with a separator such as a dot.
    """

    def __init__(self, *, prefix: str = "") -> None:
        _check_prefix(prefix)
        self._prefix: str = prefix
        self._lookup: HandlerLookup = HandlerLookup()

    @overload
    def handle(self, subject: Subject[In, Out], *, inline: bool = ..., running: int | None = ...) -> HandlerOf[In, Out]: ...
    @overload
    def handle(self, subject: str | int, *, inline: bool = ..., running: int | None = ...) -> Callable[[F], F]: ...
    @explains("bus.handle", HANDLE)
    def handle(self, subject: AnySubject, *, inline: bool = False, running: int | None = None) -> Any:
        """Register a function that answers requests to a subject.

        Coroutine functions are awaited. Plain functions run in a worker thread, or on the event loop with ``inline=True``.
        Async generators answer `stream`, and coroutine functions with a `Channel` parameter answer `channel`.

        Args:
            subject: Subject as a string, an integer or a `Subject`. Requests without a subject, which UBRE allows, go to the
                handler for the empty string.
            inline: Call a plain function on the event loop.
            running: Maximum number of concurrent calls of this function, including streams and channels. Additional calls wait
                without using slots of other handlers. In a cluster, they go to another node if more than `Cluster.waiting` are
                waiting. By default, only `Limits` apply.

        Raises:
            TypeError: If the signature is unsuitable, the subject already has a handler, this router has already been included,
                or `check_answers` cannot check the return type.
            ValueError: If `running` is below 1.
            LocalProtocolError: If the subject is invalid.
            ReservedSubject: If the subject is reserved for polybus.
        """
        name = _prefixed(self._prefix, _name(subject, "handle"))
        if name != "":
            check_subject(name)
        if running is not None:
            check_count(running, "running")

        def register(function: F) -> F:
            self._lookup.add(plan(name, function, _typed(subject), inline=inline, running=running))
            return function

        return register

    @overload
    def on(
        self, pattern: Subject[In, Any], *, queue: int | None = ..., when_full: WhenFull = ..., concurrency: int = ...,
        inline: bool = ..., group: str | None = ..., durable: str | None = ..., retry: Retry | None = ...,
        ack_wait: float | None = ..., start: Start | None = ..., ordered: bool = ..., peers: bool = ...,
    ) -> SubscriberOf[In]: ...  # fmt: skip
    @overload
    def on(
        self, pattern: str | int, *, queue: int | None = ..., when_full: WhenFull = ..., concurrency: int = ...,
        inline: bool = ..., group: str | None = ..., durable: str | None = ..., retry: Retry | None = ...,
        ack_wait: float | None = ..., start: Start | None = ..., ordered: bool = ..., peers: bool = ...,
    ) -> Callable[[F], F]: ...  # fmt: skip
    def on(
        self,
        pattern: AnySubject,
        *,
        queue: int | None = None,
        when_full: WhenFull = "drop_oldest",
        concurrency: int = 1,
        inline: bool = False,
        group: str | None = None,
        durable: str | None = None,
        retry: Retry | None = None,
        ack_wait: float | None = None,
        start: Start | None = None,
        ordered: bool = False,
        peers: bool = True,
    ) -> Any:
        """Register a function that receives published messages. By default, it receives one at a time and in order.

        With ``durable="billing"``, the function processes messages from a `Store` of the cluster. All workers that use this
        name share the messages, and each message is redelivered until the function has returned, even after a crash. This means
        that the function may run twice for the same ``ctx.message.id``. A bus without a cluster reads the external stream that
        stores the pattern if one of its links to a NATS network leads to such a stream when it opens.

        Args:
            pattern: Subject or pattern. ``*`` matches one token and ``>`` matches the rest. ``{name}`` matches one token and
                passes it to the function as ``name``.
            queue: Number of messages that may wait for the function. By default, the limit is `Limits.queue_bytes`, where each
                message counts as its body plus 200 bytes. That is enough for about 20,000 small messages. Messages for a
                durable handler wait in the store.
            when_full: Policy for a full queue; see `WhenFull`.
            concurrency: Number of messages to process at the same time. Above 1, their order is not guaranteed.
            inline: Call a plain function on the event loop.
            group: Name of a queue group. Each message goes to only one of the subscriptions with the same group and pattern.
                This applies to all nodes of the cluster and, if the protocol supports groups (NATS), to other programs.
            durable: Name of a durable handler, made of letters, digits, ``-`` and ``_``.
            retry: For a durable handler, `Retry.attempts` and `Retry.backoff` apply after the function raises. The default is
                five attempts. After the last attempt, the message becomes a dead letter. A message with an invalid body becomes
                a dead letter immediately.
            ack_wait: For a durable handler, seconds until a message is redelivered after its worker was lost. The default is
                30. The function itself may run longer.
            start: Where a new durable handler starts: with ``"all"`` stored messages (the default), with ``"new"`` messages, at
                a `timedelta` before now, or at a sequence number.
            ordered: For a durable handler, process one message at a time in the whole cluster, in the order of the store.
            peers: If `False`, the function receives only messages from this bus and from bridges, and peers do not see the
                subscription. In a cluster, this applies to each node. Cannot be combined with `group` or `durable`.

        Raises:
            TypeError: If the signature is unsuitable, an argument has the wrong type, or this router has already been included.
            ValueError: If an argument is invalid, requires `durable`, or cannot be combined with another one.
            LocalProtocolError: If the pattern is invalid, or `durable` is set although the bus is already entered.
            ReservedSubject: If the pattern is reserved for polybus.
        """
        name = _prefixed(self._prefix, _name(pattern, "on"))
        check_pattern(name)
        warn_of_literal_wildcards(name)
        check_queue(queue, when_full)
        check_count(concurrency, "concurrency")
        check_group(group)
        check_peers(peers, group, durable)
        reading = reading_of(
            durable, retry, ack_wait, start, ordered, group=group, concurrency=concurrency, of_handler=(queue, when_full)
        )

        def register(function: F) -> F:
            handler = plan(name, function, _typed(pattern), inline=inline, publication=True)
            self._lookup.add_subscriber(SubscriberSpec(handler, queue, when_full, concurrency, group, reading, peers))
            return function

        return register

    def implement(self, contract: TypeForm[P], implementation: P, prefix: str = "") -> None:
        """Register the methods of an object as handlers of a contract, which is a `typing.Protocol` class.

        Args:
            contract: As for `Bus.client`. Plain ``def`` methods are also allowed, and run in threads.
            implementation: Object with all methods of the contract. Deriving its class from the contract helps type checkers:
                ``class UsersInDatabase(Users): ...``
            prefix: As for `Bus.client`. It is appended to the prefixes of routers.

        Raises:
            TypeError: If `contract` is not a contract, the object does not implement it, a subject already has a handler, or a
                router's prefix would precede an integer. The text names the class and the method, and says what to write
                instead. In this case, no handler is registered.
            LocalProtocolError: If a subject is invalid with the prefix of the router.
        """
        from ...contracts.contract import handlers_of  # few programs have contracts

        self._lookup.add(*(_moved(handler, self._prefix) for handler in handlers_of(contract, implementation, prefix)))

    @overload
    def publishes(self, subject: Subject[In, Any], *, description: str = ...) -> Subject[In, Any]: ...
    @overload
    def publishes(self, subject: str | int, *, description: str = ...) -> Subject[Any, Any]: ...
    def publishes(self, subject: AnySubject, *, description: str = "") -> Subject[Any, Any]:
        """Declare a publication for the AsyncAPI document: ``PLACED = bus.publishes(Subject("placed", Order))``

        This is for documentation only. You can also publish to undeclared subjects.

        Args:
            subject: A `Subject` with the full subject, or a pattern if part of it varies, and the type of the bodies. A router
                does not add its prefix.
            description: Text in the style of a handler's docstring: a summary, details, and ``Args:`` for the names in a
                pattern.

        Returns:
            The subject, for `Bus.publish`.

        Raises:
            TypeError: If `subject` is not a `Subject` instance, is a request subject, or was declared with another type.
            LocalProtocolError: If the subject is invalid.
            ReservedSubject: If the subject is reserved for polybus.
        """
        check_given(description, str, "description", "description='Told for each order.'")
        publication = declared(subject, description)
        check_pattern(publication.subject.name)
        self._lookup.add_publication(publication)
        return publication.subject

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Add the handlers and declared publications of a router.

        Register all of the router's handlers before you call this. The router does not accept handlers afterwards.

        Args:
            router: The router.
            prefix: Prefix for the subjects and patterns of the router's handlers.

        Raises:
            TypeError: If a subject already has a handler or another type, a prefix would precede an integer or a URI, or
                `router` is not a router.
            ValueError: If the prefix does not end with a separator such as a dot.
            LocalProtocolError: If a subject is invalid with the prefix.
        """
        check_given(router, Router, "router", "bus.include(router, prefix='user.')")
        _check_prefix(prefix)
        for handler in list(router._lookup.handlers.values()):
            self._lookup.add(_moved(handler, prefix))
        for spec in list(router._lookup.subscribers):
            moved = _moved(spec.handler, prefix, publication=True)
            self._lookup.add_subscriber(replace(spec, handler=moved))
        for publication in list(router._lookup.publications.values()):
            self._lookup.add_publication(publication)
        if router._lookup.handler_added is None:  # only a bus accepts further handlers
            router._lookup.copied = True


def _name(subject: Any, verb: str) -> Any:
    if callable(subject):  # the decorator without its parentheses
        raise TypeError(f"@bus.{verb} needs its subject: @bus.{verb}('user.get')")
    return bare(subject)


def _typed(subject: Any) -> Subject[Any, Any] | None:
    return subject if isinstance(subject, Subject) else None


def _check_prefix(prefix: Any) -> None:
    check_given(prefix, str, "prefix", "prefix='user.'")
    if prefix and (prefix[-1].isalnum() or prefix[-1] == "_"):
        raise ValueError(f"prefix={prefix!r}: subjects would begin with {prefix + 'get'!r}; write prefix={prefix + '.'!r}")


def _prefixed(prefix: str, subject: Any, by: str = "") -> Any:
    if not prefix:
        return subject
    if not isinstance(subject, str):
        raise TypeError(
            f"{by}prefix={prefix!r} cannot be put before {shown(subject)}: the subjects of a router with a prefix are strings"
        )
    if subject.startswith(("/", "up:/")):
        raise TypeError(
            f"{by}prefix={prefix!r} cannot be put before the URI {subject!r}, which is already complete: omit the prefix, "
            "and use a separate router for URIs"
        )
    return prefix + subject


def _moved(handler: Handler, prefix: str, publication: bool = False) -> Handler:
    running = None if handler.places is None else handler.places.most
    if not prefix and running is None:
        return handler
    subject = handler.subject
    if prefix:
        subject = _prefixed(prefix, subject, f"{handler.name}: ")
        check = check_pattern if publication else check_subject
        check(subject)
    # copied even without a prefix, because each bus has its own slots
    typed = Subject(subject, handler.takes, handler.returns)
    assert handler.signature is not None  # a function of the application
    return plan(subject, handler.signature, typed, publication=publication, running=running)
