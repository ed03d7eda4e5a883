"""Registration of handlers, shared by `Bus` and `Router`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec.structs import replace

from ..._util.misuse import HANDLE, explains
from ..._validation import check_count, check_given, shown
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
    """A group of handlers that you add to a bus with `bus.include(router, prefix="user.")`.

    Args:
        prefix: Prefix for the subjects and patterns of all its handlers, as in ``Router(prefix="user.")``.

    Raises:
        TypeError: `prefix` is not a string.
        ValueError: `prefix` ends in the middle of a name.
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

        A coroutine function is awaited. A plain function runs in a worker thread, or on the event loop with ``inline=True``. An
        async generator answers `stream`, and a function with a `Channel` parameter answers `channel`.

        Args:
            subject: The subject as a string, an integer or a `Subject`. The empty subject is for requests that do not name one
                (UBRE as in its document).
            inline: Call a plain function on the event loop.
            running: Maximum number of concurrent calls of this function, including streams and channels. By default only
                `Limits` apply. Further calls wait without using slots of other handlers; calls beyond `Cluster.waiting` are
                passed to another node.

        Raises:
            TypeError: The signature does not fit, the subject already has a handler, this router is already included, or
                `check_answers` cannot check the answers.
            ValueError: `running` is below 1.
            LocalProtocolError: The subject is not valid.
            ReservedSubject: The subject is reserved for polybus.
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
        self,
        pattern: Subject[In, Any],
        *,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        concurrency: int = ...,
        inline: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
        peers: bool = ...,
    ) -> SubscriberOf[In]: ...
    @overload
    def on(
        self,
        pattern: str | int,
        *,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        concurrency: int = ...,
        inline: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
        peers: bool = ...,
    ) -> Callable[[F], F]: ...
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
        """Register a function that receives the publications of a pattern, one at a time and in order.

        With ``durable="billing"`` the function consumes a `Store` of the cluster. The workers with that name share the
        publications, and each publication is redelivered until the function has returned, even after a crash. The function may
        therefore run twice for one publication, with the same ``ctx.message.id``. A bus without a cluster reads the external
        stream that stores the pattern, if a link to a NATS network leads to one when it opens.

        Args:
            pattern: ``*`` matches one token, ``>`` the rest; ``{name}`` matches one token and passes it as the argument of that
                name.
            queue: Number of publications that may wait for the function. By default as many as fit into `Limits.queue_bytes`,
                which counts the body and 200 bytes for each: about 20,000 small ones. The publications of a durable handler
                wait in the store.
            when_full: Policy for a full queue; see `WhenFull`.
            concurrency: Number of publications to handle at the same time. If it is above 1, their order is not kept.
            inline: Call a plain function on the event loop.
            group: Name of a queue group. One of the subscriptions with the same group and pattern receives each publication:
                in this bus, in all nodes of its cluster, and in other programs on wires with groups (NATS).
            durable: The name of a durable handler: letters, digits, ``-`` and ``_``.
            retry: For a durable handler: `Retry.attempts` and `Retry.backoff` apply after the function raises; five attempts by
                default. A publication becomes a dead letter after the last failure, or at once if its body does not fit.
            ack_wait: For a durable handler: seconds until a publication is redelivered after its worker was lost; 30 by
                default. A function may run longer.
            start: For a new durable handler: begin with ``"all"`` stored publications (the default), with ``"new"`` ones only,
                with those up to the age of a `timedelta`, or with the publication of that number.
            ordered: For a durable handler: handle one publication at a time in the whole cluster, in the order of the store.
            peers: If False, the function receives only publications of this bus (in a cluster: of each node) and from bridges,
                and peers do not see the subscription. Not allowed with `group` or `durable`.

        Raises:
            TypeError: The signature does not fit, an argument has a wrong type, or this router is already included.
            ValueError: The group is invalid, the queue or concurrency is below 1, the policy is unknown, or an argument
                requires `durable` or excludes it.
            LocalProtocolError: The pattern is not valid; or `durable` is set although the bus is already entered.
        """
        name = _prefixed(self._prefix, _name(pattern, "on"))
        check_pattern(name)
        warn_of_literal_wildcards(name)
        check_queue(queue, when_full)
        check_count(concurrency, "concurrency")
        check_group(group)
        check_peers(peers, group, durable)
        reading = reading_of(
            durable,
            retry,
            ack_wait,
            start,
            ordered,
            group=group,
            concurrency=concurrency,
            of_handler=(queue, when_full),
        )

        def register(function: F) -> F:
            handler = plan(name, function, _typed(pattern), inline=inline, publication=True)
            self._lookup.add_subscriber(SubscriberSpec(handler, queue, when_full, concurrency, group, reading, peers))
            return function

        return register

    def implement(self, contract: TypeForm[P], implementation: P, prefix: str = "") -> None:
        """Register the methods of an object as handlers for a Protocol class.

        Args:
            contract: As for `Bus.client`. Plain ``def`` methods are also allowed, and run in threads.
            implementation: An object with all methods of the contract. It helps type checkers if its class is derived from the
                contract: ``class UsersInDatabase(Users): ...``
            prefix: As for `Bus.client`, after the prefixes of routers.

        Raises:
            TypeError: `contract` is not a contract, the object does not implement it, a subject already has a handler, or the
                prefix of a router would precede an integer. The text names the class, the method and the remedy. Nothing is
                registered in that case.
            LocalProtocolError: A subject with the router's prefix is not valid.
        """
        from ...contracts.contract import handlers_of  # few programs have contracts

        self._lookup.add(*(_moved(handler, self._prefix) for handler in handlers_of(contract, implementation, prefix)))

    @overload
    def publishes(self, subject: Subject[In, Any], *, description: str = ...) -> Subject[In, Any]: ...
    @overload
    def publishes(self, subject: str | int, *, description: str = ...) -> Subject[Any, Any]: ...
    def publishes(self, subject: AnySubject, *, description: str = "") -> Subject[Any, Any]:
        """Declare a publication for the AsyncAPI document: ``PLACED = bus.publishes(Subject("placed", Order))``

        This is only documentation: `Bus.publish` also publishes to subjects that are not declared.

        Args:
            subject: The full subject (a router adds no prefix) with the type of the bodies, or a pattern if part of the subject
                varies.
            description: A text like the docstring of a handler: a summary, details, and ``Args:`` for the names in a pattern.

        Returns:
            The subject, for `Bus.publish`.

        Raises:
            TypeError: `subject` is not a subject, is a subject of requests, or was declared with another type.
            LocalProtocolError: The subject is not valid.
            ReservedSubject: The subject is reserved for polybus.
        """
        check_given(description, str, "description", "description='Told for each order.'")
        publication = declared(subject, description)
        check_pattern(publication.subject.name)
        self._lookup.add_publication(publication)
        return publication.subject

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Add all handlers of another router, with a prefix before their subjects, and its declared publications.

        After that, you cannot add handlers to the router, because they would not reach this bus.

        Raises:
            TypeError: A subject already has a handler or another type, a prefix would precede an integer or a URI, or `router`
                is not a router.
            ValueError: The prefix ends in the middle of a name.
            LocalProtocolError: A subject with the prefix is not valid.
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
    if not isinstance(prefix, str):
        raise TypeError(f"prefix={shown(prefix)}: text, not {type(prefix).__name__}; for example prefix='user.'")
    if prefix and (prefix[-1].isalnum() or prefix[-1] == "_"):
        raise ValueError(f"prefix={prefix!r}: subjects would begin with {prefix + 'get'!r}; write prefix={prefix + '.'!r}")


def _prefixed(prefix: str, subject: Any, by: str = "") -> Any:
    if not prefix:
        return subject
    if not isinstance(subject, str):
        raise TypeError(
            f"{by}prefix={prefix!r} cannot be put before {shown(subject)}: a router with a prefix has subjects of text"
        )
    if subject.startswith(("/", "up:/")):
        raise TypeError(
            f"{by}prefix={prefix!r} cannot be put before the URI {subject!r}, which is a whole subject: leave out the prefix, "
            "and put what has a URI into a router of its own"
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
