"""The verbs of a bus. The verbs of a single peer are in `_core.peer.party_verbs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

from ..._util.event_loop import wrong_event_loop
from ..._util.typed_body import check_returns
from ..._validation import seconds, shown
from ...errors import Disconnected, Forbidden, LocalProtocolError, NoHandler, Unauthorized
from ...headers import check_headers
from ...nodes import Start, check_publication_id
from ...retry import Retry
from ...subjects import AnySubject, Subject, bare, check_pattern, check_subject, resolve, warn_of_literal_wildcards
from ..handlers.handler import WhenFull, reading_of
from ..peer.party_verbs import notification, opening
from ..peer.peer import Peer
from ..peer.subscription import Subscription
from ..pubsub.publisher import YIELD_AFTER, Targets, make_publication
from ..rpc.channel import Channel, ChannelContext
from ..rpc.reply import Reply, failed_reply, retried
from .cluster_clients import RemotePeer
from .message_routing import Caller
from .registration import Router

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .bus_parts import BusParts

In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")
T = TypeVar("T")

AnyPeer: TypeAlias = Peer | RemotePeer
"""A peer of this bus, or a client of another node of its cluster."""

TIMEOUT = 30.0
"""Default timeout in seconds. It is not checked, unlike timeouts that the caller passes."""
_BARE: Final = frozenset({str, int})


class BusVerbs(Router):
    _parts: BusParts

    def _find_parts(self, parts: BusParts) -> None:
        self._services = parts.services
        self._known_subjects = parts.services.subjects.known
        self._outgoing = parts.services.outgoing
        self._pubsub = parts.pubsub
        self._publisher = parts.pubsub.publisher
        self._routing = parts.routing
        self._links = parts.links

    # -- requests --------------------------------------------------------------------------------------------------------

    @overload
    def request(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float = ..., to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ..., retry: Retry | None = ...,
    ) -> Reply[Out]: ...  # fmt: skip
    @overload
    def request(
        self, subject: Subject[In, Any], body: In = ..., *, timeout: float = ..., returns: type[T], to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ..., retry: Retry | None = ...,
    ) -> Reply[T]: ...  # fmt: skip
    @overload
    def request(
        self, subject: str | int, body: Any = ..., *, timeout: float = ..., returns: type[T], to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ..., retry: Retry | None = ...,
    ) -> Reply[T]: ...  # fmt: skip
    @overload
    def request(
        self, subject: str | int, body: Any = ..., *, timeout: float = ..., returns: Any = ..., to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ..., retry: Retry | None = ...,
    ) -> Reply[Any]: ...  # fmt: skip
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        to: AnyPeer | None = None,
        headers: Mapping[str, str] | None = None,
        retry: Retry | None = None,
    ) -> Reply[Any]:
        """Queue a request and return its `Reply`. Await the reply to get the answer.

        If this bus has a handler for the subject, that handler answers. Otherwise the request goes over the only link that this
        bus has opened, or the link with a matching ``serves=`` if there are several.

        Args:
            subject: Subject of the handler.
            body: Any value that the protocol can encode.
            timeout: Seconds until `DeadlineExceeded`. The peer receives the deadline too if the protocol supports it.
            returns: Type to convert the answer to.
            to: Peer to send the request to.
            headers: Headers to send, as a mapping of strings to strings.
            retry: Retry temporary failures within `timeout`. See `Retry`.

        Raises:
            EncodeError: If the body cannot be encoded. The error names the path of the value.
            AmbiguousRoute: If several links could carry the request.
            Unsupported: If the protocol cannot carry the request.
            ReservedSubject, LocalProtocolError: If applications may not use the subject or a header.
            TypeError, ValueError: If an argument has the wrong type or an invalid value.
            NoHandler: When awaited, if this bus has neither a handler for the subject nor a link.
            Disconnected, Unauthorized, Forbidden: When awaited, if the only link is gone for good.
            BusError: See `Reply`.
        """
        name: Any = subject
        if type(subject) not in _BARE:
            name, returns = resolve(subject, returns)
            body = subject.given(body) if isinstance(subject, Subject) else body
        try:
            if name not in self._known_subjects:
                self._services.subjects.check(name)
        except TypeError:  # not hashable, so not a subject
            check_subject(name)
        if timeout != TIMEOUT:
            timeout = seconds(timeout)
        if returns is not Any:
            check_returns(returns, whole=True)
        checked = None if headers is None else check_headers(headers, self._services.limits.headers)
        if retry is not None:
            ask = partial(self.request, name, body, to=to, headers=checked)  # a lambda would cost each request five cells
            return retried(self._services.running, retry, name, timeout, returns, ask)
        try:
            party = self._routing.find(name, to)
        except (NoHandler, Disconnected, Unauthorized, Forbidden) as error:
            return failed_reply(self._services.running, name, returns, timeout, error)
        return party.send_request(name, body, timeout, returns, checked)

    @overload
    async def notify(
        self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...,
        to: AnyPeer | str | None = ...,
    ) -> None: ...  # fmt: skip
    @overload
    async def notify(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ..., to: AnyPeer | str | None = ...
    ) -> None: ...
    async def notify(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: AnyPeer | str | None = None,
    ) -> None:
        """Send a notification to one handler, without an answer. Notifications are routed like requests.

        `subject`, `body` and `headers` are as for `request`.

        Args:
            to: A peer or, with `protocols.Up`, an address behind a link such as ``//phone/CD/4``. The link to an address is
                chosen as for a request. A bus that has not opened any links uses its only peer.

        Raises:
            EncodeError, TooLarge: If the body cannot be encoded, or the message exceeds `Limits.message`.
            QueueFull: If the outbox is full.
            Disconnected: If the peer has left.
            BadRequest: If this bus answers the subject with a stream or channel.
            Unsupported: As for `request`, or if `to` is an address and the protocol does not support addresses.
            LocalProtocolError: As for `request`, or if `to` is a string but not an address.
            NoHandler, AmbiguousRoute, ReservedSubject, TypeError, ValueError: As for `request`.
        """
        name, body, checked = notification(self._services, subject, body, headers)
        if isinstance(to, str):
            await self._routing.find_behind(name, to).send_notify(name, body, checked, to)
        else:
            await self._routing.find(name, to).send_notify(name, body, checked)

    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a contract, which is a `typing.Protocol` class. Each method calls a verb of this bus.

        After ``users = bus.client(Users, "user")``, ``await users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: The class. An ``async def`` method sends its only argument as the body of a request. A ``def`` method that
                returns ``AsyncIterator[T]`` opens a stream. See also `contracts.method` and `contracts.notify`.
            prefix: First part of the subjects, followed by a dot and the name of the method.

        Raises:
            TypeError: If `contract` is not a contract or leads to invalid subjects. The text names the class and the method,
                and says what to write instead.
        """
        from ...contracts.client import client_of  # few programs have contracts

        return client_of(self, contract, prefix)

    def as_(self, identity: Any) -> Caller:
        """Call handlers of this bus on behalf of a user, for example from an HTTP endpoint.

        Args:
            identity: Identity of the user. Handlers see it as `Context.identity`.
        """
        return Caller(self._routing, identity)

    # -- streams and channels --------------------------------------------------------------------------------------------

    @overload
    def stream(
        self, subject: Subject[In, Out], body: In = ..., *, timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> ChannelContext[Out, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: type[T], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> ChannelContext[T, Any]: ...
    @overload
    def stream(
        self, subject: str | int, body: Any = ..., *, returns: Any = ..., timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> ChannelContext[Any, Any]: ...
    def stream(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        returns: Any = Any,
        timeout: float | None = None,
        to: AnyPeer | None = None,
    ) -> ChannelContext[Any, Any]:
        """Request a stream of answers.

        Use the result as an async context manager and iterate: ``async with bus.stream("log.tail") as lines: async for line in
        lines: ...`` Flow control is credit-based. Leaving the block stops the remote handler.

        `subject`, `body` and `to` are as for `request`.

        Args:
            returns: Type to convert each item to.
            timeout: Seconds until `DeadlineExceeded`, or `None` for no limit.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `request`.
            EncodeError, NoHandler, AmbiguousRoute: On entry, as for `request`.
            Unsupported: On entry, if the protocol has no streams, or the peer does not run polybus.
            TooLarge: On entry, if the message exceeds `Limits.message`.
            TooManyRequests: On entry or while iterating, if too many streams and channels are open (`Limits.channels`).
            RequestError: While iterating, if the handler fails. `BadRequest` if it answers only requests.
            DeadlineExceeded: While iterating, if the timeout has passed.
            Disconnected: On entry or while iterating, if the link is lost.
        """
        name, returns = resolve(subject, returns)
        if isinstance(subject, Subject):
            body = subject.given(body)
        return opening(self._services, self._opener(to), name, body, "stream", timeout, returns)

    @overload
    def channel(
        self, subject: Subject[In, Out], *, timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> ChannelContext[Out, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], receives: type[T], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> ChannelContext[T, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, receives: type[T], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> ChannelContext[T, Any]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: type[In], timeout: float | None = ..., to: AnyPeer | None = ...
    ) -> ChannelContext[Any, In]: ...
    @overload
    def channel(
        self, subject: str | int, *, sends: Any = ..., receives: Any = ..., timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> ChannelContext[Any, Any]: ...  # fmt: skip
    def channel(
        self,
        subject: AnySubject,
        *,
        sends: Any = Any,
        receives: Any = Any,
        timeout: float | None = None,
        to: AnyPeer | None = None,
    ) -> ChannelContext[Any, Any]:
        """Open a bidirectional channel to a handler.

        Use the result as an async context manager: ``async with bus.channel("chat") as ch: await ch.send("hello")``. Iterate
        over the channel to receive items. `timeout` and `to` are as for `stream`.

        Args:
            sends: Type of the items to send, for type checkers.
            receives: Type to convert each received item to.

        Raises:
            BusError: As for `stream`.
        """
        name, receives = resolve(subject, receives)
        return opening(self._services, self._opener(to), name, None, "channel", timeout, receives)

    def _opener(self, to: AnyPeer | None) -> Callable[..., Awaitable[Channel[Any, Any]]]:
        return self._open if to is None else self._routing.named(to).open_channel

    async def _open(self, subject: str | int, body: Any, mode: str, timeout: float | None) -> Channel[Any, Any]:
        self._services.running.check_here()
        return await self._routing.find(subject).open_channel(subject, body, mode, timeout)

    # -- publications ----------------------------------------------------------------------------------------------------

    @overload
    async def publish(
        self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ..., timeout: float = ..., id: str | None = ...,
    ) -> None: ...  # fmt: skip
    @overload
    async def publish(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ..., timeout: float = ..., id: str | None = ...,
    ) -> None: ...  # fmt: skip
    async def publish(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: AnyPeer | Iterable[AnyPeer] | None = None,
        timeout: float = 30.0,
        id: str | None = None,
    ) -> None:
        """Publish a message once to each matching subscription of this bus and its peers.

        The message is also sent over every link that this bus opened. The call returns as soon as the message has been passed
        to the transports or is waiting in an outbox. Subscribers do not acknowledge messages. The message is also stored if a
        `Store` of the cluster covers the subject, or if you pass `id` and a NATS link leads to an external stream.

        `subject`, `body` and `headers` are as for `request`.

        Args:
            to: One or more peers. The message is sent only to these peers and is not stored in the cluster. An empty list is
                allowed.
            timeout: Seconds to wait for the store and for space in a full outbox. After that, a message that is still in an
                outbox expires.
            id: Identifier for a `Store` or an external stream, which stores messages with the same id only once.

        Raises:
            EncodeError: If the body cannot be encoded.
            TooLarge, Unsupported: If the message exceeds `Limits.message`, or if a protocol or peer cannot carry it. Other
                receivers still get the message.
            QueueFull: If a queue, an outbox or the store stays full. Other receivers still get the message.
            DeadlineExceeded: If the NATS server does not confirm in time that it has stored the message. The message may be
                stored nevertheless.
            Disconnected: If a peer in `to` has left. The other peers still get the message.
            ReservedSubject, LocalProtocolError: If applications may not use the subject or a header.
            TypeError, ValueError: If an argument has the wrong type or an invalid value.
        """
        name: Any = subject
        if type(subject) not in _BARE:
            name, body = self._publication_to(subject, body)
        if timeout != TIMEOUT:
            timeout = seconds(timeout)
        publisher = self._publisher
        publisher.since_yield += 1
        if publisher.since_yield >= YIELD_AFTER:
            await publisher.yield_to_loop()
        try:
            route = publisher.routes.get(name) or publisher.route(name)
        except TypeError:  # not hashable: `route` raises the error
            route = publisher.route(name)
        peer = None if self._outgoing else route.only_peer
        plain = to is None and headers is None and id is None
        if plain and body is not None and peer is not None and (link := peer.link).flowing:
            if get_ident() != link.runtime.thread:
                raise wrong_event_loop()
            link.publish_alone(route.blank, body, peer)
            return
        self._services.running.check_thread()
        peers, gone, remote = (route.peers, None, ()) if to is None else self._routing.recipients(to)
        deadline = self._services.running.time() + timeout
        checked = None if headers is None else check_headers(headers, self._services.limits.headers)
        if id is not None:
            check_publication_id(id)
        message = make_publication(route, name, body, checked, None if to is None else peers)
        if id is not None or (route.kept and to is None):
            if gone is not None:
                raise gone.departed()
            keeper, told = self._links.storage.keeper(name, None if to is None else peers, id, route.kept)
            others = () if to is not None else tuple(peer for peer in route.peers if peer is not told)
            kept = Targets(others, () if to is not None else route.queues, to is None and route.two_ways)
            await publisher.publish(message, kept, deadline, keeper, id)
            return
        targets = route if to is None else publisher.targets(peers)
        if self._outgoing or targets.two_ways:
            await publisher.publish(message, targets, deadline)
        elif (rest := publisher.offer(message, targets, deadline)) is not None:
            await publisher.finish(rest)
        for client in remote:
            await client.publish(name, body, headers=checked)
        if gone is not None:
            raise gone.departed()

    @overload
    def publish_nowait(
        self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...,
        to: Peer | Iterable[Peer] | None = ..., timeout: float = ...,
    ) -> None: ...  # fmt: skip
    @overload
    def publish_nowait(
        self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...,
        to: Peer | Iterable[Peer] | None = ..., timeout: float = ...,
    ) -> None: ...  # fmt: skip
    def publish_nowait(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: Peer | Iterable[Peer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish a message without waiting. See `publish`.

        Args:
            timeout: Seconds after which a message that is still in an outbox expires.

        Raises:
            QueueFull: If a queue or outbox is full. Other receivers still get the message.
            LocalProtocolError: As for `publish`. Also if a `Store` covers the subject, because storing a message requires
                waiting.
            Disconnected, EncodeError, TooLarge, Unsupported, ReservedSubject, TypeError, ValueError: As for `publish`.
        """
        name: Any = subject
        if type(subject) not in _BARE:
            name, body = self._publication_to(subject, body)
        self._services.running.check_here()
        route = self._publisher.route_of(name)
        if route.kept and to is None:
            raise LocalProtocolError(f"{name!r} is stored, which requires waiting: use await bus.publish({name!r}, ...)")
        peers, gone, remote = (route.peers, None, ()) if to is None else self._routing.recipients(to)
        if remote:
            raise TypeError(f"to={shown(to)}: only `await bus.publish(...)` reaches clients of other nodes")
        deadline = self._services.running.time() + seconds(timeout)
        checked = None if headers is None else check_headers(headers, self._services.limits.headers)
        message = make_publication(route, name, body, checked, None if to is None else peers)
        publisher = self._publisher
        targets = route if to is None else publisher.targets(peers)
        publisher.publish_nowait(message, targets, deadline)
        if gone is not None:
            raise gone.departed()

    def _publication_to(self, subject: AnySubject, body: Any) -> tuple[Any, Any]:
        if isinstance(subject, Subject):
            body = self._services.published(subject, body)
        return bare(subject), body

    # -- subscriptions ---------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self, pattern: Subject[In, Any], *, queue: int | None = ..., when_full: WhenFull = ..., local: bool = ...,
        group: str | None = ..., durable: str | None = ..., retry: Retry | None = ..., ack_wait: float | None = ...,
        start: Start | None = ..., ordered: bool = ...,
    ) -> Subscription[In]: ...  # fmt: skip
    @overload
    def subscribe(
        self, pattern: str | int, *, returns: type[T], queue: int | None = ..., when_full: WhenFull = ..., local: bool = ...,
        group: str | None = ..., durable: str | None = ..., retry: Retry | None = ..., ack_wait: float | None = ...,
        start: Start | None = ..., ordered: bool = ...,
    ) -> Subscription[T]: ...  # fmt: skip
    @overload
    def subscribe(
        self, pattern: AnySubject, *, returns: Any = ..., queue: int | None = ..., when_full: WhenFull = ..., local: bool = ...,
        group: str | None = ..., durable: str | None = ..., retry: Retry | None = ..., ack_wait: float | None = ...,
        start: Start | None = ..., ordered: bool = ...,
    ) -> Subscription[Any]: ...  # fmt: skip
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = Any,
        queue: int | None = None,
        when_full: WhenFull = "drop_oldest",
        local: bool = True,
        group: str | None = None,
        durable: str | None = None,
        retry: Retry | None = None,
        ack_wait: float | None = None,
        start: Start | None = None,
        ordered: bool = False,
    ) -> Subscription[Any]:
        """Subscribe to the subjects that match a pattern.

        Use the result as an async context manager and iterate: ``async with bus.subscribe("news.*") as news: async for message
        in news: ...`` The block is entered once the connected peers know the subscription.

        With ``durable="audit"``, the subscription reads a `Store` of the cluster and resumes where it stopped. All readers that
        use this name share the messages, and each message is redelivered until a reader calls `Message.ack`. If you pass
        `start` without `durable`, the subscription reads stored messages and then new messages, in order, and does not store
        its position. A bus without a cluster reads the external stream that stores the pattern, over a link to a NATS network.

        Args:
            pattern: Subject or pattern. ``*`` matches one token and ``>`` matches the rest.
            returns: Type to convert bodies to. Messages with an invalid body are skipped and counted.
            queue: Maximum number of unread messages; see `on`. The default is 64 if you pass only `start`. With `durable`, it
                is the number of messages that this reader may leave unacknowledged. The default is then 1, and a larger value
                is faster.
            when_full: Policy for a full queue; see `WhenFull`.
            local: Also receive messages that this bus publishes. Members of a `group` always receive them.
            group: Name of a queue group. Each message goes to only one member; see `on`.
            durable: Name of a durable subscription; see `on`. Handlers and readers with the same name share the messages.
            retry: With `durable`, the maximum number of deliveries and the pauses between them. `Message.retry` can set another
                pause.
            ack_wait: With `durable`; see `on`.
            start: Where to start reading; see `on`.
            ordered: With `durable`; see `on`.

        Raises:
            LocalProtocolError: If the pattern is invalid. On entry, if no store covers the pattern or the bus runs in another
                event loop.
            AmbiguousRoute: On entry, if several links could lead to the stream. Pass ``serves=`` to `connect`.
            ReservedSubject: If the pattern begins with ``_polybus.``.
            ValueError: If an argument is invalid, requires `durable`, or cannot be combined with it.
            TypeError: If `returns` is not a type that bodies can be converted to.
            Unsupported: On entry, if no link can carry the subject, or a peer that does not run polybus supports only exact
                subjects.
            Forbidden: On entry, if the peer rejects the subscription.
        """
        reading = reading_of(durable, retry, ack_wait, start, ordered, group=group)
        return self._pubsub.subscription(pattern, returns, queue, when_full, local=local, group=group, reading=reading)

    def relay(self, pattern: str | int) -> None:
        """Relay messages that peers publish to the other peers that have subscribed to them.

        Without this, peers receive only messages that the application publishes.

        Raises:
            LocalProtocolError, ReservedSubject: If the pattern is invalid.
        """
        check_pattern(pattern, self._services.limits.subject)
        warn_of_literal_wildcards(pattern)
        self._pubsub.add_relay(pattern)
