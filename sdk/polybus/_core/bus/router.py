"""Registration of handlers, which `Bus` and `Router` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from attrs import evolve

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
    """A group of handlers that a bus includes, perhaps under a prefix: `bus.include(router, prefix="user.")`.

    Args:
        prefix: Stands before the subjects and patterns of all its handlers, as in ``Router(prefix="user.")``.

    Raises:
        TypeError: `prefix` is no text.
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

        A coroutine function is awaited; a plain function runs in a worker thread, or in place with ``inline=True``; an async
        generator answers `stream`; a function with a `Channel` parameter answers `channel`.

        Args:
            subject: One subject, or `Subject`. The empty one is that of requests which name none (UBRE as in its document).
            inline: Call a plain function on the event loop.
            running: Calls of this function that run at once, of streams and channels too; None for as many as `Limits` allow.
                One more waits until one of them has returned, and takes no place of other handlers meanwhile. What a node of a
                cluster has no room to let wait (`Cluster.waiting`) is asked elsewhere.

        Raises:
            TypeError: The signature cannot be filled, or the subject has a handler already, or this is a router that a bus has
                included already, or the bus checks answers (`check_answers`) and cannot check these.
            ValueError: `running` is below 1.
            LocalProtocolError: The subject is not valid.
            ReservedSubject: The subject is ours.
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

        With ``durable="billing"`` it is given what a `Store` of the cluster keeps: each publication to one worker of those that
        name the same, and again until the function has returned, also after a crash. It may run twice for one publication:
        ``ctx.message.id`` is the same then. A bus that is in no cluster reads the stream of others that keeps the pattern,
        behind its link to their NATS network: that is looked for when the link is opened.

        Args:
            pattern: ``*`` one token, ``>`` the rest, ``{name}`` one token handed over by that name.
            queue: Publications that may wait for the function; by default as many as `Limits.queue_bytes` has room for, each
                with its body and 200 bytes: some 20,000 small ones. Those of a durable one wait in the store.
            when_full: What happens to one more; see `WhenFull`.
            concurrency: Above 1: that many at the same time, and no order.
            inline: Call a plain function on the event loop.
            group: Each publication is for one subscription of those that name the same group and pattern: in this bus, in all
                nodes of its cluster, and in other programs where the wire has groups (NATS).
            durable: The name of a durable handler, of letters, digits, ``-`` and ``_``.
            retry: Of a durable handler: `Retry.attempts` and `Retry.backoff` of a publication for which the function raises.
                What does not fit its annotation is never tried again. After the last attempt it is a dead letter. Five
                attempts by default.
            ack_wait: Of a durable handler: seconds after which a publication comes again whose worker is not heard of any
                more; 30 by default. A function may run longer.
            start: Of a durable handler that is new: ``"all"`` that is stored (by default), ``"new"``, what is not older than a
                `timedelta`, or from the publication of that number.
            ordered: Of a durable handler: one publication at a time in the whole cluster, in the order of the store.
            peers: Whether publications of peers count. False takes what this bus publishes itself (in a cluster: each of its
                nodes) and what a bridge brings; peers neither reach the function nor hear of it.
                Not with `group` or `durable`.

        Raises:
            TypeError: The signature cannot be filled, or an argument is of a wrong type, or this is a router that a bus has
                included already.
            ValueError: A group that cannot be, a queue or concurrency below 1, an unknown policy, or an argument that goes with
                `durable` alone, or not with it.
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
        """Answer the methods of a Protocol class by those of an object: its methods are handlers from now on.

        Args:
            contract: As of `Bus.client`; of plain ``def`` methods too, which run in threads.
            implementation: An object with all its methods, best of a class that is derived from it, which type checkers hold
                to it: ``class UsersInDatabase(Users): ...``
            prefix: As of `Bus.client`. What a router has before its subjects, or is included with, comes before it.

        Raises:
            TypeError: It is no contract, the object does not implement it, a subject has a handler already, or a router's
                prefix would be put before a number; the text names class and method, and what to write. Nothing is
                registered then.
            LocalProtocolError: A subject with the router's prefix is not valid.
        """
        self._lookup.add(*(_moved(handler, self._prefix) for handler in handlers_of(contract, implementation, prefix)))

    @overload
    def publishes(self, subject: Subject[In, Any], *, description: str = ...) -> Subject[In, Any]: ...
    @overload
    def publishes(self, subject: str | int, *, description: str = ...) -> Subject[Any, Any]: ...
    def publishes(self, subject: AnySubject, *, description: str = "") -> Subject[Any, Any]:
        """Say what this application publishes, for its AsyncAPI document: ``PLACED = bus.publishes(Subject("placed", Order))``

        It says so and does nothing: `Bus.publish` publishes, what is declared or not.

        Args:
            subject: With the type of the bodies; a pattern where part of it varies. In full: no prefix of a router comes before
                it, as none does when it is published.
            description: Read as the docstring of a handler is: a summary, more, and ``Args:`` of the names in a pattern.

        Returns:
            The subject, for `Bus.publish`.

        Raises:
            TypeError: It is no subject, one of requests, or declared with another type already.
            LocalProtocolError: The subject is not valid.
            ReservedSubject: The subject is ours.
        """
        check_given(description, str, "description", "description='Told for each order.'")
        publication = declared(subject, description)
        check_pattern(publication.subject.name)
        self._lookup.add_publication(publication)
        return publication.subject

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Take over all handlers of another router, with their subjects prefixed, and what it says that it publishes.

        From then on that router takes no more handlers: they would be known to nobody.

        Raises:
            TypeError: A subject has a handler already or is published with another type, a prefix would be put before a number
                or a URI, or this is no router.
            ValueError: The prefix ends in the middle of a name.
            LocalProtocolError: A subject with the prefix is not valid.
        """
        check_given(router, Router, "router", "bus.include(router, prefix='user.')")
        _check_prefix(prefix)
        for handler in list(router._lookup.handlers.values()):
            self._lookup.add(_moved(handler, prefix))
        for spec in list(router._lookup.subscribers):
            moved = _moved(spec.handler, prefix, publication=True)
            self._lookup.add_subscriber(evolve(spec, handler=moved))
        for publication in list(router._lookup.publications.values()):
            self._lookup.add_publication(publication)
        if router._lookup.handler_added is None:  # no bus, which goes on by itself
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
    # Another one also without a prefix: each bus has its own places.
    typed = Subject(subject, handler.takes, handler.returns)
    assert handler.signature is not None  # it is a function of the application
    return plan(subject, handler.signature, typed, publication=publication, running=running)
