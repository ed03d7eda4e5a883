"""The verbs of a bus. The verbs for one party are in `_core.peer.party_verbs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

from ..._util.event_loop import wrong_event_loop
from ..._util.typed_body import check_returns
from ..._validation import seconds, shown
from ...errors import Disconnected, Forbidden, LocalProtocolError, NoHandler, Unauthorized
from ...headers import check_headers
from ...message import Kind
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
from .remote_peer import Caller, RemotePeer
from .router import Router

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
"""Default timeout in seconds. It needs no check for each message."""
_REQUEST: Final = Kind.REQUEST
_BARE: Final = frozenset({str, int})


class BusVerbs(Router):
    """The verbs of a bus: requests, streams, publications and subscriptions."""

    _parts: BusParts

    def _find_parts(self, parts: BusParts) -> None:
        """Store the parts where the hot path reads them."""
        self._services = parts.services
        self._known_subjects = parts.services.subjects.known
        self._outgoing = parts.services.outgoing
        self._pubsub = parts.pubsub
        self._publisher = parts.pubsub.publisher
        self._directory = parts.directory
        self._links = parts.links

    # -- requests --------------------------------------------------------------------------------------------------------

    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Reply[Out]: ...
    @overload
    def request(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Reply[T]: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Reply[T]: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: Any = ...,
        to: AnyPeer | None = ...,
        headers: Mapping[str, str] | None = ...,
        retry: Retry | None = ...,
    ) -> Reply[Any]: ...
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
        """Send a request. The call queues it without waiting; await the `Reply` for the answer.

        If this bus has a handler for the subject, that handler answers. Otherwise the request is sent over the only link that
        this bus opened, or over the opened link with a matching ``serves=``.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            timeout: Finite number of seconds until `DeadlineExceeded`. The peer is told, if the wire can carry it.
            returns: The type to convert the answer to.
            to: The peer to send to.
            headers: A mapping of strings to strings.
            retry: Retry after temporary failures, within `timeout`; see `Retry`.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            AmbiguousRoute: Several links could take the request.
            Unsupported: The wire cannot carry this.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: `timeout`, `to` or `headers` has a wrong type or value.
            NoHandler: (on awaiting) This bus has neither a link nor a handler for it.
            Disconnected, Unauthorized, Forbidden: (on awaiting) The only link has ended and will not reconnect.
            BusError: (on awaiting) See `Reply`.
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
            return retried(
                self._services.running,
                retry,
                name,
                timeout,
                returns,
                lambda left: self.request(name, body, timeout=left, to=to, headers=checked),
            )
        try:
            party = self._directory.find(name, to)
        except (NoHandler, Disconnected, Unauthorized, Forbidden) as error:
            return failed_reply(self._services.running, name, returns, timeout, error)
        return party.send_request(_REQUEST, name, body, timeout, returns, checked)

    @overload
    async def notify(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | str | None = ...,
    ) -> None: ...
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
        """Send a notification to one handler, which does not answer. It is routed like a request.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            headers: A mapping of strings to strings.
            to: The peer to notify, or an address behind a link (``//phone/CD/4`` with `protocols.Up`). For an address, the link
                is chosen as for a request without ``to``; a bus that only serves uses its only peer.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The peer has left.
            BadRequest: The handler of this bus is for streams or channels.
            Unsupported: As for `request`; or the wire has no addresses, so that ``to`` must be a peer.
            LocalProtocolError: As for `request`; or ``to`` is not an address.
            NoHandler, AmbiguousRoute, ReservedSubject, TypeError, ValueError: As for `request`.
        """
        name, body, checked = notification(self._services, subject, body, headers)
        if isinstance(to, str):
            await self._directory.find_behind(name, to).send_notify(name, body, checked, to)
        else:
            await self._directory.find(name, to).send_notify(name, body, checked)

    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a Protocol class. Each of its methods calls a verb of this bus.

        After ``users = bus.client(Users, "user")``, ``await users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol`. Its ``async def`` methods accept one body; its ``def`` methods return
                ``AsyncIterator[T]`` and are streams. See `contracts.method` and `contracts.notify`.
            prefix: Each subject consists of this prefix, a dot, and the name of the method.

        Raises:
            TypeError: `contract` is not a contract, or its subjects are invalid. The text names the class, the method and the
                remedy.
        """
        from ...contracts.client import client_of  # few programs have contracts

        return client_of(self, contract, prefix)

    def as_(self, identity: Any) -> Caller:
        """Call handlers of this bus on behalf of a user, for example from an HTTP endpoint.

        Args:
            identity: The value that handlers see as `Context.identity`.
        """
        return Caller(self._directory, identity)

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
        """Request many answers: ``async with bus.stream("log.tail", {"n": 10}) as lines: async for line in lines: ...``

        The flow is controlled by credits. Leaving the block stops the remote handler.

        Args:
            timeout: Seconds until `DeadlineExceeded`; None means that only the block limits the time.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `request`.
            NoHandler, AmbiguousRoute: (on entering) As for `request`.
            Unsupported: (on entering) The peer is not a polybus peer.
            RequestError: (while iterating) The handler failed, or it answers only requests (`BadRequest`).
            Disconnected: (while iterating) The link broke.
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
        self,
        subject: str | int,
        *,
        sends: type[In],
        receives: type[T],
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
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
        self,
        subject: str | int,
        *,
        sends: Any = ...,
        receives: Any = ...,
        timeout: float | None = ...,
        to: AnyPeer | None = ...,
    ) -> ChannelContext[Any, Any]: ...
    def channel(
        self,
        subject: AnySubject,
        *,
        sends: Any = Any,
        receives: Any = Any,
        timeout: float | None = None,
        to: AnyPeer | None = None,
    ) -> ChannelContext[Any, Any]:
        """Open a conversation: ``async with bus.channel("chat") as ch: await ch.send(...); async for item in ch: ...``

        Raises:
            BusError: As for `stream`.
        """
        name, receives = resolve(subject, receives)
        return opening(self._services, self._opener(to), name, None, "channel", timeout, receives)

    def _opener(self, to: AnyPeer | None) -> Callable[..., Awaitable[Channel[Any, Any]]]:
        return self._open if to is None else self._directory.named(to).open_channel

    async def _open(self, subject: str | int, body: Any, mode: str, timeout: float | None) -> Channel[Any, Any]:
        self._services.running.check_here()
        return await self._directory.find(subject).open_channel(subject, body, mode, timeout)

    # -- publications ----------------------------------------------------------------------------------------------------

    @overload
    async def publish(
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None: ...
    @overload
    async def publish(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: AnyPeer | Iterable[AnyPeer] | None = ...,
        timeout: float = ...,
        id: str | None = ...,
    ) -> None: ...
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
        """Publish a value. Each matching subscription of this bus and of its peers receives it once.

        Links that this bus opened always receive it. When the call returns, the publication has been passed to the transports
        or waits in an outbox; that is not an acknowledgement. The publication is also stored if a `Store` of the cluster covers
        the subject, or if you pass `id` and a NATS link leads to an external stream.

        Args:
            to: One or several peers. Only they receive the publication, and no store of the cluster stores it. An empty list
                means no peer.
            timeout: Seconds to wait for room in the outbox of a link that is down, and for the store.
            id: For a `Store` or an external stream. A publication with this id is stored once, however often you publish it.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: A queue, an outbox or the store had no room in time. The other receivers have the publication.
            DeadlineExceeded: The engine has not confirmed in time that it stored the publication; it may have done so.
            Disconnected: A peer in `to` has left. The others have the publication.
            ReservedSubject, LocalProtocolError: Applications may not use the subject or a header.
            TypeError, ValueError: `timeout`, `to` or `headers` has a wrong type or value.
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
            publisher.publish_to_only_peer(route, link, body)
            return
        self._services.running.check_thread()
        peers, gone, remote = (route.peers, None, ()) if to is None else self._directory.recipients(to)
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
        self,
        subject: Subject[In, Any],
        body: In = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: Peer | Iterable[Peer] | None = ...,
        timeout: float = ...,
    ) -> None: ...
    @overload
    def publish_nowait(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        headers: Mapping[str, str] | None = ...,
        to: Peer | Iterable[Peer] | None = ...,
        timeout: float = ...,
    ) -> None: ...
    def publish_nowait(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        to: Peer | Iterable[Peer] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish like `publish`, but without waiting.

        Raises:
            QueueFull: A queue or outbox has no room. The other receivers have the publication.
            LocalProtocolError: As for `publish`; or a `Store` stores the subject, which requires waiting.
            Disconnected, EncodeError, ReservedSubject, TypeError, ValueError: As for `publish`.
        """
        name: Any = subject
        if type(subject) not in _BARE:
            name, body = self._publication_to(subject, body)
        self._services.running.check_here()
        route = self._publisher.route_of(name)
        if route.kept and to is None:
            raise LocalProtocolError(f"{name!r} is stored, which takes a wait: await bus.publish({name!r}, ...)")
        peers, gone, remote = (route.peers, None, ()) if to is None else self._directory.recipients(to)
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
        """Return the name and body of a publication to a `Subject`. Raises `EncodeError` like `publish`."""
        if isinstance(subject, Subject):
            body = self._services.published(subject, body)
        return bare(subject), body

    # -- subscriptions ---------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self,
        pattern: Subject[In, Any],
        *,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> Subscription[In]: ...
    @overload
    def subscribe(
        self,
        pattern: str | int,
        *,
        returns: type[T],
        queue: int | None = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> Subscription[T]: ...
    @overload
    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = ...,
        queue: int | None = ...,
        when_full: WhenFull = ...,
        local: bool = ...,
        group: str | None = ...,
        durable: str | None = ...,
        retry: Retry | None = ...,
        ack_wait: float | None = ...,
        start: Start | None = ...,
        ordered: bool = ...,
    ) -> Subscription[Any]: ...
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
        """Receive publications: ``async with bus.subscribe("news.*") as news: async for message in news: ...``

        The block is entered once the connected links know the subscription.

        With ``durable="audit"`` the subscription consumes a `Store` of the cluster and resumes where it stopped: the readers
        with that name share the publications, and each is redelivered until a reader calls `Message.ack`. With only ``start=``
        it reads stored and then new publications, in the order of the store, and keeps no position. A bus without a cluster
        reads the external stream that stores the pattern, over a link to a NATS network.

        Args:
            pattern: ``*`` matches one token, ``>`` the rest.
            returns: The type to convert bodies to. Publications that do not fit are skipped and counted.
            queue: Number of publications that may wait to be read, as for `on`; 64 with only ``start=``. With `durable`, the
                number that this reader may hold unsettled: 1 by default; a larger number is faster.
            when_full: Policy for a full queue; see `WhenFull`.
            local: Also receive publications of this bus. A member of a `group` receives its share from every publisher.
            group: Name of a queue group. One of the subscriptions with the same group and pattern receives each publication;
                see `on`.
            durable: As for `on`. A handler and a reader with the same name share the publications of the store.
            retry: With `durable`: the number of deliveries, and the pauses between them unless `Message.retry` sets one.
            ack_wait: With `durable`, as for `on`.
            start: As for `on`; without `durable`, where to begin.
            ordered: With `durable`, as for `on`.

        Raises:
            LocalProtocolError: The pattern is invalid; (on entering) no store covers it, or the bus runs in another event loop.
            AmbiguousRoute: (on entering) Several links could lead to the stream: connect with ``serves=``.
            ReservedSubject: The pattern begins with ``_polybus.``.
            ValueError: The queue, the policy or the group is invalid, or an argument requires `durable` or excludes it.
            TypeError: `returns` is not a type, or bodies cannot be read as that type.
            Unsupported: (on entering) A bare peer matches only exact subjects, or no link can carry the subject (an integer).
            Forbidden: (on entering) The peer refused the subscription.
        """
        reading = reading_of(durable, retry, ack_wait, start, ordered, group=group)
        return self._pubsub.subscription(pattern, returns, queue, when_full, local=local, group=group, reading=reading)

    def relay(self, pattern: str | int) -> None:
        """Relay matching publications of peers to the other subscribed peers. Off by default: sessions are isolated.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
        """
        check_pattern(pattern, self._services.limits.subject)
        warn_of_literal_wildcards(pattern)
        self._pubsub.add_relay(pattern)
