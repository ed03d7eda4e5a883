"""Registration of handlers, shared by `Bus` and `Router`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec.structs import replace

from ..._util.misuse import HANDLE, explains
from ..._validation import check_count, check_given, shown
from ...contracts.verbs import handlers_of
from ...nodes import Start
from ...retry import Retry
from ...subjects import AnySubject, Subject, bare, check_pattern, check_subject, warn_of_literal_wildcards
from ..handlers.handler import Handler, plan
from ..handlers.lookup import HandlerLookup, declared
from ..handlers.subscriber import SubscriberSpec, WhenFull, check_group, check_peers, check_queue, reading_of

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from ..handlers.subject_handlers import HandlerOf, SubscriberOf

F = TypeVar("F", bound=Callable[..., Any])
In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")


class Router:
    """A group of handlers for `bus.include(router, prefix="user.")`.

    Args:
        prefix: Prefix for the subjects and patterns of all its handlers, as in ``Router(prefix="user.")``.

    Raises:
        TypeError: `prefix` is not text.
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

        A coroutine function is awaited. A plain function runs in a worker thread, or in place with ``inline=True``. An async
        generator answers `stream`; a function with a `Channel` parameter answers `channel`.

        Args:
            subject: One subject, or `Subject`. The empty subject answers requests that name none (UBRE as in its document).
            inline: Call a plain function on the event loop.
            running: Limit of concurrent calls of this function, streams and channels included; by default only `Limits` apply.
                Further calls wait without occupying slots of other handlers; beyond `Cluster.waiting` they go to another node.

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

        With ``durable="billing"`` it consumes a `Store` of the cluster: one worker with that name gets each publication, again
        until the function has returned, even after a crash. It may run twice for one publication, with the same
        ``ctx.message.id``. A bus without a cluster reads the external stream that stores the pattern, if a link to a NATS
        network leads to one when it opens.

        Args:
            pattern: ``*`` one token, ``>`` the rest, ``{name}`` one token as the argument of that name.
            queue: Publications that may wait for the function; by default as many as fit into `Limits.queue_bytes`, each with
                its body and 200 bytes: about 20,000 small ones. Those of a durable handler wait in the store.
            when_full: Policy for a full queue; see `WhenFull`.
            concurrency: Above 1: this many at the same time, in no order.
            inline: Call a plain function on the event loop.
            group: Queue group: one of the subscriptions with the same group and pattern gets each publication, in this bus, in
                all nodes of its cluster, and in other programs on wires with groups (NATS).
            durable: The name of a durable handler: letters, digits, ``-`` and ``_``.
            retry: For a durable handler: `Retry.attempts` and `Retry.backoff` after the function raises; five attempts by
                default. The last failure makes a dead letter, as does a body that does not fit, at once.
            ack_wait: For a durable handler: seconds until redelivery after its worker is lost; 30 by default. A function may
                run longer.
            start: For a new durable handler: ``"all"`` stored publications (default), ``"new"`` ones, a `timedelta` for those
                not older, or a publication's number.
            ordered: For a durable handler: one publication at a time in the whole cluster, in the order of the store.
            peers: False: only publications of this bus (in a cluster: of each node) and from bridges reach the function, and
                peers do not see the subscription. Not with `group` or `durable`.

        Raises:
            TypeError: The signature does not fit, an argument has a wrong type, or this router is already included.
            ValueError: An invalid group, a queue or concurrency below 1, an unknown policy, or an argument that requires
                `durable` or excludes it.
            LocalProtocolError: The pattern is not valid; or `durable`, and the bus is entered.
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
            contract: As for `Bus.client`; plain ``def`` methods are allowed too, and run in threads.
            implementation: An object with all its methods, best of a derived class, for type checkers: ``class
                UsersInDatabase(Users): ...``
            prefix: As for `Bus.client`, after the prefixes of routers.

        Raises:
            TypeError: Not a contract, the object does not implement it, a subject already has a handler, or a router's prefix
                would precede a number; the text names class and method, and the remedy. Nothing is registered then.
            LocalProtocolError: A subject with the router's prefix is not valid.
        """
        self._lookup.add(*(_moved(handler, self._prefix) for handler in handlers_of(contract, implementation, prefix)))

    @overload
    def publishes(self, subject: Subject[In, Any], *, description: str = ...) -> Subject[In, Any]: ...
    @overload
    def publishes(self, subject: str | int, *, description: str = ...) -> Subject[Any, Any]: ...
    def publishes(self, subject: AnySubject, *, description: str = "") -> Subject[Any, Any]:
        """Declare a publication for the AsyncAPI document: ``PLACED = bus.publishes(Subject("placed", Order))``

        This only documents it: `Bus.publish` also publishes undeclared subjects.

        Args:
            subject: With the type of the bodies, in full (a router adds no prefix); a pattern if part of it varies.
            description: Like the docstring of a handler: a summary, details, and ``Args:`` for the names in a pattern.

        Returns:
            The subject, for `Bus.publish`.

        Raises:
            TypeError: Not a subject, a subject of requests, or already declared with another type.
            LocalProtocolError: The subject is not valid.
            ReservedSubject: The subject is reserved for polybus.
        """
        check_given(description, str, "description", "description='Told for each order.'")
        publication = declared(subject, description)
        check_pattern(publication.subject.name)
        self._lookup.add_publication(publication)
        return publication.subject

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Add all handlers of another router, with their subjects prefixed, and its declared publications.

        From then on the router accepts no more handlers: they would not reach this bus.

        Raises:
            TypeError: A subject already has a handler or another type, a prefix would precede a number or a URI, or `router` is
                not a router.
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
    # even without a prefix: each bus has its own slots
    typed = Subject(subject, handler.takes, handler.returns)
    assert handler.signature is not None  # a function of the application
    return plan(subject, handler.signature, typed, publication=publication, running=running)
