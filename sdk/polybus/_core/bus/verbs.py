"""The verbs of a bus; `_core.peer.asker` has the verbs towards one party."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

from ..._util.event_loop import wrong_event_loop
from ..._validation import seconds, shown
from ...contracts.verbs import client_of
from ...errors import Disconnected, Forbidden, LocalProtocolError, NoHandler, Unauthorized
from ...headers import check_headers
from ...message import Kind
from ...nodes import Start, check_publication_id
from ...retry import Retry
from ...subjects import AnySubject, Subject, bare, check_pattern, check_subject, resolve, warn_of_literal_wildcards
from ..handlers.subscriber import WhenFull, reading_of
from ..peer.asker import Party, notification, opening
from ..peer.peer import Peer
from ..peer.subscription import Subscription
from ..pubsub.publisher import YIELD_AFTER, make_publication
from ..rpc.channel import Channel, ChannelContext
from ..rpc.reply import Reply, retried
from .remote_peer import Caller, RemotePeer
from .router import Router

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .parts import BusParts

In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")
T = TypeVar("T")

AnyPeer: TypeAlias = Peer | RemotePeer
"""A peer of this bus, or a client of another node of its cluster."""

TIMEOUT = 30.0
"""Default seconds, which need no check per message."""
_REQUEST: Final = Kind.REQUEST
_BARE: Final = frozenset({str, int})


class BusVerbs(Router):
    """The verbs of a bus: requests, streams, publications and subscriptions."""

    _parts: BusParts

    def _find_parts(self, parts: BusParts) -> None:
        """Keep the parts where the hot path finds them."""
        self._services = parts.services
        self._known_subjects = parts.services.subjects.known
        self._outgoing = parts.services.outgoing
        self._pubsub = parts.pubsub
        self._publisher = parts.pubsub.publisher
        self._loopback = parts.loopback
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
        """Send a request. It is queued at once, without waiting; await the `Reply`.

        It goes to this bus's own handler if there is one, otherwise to the only link that this bus opened, otherwise to the
        opened link with a matching ``serves=``.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            timeout: Seconds until `DeadlineExceeded`, finite; sent along if the wire carries it.
            returns: The type that the answer is converted to.
            to: The peer to send to.
            headers: Text to text.
            retry: Retry after temporary failures, within `timeout`; see `Retry`.

        Raises:
            EncodeError: The body cannot be encoded; the error names the path.
            AmbiguousRoute: Several links could take the request.
            Unsupported: The wire cannot carry this.
            ReservedSubject, LocalProtocolError: The subject or a header is not for applications.
            TypeError, ValueError: `timeout`, `to` or `headers` have a wrong type or value.
            NoHandler: (by awaiting) This bus has neither a link nor a handler for it.
            Disconnected, Unauthorized, Forbidden: (by awaiting) The only link is gone for good.
            BusError: (by awaiting) As `Reply` says.
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
        party: Party
        if to is not None:
            party = self._links.party(to)
        else:
            lookup = self._lookup
            own = lookup.handlers.get(name) or (lookup.find(name) if lookup.by_uri else None)
            if own is not None:
                return self._loopback.request(own, name, body, timeout, returns, checked)
            try:
                party = self._links.choose(name)
            except (NoHandler, Disconnected, Unauthorized, Forbidden) as error:
                runtime = self._services.running
                now = runtime.time()
                failed: Reply[Any] = Reply(runtime.loop, name, returns, now, now + timeout)
                failed.fail(error)
                return failed
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
        """Send a notification to one handler, which sends no answer; routed like a request.

        Args:
            subject: Subject of the handler.
            body: Any value that the wire can carry.
            headers: Text to text.
            to: The peer to notify. Or an address behind a link (``//phone/CD/4`` of `protocols.Up`): then the link is chosen as
                for a request without ``to``; for a bus that only serves, it is its only peer.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: The outbox is full.
            Disconnected: The peer has left.
            BadRequest: This bus's own handler answers a stream or channel.
            Unsupported: As `request`; or the wire has no addresses, so that ``to`` must be a peer.
            LocalProtocolError: As `request`; or ``to`` is not an address.
            NoHandler, AmbiguousRoute, ReservedSubject, TypeError, ValueError: As `request`.
        """
        name, body, checked = notification(self._services, subject, body, headers)
        if to is None and (own := self._lookup.find(name)) is not None:
            self._loopback.notify(own, body, checked)
        elif to is None or isinstance(to, str):
            peer = self._links.choose(name) if to is None else self._links.choose_behind(name, to)
            await peer.send_notify(name, body, checked, to)
        else:
            await self._links.party(to).send_notify(name, body, checked)

    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make a client for a Protocol class: each of its methods calls a verb of this bus.

        ``users = bus.client(Users, "user")``, and ``await users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``async def`` methods of one body, and for streams ``def`` methods that return
                ``AsyncIterator[T]``; see `contracts.method` and `contracts.notify`.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: Not a contract, or its subjects are invalid; the text names class and method, and the remedy.
        """
        return client_of(self, contract, prefix)

    def as_(self, identity: Any) -> Caller:
        """Call this bus's own handlers on behalf of a user, for example of an HTTP endpoint.

        Args:
            identity: The value that handlers see as `Context.identity`.
        """
        return Caller(self._parts, identity)

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

        Credits control the flow. Leaving the block stops the remote handler.

        Args:
            timeout: Seconds until `DeadlineExceeded`; None for the duration of the block.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `request`.
            NoHandler, AmbiguousRoute: (on entering) As `request`.
            Unsupported: (on entering) The peer is not a polybus peer.
            RequestError: (by iterating) The handler failed, or answers requests only (`BadRequest`).
            Disconnected: (by iterating) The link broke.
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
            BusError: As `stream`.
        """
        name, receives = resolve(subject, receives)
        return opening(self._services, self._opener(to), name, None, "channel", timeout, receives)

    def _opener(self, to: AnyPeer | None) -> Callable[..., Awaitable[Channel[Any, Any]]]:
        return self._open if to is None else self._links.party(to).open_channel

    async def _open(self, subject: str | int, body: Any, mode: str, timeout: float | None) -> Channel[Any, Any]:
        self._services.running.check_here()
        own = self._lookup.find(subject)
        if own is not None:
            return self._loopback.open(own, body, mode, timeout)
        return await self._links.choose(subject).open_channel(subject, body, mode, timeout)

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
        """Publish: every matching subscription receives it once, of the bus itself and of every linked peer.

        Links that this bus opened always get it. On return it has been passed to the transports or waits in an outbox; that is
        no acknowledgement. It is stored, if a `Store` of the cluster has the subject, or if `id` is given and a NATS link leads
        to an external stream.

        Args:
            to: One peer or several: only they receive it, and no store of the cluster stores it; an empty list means no peer.
            timeout: Seconds to wait for room, in the outbox of a link that is down, and for the store.
            id: For a `Store` or an external stream: stored once, however often it is published with this id.

        Raises:
            EncodeError: The body cannot be encoded.
            QueueFull: A queue, an outbox or the store had no room in time; the other receivers have it.
            DeadlineExceeded: The engine has not confirmed the storage in time; it may be stored.
            Disconnected: A peer of `to` has left; the others have it.
            ReservedSubject, LocalProtocolError: The subject or a header is not for applications.
            TypeError, ValueError: `timeout`, `to` or `headers` have a wrong type or value.
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
        peers, gone, remote = (route.peers, None, ()) if to is None else self._links.recipients(to)
        deadline = self._services.running.time() + timeout
        checked = None if headers is None else check_headers(headers, self._services.limits.headers)
        if id is not None:
            check_publication_id(id)
        message = make_publication(route, name, body, checked, None if to is None else peers)
        if id is not None or (route.kept and to is None):
            if gone is not None:
                raise gone.departed()
            keeper, targets = publisher.kept_at(name, route, None if to is None else peers, id)
            await publisher.publish(message, targets, deadline, keeper, id)
            return
        targets = route if to is None else publisher.targets(peers)
        await (publisher.publish if self._outgoing or targets.two_ways else publisher.send)(message, targets, deadline)
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
        """`publish` without waiting.

        Raises:
            QueueFull: A queue or outbox has no room; the other receivers have it.
            LocalProtocolError: As `publish`, or a `Store` stores the subject, which needs a wait.
            Disconnected, EncodeError, ReservedSubject, TypeError, ValueError: As `publish`.
        """
        name: Any = subject
        if type(subject) not in _BARE:
            name, body = self._publication_to(subject, body)
        self._services.running.check_here()
        route = self._publisher.route_of(name)
        if route.kept and to is None:
            raise LocalProtocolError(f"{name!r} is stored, which takes a wait: await bus.publish({name!r}, ...)")
        peers, gone, remote = (route.peers, None, ()) if to is None else self._links.recipients(to)
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
        """Name and body of a publication to a `Subject`. May raise `EncodeError`, as `publish`."""
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

        Entering returns once the connected links know the subscription.

        With ``durable="audit"`` it consumes a `Store` of the cluster, and resumes at its position: one reader with that name
        gets each publication, until `Message.ack`. With only ``start=`` it reads stored and then new publications, in the order
        of the store, and keeps no position. A bus without a cluster reads the external stream that stores the pattern, behind a
        link to a NATS network.

        Args:
            pattern: ``*`` one token, ``>`` the rest.
            returns: The type that bodies are converted to; publications that do not fit are skipped and counted.
            queue: Publications that may wait to be read, as for `on`; with only ``start=`` 64. With `durable` the unsettled
                ones of this reader: 1; more is faster.
            when_full: Policy for a full queue; see `WhenFull`.
            local: Receive the bus's own publications too. A member of a `group` receives its share from every publisher.
            group: Queue group: one of the subscriptions with the same group and pattern gets each publication; see `on`.
            durable: As for `on`; both share a store's publications under the same name.
            retry: With `durable`: number of deliveries, and pauses where `Message.retry` sets none.
            ack_wait: With `durable`, as for `on`.
            start: As for `on`; without `durable`: where to begin.
            ordered: With `durable`, as for `on`.

        Raises:
            LocalProtocolError: The pattern is not valid; (on entering) the bus runs in another event loop, or no store has the
                pattern.
            AmbiguousRoute: (on entering) Several links could lead to the stream: connect with ``serves=``.
            ReservedSubject: It begins with ``_polybus.``.
            ValueError: The queue, the policy or the group is invalid, or an argument requires `durable` or excludes it.
            TypeError: `returns` is not a type, or bodies cannot be read as that type.
            Unsupported: (on entering) A bare peer matches exact subjects only, or no link carries such a subject (a number).
            Forbidden: (on entering) The peer refused.
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
