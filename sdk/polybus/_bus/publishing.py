"""What a bus tells everybody, and what it wants to be told: publications and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import get_ident
from typing import Any, TypeVar, overload

from .._handlers.router import SubscriberSpec, WhenFull, check_queue
from .._peer.peer import Peer
from .._pubsub.publisher import YIELD_AFTER, PublicationRoute, Targets, own_format
from .._pubsub.subscription import Subscription
from .._rpc.loopback import encode_local
from .._util.event_loop import wrong_event_loop
from .._util.typed_body import unreadable
from .._validation import seconds, shown
from ..body import JSON
from ..message import Kind, Message
from ..subjects import AnySubject, Subject, check_pattern
from .asking import TIMEOUT, Asking
from .routing import has_gone

__all__ = ["Publishing"]

In = TypeVar("In")
T = TypeVar("T")


class Publishing(Asking):
    """The part of a `Bus` that publishes and subscribes."""

    # -- publications ----------------------------------------------------------------------------------------------------

    async def publish(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: Peer | Iterable[Peer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish: every matching subscription gets it once, the bus's own and those of every linked peer.

        On links that this bus opened it is always sent. When this returns, it has been handed to the transports or waits in an
        outbox: that is no receipt.

        Args:
            to: One peer or several: only they get it; an empty list is nobody.
            timeout: Seconds to wait for room, and to live in the outbox of a link that is down.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: No room in time, in some queue or outbox; the others got it.
            Disconnected: A peer of `to` has gone; the others got it.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout`, `to` or `headers` are of a wrong type, or cannot be.
        """
        name = subject.name if isinstance(subject, Subject) else subject
        if timeout != TIMEOUT:
            timeout = seconds(timeout)
        publisher = self._pubsub.publisher
        publisher.since_yield += 1
        if publisher.since_yield >= YIELD_AFTER:
            await publisher.yield_to_loop()
        try:
            route = publisher.routes.get(name) or publisher.route(name)
        except TypeError:  # not hashable: `route` says what it should be
            route = publisher.route(name)
        peer = route.only_peer
        if to is None and headers is None and body is not None and peer is not None and (link := peer.link).flowing:
            if get_ident() != link.runtime.thread:
                raise wrong_event_loop()
            publisher.publish_to_only_peer(route, link, body)
            return
        self._services.running.check_thread()
        peers, gone = (route.peers, None) if to is None else self._recipients(to)
        deadline = self._services.running.time() + timeout
        message = self._publication(route, name, body, headers, None if to is None else peers)
        await publisher.publish(message, route if to is None else Targets(peers), deadline)
        if gone is not None:
            raise has_gone(gone)

    def publish_nowait(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: Peer | Iterable[Peer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """`publish` without waiting.

        Raises:
            QueueFull: No room in some queue or outbox; the others got it.
            Disconnected, EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `publish`.
        """
        name = subject.name if isinstance(subject, Subject) else subject
        self._services.running.check_here()
        route = self._route_of(name)
        peers, gone = (route.peers, None) if to is None else self._recipients(to)
        deadline = self._services.running.time() + seconds(timeout)
        message = self._publication(route, name, body, headers, None if to is None else peers)
        self._pubsub.publisher.publish_nowait(message, route if to is None else Targets(peers), deadline)
        if gone is not None:
            raise has_gone(gone)

    def _publication(
        self,
        route: PublicationRoute,
        name: str | int,
        body: Any,
        headers: Mapping[str, str] | None,
        peers: tuple[Peer, ...] | None,
    ) -> Message:
        checked = None if headers is None else self._headers(headers)
        if body is None:
            return Message(Kind.PUBLISH, name, headers=checked)
        choose = route.choose if peers is None else own_format(peers)
        body_format = JSON if choose is None else choose(body, name)
        if body_format is JSON and route.only_peer is None:
            raw, body_format = encode_local(body)
        else:
            raw = body_format.encode(body)
        return Message(Kind.PUBLISH, name, None, raw, body_format, checked)

    # -- subscriptions ---------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, pattern: Subject[In, Any], *, queue: int = ..., when_full: WhenFull = ..., local: bool = ...
    ) -> Subscription[In]: ...
    @overload
    def subscribe(
        self, pattern: str | int, *, returns: type[T], queue: int = ..., when_full: WhenFull = ..., local: bool = ...
    ) -> Subscription[T]: ...
    @overload
    def subscribe(
        self, pattern: AnySubject, *, returns: Any = ..., queue: int = ..., when_full: WhenFull = ..., local: bool = ...
    ) -> Subscription[Any]: ...
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = Any,
        queue: int = 1000,
        when_full: WhenFull = "drop_oldest",
        local: bool = True,
    ) -> Subscription[Any]:
        """Receive publications: ``async with bus.subscribe("news.*") as news: async for message in news: ...``

        Entering returns when the links that are up know of it.

        Args:
            pattern: ``*`` one token, ``>`` the rest.
            returns: The type that bodies are converted to; those that do not fit are skipped and counted.
            queue: Publications that wait to be read.
            when_full: What happens to one more; see `WhenFull`.
            local: Take the bus's own publications too.

        Raises:
            LocalProtocolError: The pattern is not valid; (on entering) the bus runs in another event loop.
            ReservedSubject: It begins with ``_polybus.``.
            ValueError: The queue or the policy is not possible.
            TypeError: `returns` is no type, or none that a body can be read as.
            Unsupported: (on entering) A bare peer matches exact subjects only, or no link carries such a subject (a number).
            Forbidden: (on entering) The peer refused.
        """
        return self._subscription(pattern, returns, queue, when_full, local=local)

    def _subscription(
        self,
        pattern: AnySubject,
        returns: Any,
        queue: int,
        when_full: WhenFull,
        *,
        local: bool = False,
        peer: Peer | None = None,
    ) -> Subscription[Any]:
        name = pattern.name if isinstance(pattern, Subject) else pattern
        if isinstance(pattern, Subject) and returns is Any:
            returns = pattern.takes
        check_pattern(name, self.limits.subject)
        check_queue(queue, when_full)
        if (why := unreadable(returns)) is not None:
            raise TypeError(f"returns={shown(returns)}: a type, for example returns=dict; {why}")
        return Subscription(self._pubsub, self._services, name, returns, queue, when_full, local, peer)

    def relay(self, pattern: str | int) -> None:
        """Pass matching publications of peers on to the other peers that subscribed. Off by default: sessions are isolated.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
        """
        check_pattern(pattern, self.limits.subject)
        self._pubsub.add_relay(pattern)

    def _add_subscriber(self, spec: SubscriberSpec) -> None:
        super()._add_subscriber(spec)
        if self._services.runtime is not None:
            queue = self._pubsub.subscribe_handler(spec)
            self._pubsub.announcer.announce_later(queue.pattern)
