"""The verbs of a bus, as those of one party are in `_core.peer.asker`."""

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
"""A peer as the verbs take it: one of this bus, or a client of another node of its cluster."""

TIMEOUT = 30.0
"""Seconds by default: they need no check for each message."""
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
        """Ask for something. Queues the request at once, never waits; await the `Reply`.

        It goes to this bus's own handler if it has one for the subject, else to the only link that this bus opened, else to the
        opened link whose ``serves=`` matches.

        Args:
            subject: What is asked.
            body: Anything that the wire can carry.
            timeout: Seconds until `DeadlineExceeded`, finite; travels with the request where the wire can say it.
            returns: The type that the answer is converted to.
            to: The peer to ask.
            headers: Text to text.
            retry: Ask again after failures that may pass, within `timeout`; see `Retry`.

        Raises:
            EncodeError: The body cannot be written; the error names the path.
            AmbiguousRoute: Several links could be asked.
            Unsupported: The wire cannot carry this.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout`, `to` or `headers` are of a wrong type, or cannot be.
            NoHandler: (by awaiting) There is no link to ask, and no handler here.
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
        except TypeError:  # not hashable, so certainly no subject
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
        """Tell one handler, without an answer; routed like a request.

        Args:
            subject: What it is about.
            body: Anything that the wire can carry.
            headers: Text to text.
            to: The peer to tell. Or an address, where many are reached over one link (``//phone/CD/4`` of `protocols.Up`); the
                link is then chosen as for a request without ``to``, or, where this bus serves alone, its only peer is meant.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
            BadRequest: This bus's own handler answers a stream or channel.
            Unsupported: As `request`; and the wire has no addresses, so that ``to`` is a peer.
            LocalProtocolError: As `request`; and ``to`` is no address.
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
        """Make an object with the methods of a Protocol class, each of which asks by a verb of this bus.

        ``users = bus.client(Users, "user")``, and ``await users.get(GetUser(7))`` asks for ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``async def`` methods of one body, and for streams ``def`` methods that return
                ``AsyncIterator[T]``; see `contracts.method` and `contracts.notify`.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: It is no contract, or makes no subjects; the text names class and method, and what to write.
        """
        return client_of(self, contract, prefix)

    def as_(self, identity: Any) -> Caller:
        """Ask this bus's own handlers in somebody's name, for example that of the user of an HTTP endpoint.

        Args:
            identity: The value that the handlers see as `Context.identity`.
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
        """Ask for many answers: ``async with bus.stream("log.tail", {"n": 10}) as lines: async for line in lines: ...``

        Flow controlled by credits. Leaving the block stops the remote handler.

        Args:
            timeout: Seconds until `DeadlineExceeded`; None for as long as the block lasts.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError, ValueError: As `request`.
            NoHandler, AmbiguousRoute: (on entering) As `request`.
            Unsupported: (on entering) The peer is not one of ours.
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
        """Publish: every matching subscription gets it once, the bus's own and those of every linked peer.

        On links that this bus opened it is always sent. When this returns, it has been handed to the transports or waits in an
        outbox: that is no receipt. What a `Store` of the cluster keeps is stored when this returns; and so is what is published
        with `id` to a stream of others, over the link to their NATS network.

        Args:
            to: One peer or several: only they get it, and no store of the cluster keeps it; an empty list is none.
            timeout: Seconds to wait for room, to live in the outbox of a link that is down, and until it is stored.
            id: Of a publication that a `Store` keeps, or a stream of others: it is stored once, however often it is published
                under this id.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: No room in time, in some queue or outbox, or in the store; the others got it.
            DeadlineExceeded: The engine has not said in time that it is stored: it may be, and may not.
            Disconnected: A peer of `to` has gone; the others got it.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout`, `to` or `headers` are of a wrong type, or cannot be.
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
        except TypeError:  # not hashable: `route` says what it should be
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
            QueueFull: No room in some queue or outbox; the others got it.
            LocalProtocolError: Also where a `Store` keeps the subject: that is waited for.
            Disconnected, EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `publish`.
        """
        name: Any = subject
        if type(subject) not in _BARE:
            name, body = self._publication_to(subject, body)
        self._services.running.check_here()
        route = self._publisher.route_of(name)
        if route.kept and to is None:
            raise LocalProtocolError(f"{name!r} is kept by a store, which is waited for: await bus.publish({name!r}, ...)")
        peers, gone, remote = (route.peers, None, ()) if to is None else self._links.recipients(to)
        if remote:
            raise TypeError(f"to={shown(to)}: clients of other nodes are published to by `await bus.publish(...)` alone")
        deadline = self._services.running.time() + seconds(timeout)
        checked = None if headers is None else check_headers(headers, self._services.limits.headers)
        message = make_publication(route, name, body, checked, None if to is None else peers)
        publisher = self._publisher
        targets = route if to is None else publisher.targets(peers)
        publisher.publish_nowait(message, targets, deadline)
        if gone is not None:
            raise gone.departed()

    def _publication_to(self, subject: AnySubject, body: Any) -> tuple[Any, Any]:
        """Find name and body of a publication to what is no plain text or number. May raise `EncodeError`, as `publish`."""
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

        Entering returns when the links that are up know of it.

        With ``durable="audit"`` it gives what a `Store` of the cluster keeps, and goes on where it was when it is entered
        again: each publication to one reader of those that name the same, until `Message.ack`. With ``start=`` alone it reads
        what is stored and then what comes, in the order of the store, and leaves no trace of that. A bus that is in no cluster
        reads the stream of others that keeps the pattern, behind its link to their NATS network.

        Args:
            pattern: ``*`` one token, ``>`` the rest.
            returns: The type that bodies are converted to; those that do not fit are skipped and counted.
            queue: Publications that may wait to be read: as of `on`; with ``start=`` alone 64. With `durable` those that this
                reader has at once, read and not settled ones included: 1, and more is faster.
            when_full: What happens to one more; see `WhenFull`.
            local: Take the bus's own publications too. A member of a `group` takes what it is chosen for, whoever published it.
            group: Each publication is for one subscription of those that name the same group and pattern; see `on`.
            durable: As of `on`, with which it shares what is stored where both name the same.
            retry: With `durable`: how often a publication comes, and after which pauses where `Message.retry` says none.
            ack_wait: With `durable`, as of `on`.
            start: As of `on`; alone: where to begin.
            ordered: With `durable`, as of `on`.

        Raises:
            LocalProtocolError: The pattern is not valid; (on entering) the bus runs in another event loop, or no store keeps
                that.
            AmbiguousRoute: (on entering) What is stored could be behind several links: connect with ``serves=``.
            ReservedSubject: It begins with ``_polybus.``.
            ValueError: The queue, the policy or the group is not possible, or an argument goes with `durable` alone, or not
                with it.
            TypeError: `returns` is no type, or none that a body can be read as.
            Unsupported: (on entering) A bare peer matches exact subjects only, or no link carries such a subject (a number).
            Forbidden: (on entering) The peer refused.
        """
        reading = reading_of(durable, retry, ack_wait, start, ordered, group=group)
        return self._pubsub.subscription(pattern, returns, queue, when_full, local=local, group=group, reading=reading)

    def relay(self, pattern: str | int) -> None:
        """Pass matching publications of peers on to the other peers that subscribed. Off by default: sessions are isolated.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
        """
        check_pattern(pattern, self._services.limits.subject)
        warn_of_literal_wildcards(pattern)
        self._pubsub.add_relay(pattern)
