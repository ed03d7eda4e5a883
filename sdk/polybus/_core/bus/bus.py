"""The bus: one symmetric object for clients, servers and everything between."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, overload

from attrs import asdict

from ..._util.event_loop import wrong_event_loop
from ..._util.misuse import BUS, CONNECT, SERVE, explains
from ..._validation import check_callable, check_type, counted, seconds, shown
from ...backoff import Backoff
from ...contracts.verbs import client_of
from ...errors import Disconnected, Forbidden, LocalProtocolError, NoHandler, Unauthorized
from ...events import BusEvent
from ...headers import check_headers
from ...limits import Limits
from ...message import Kind
from ...nodes import Cluster, Node, Start, Survey, check_publication_id
from ...outcomes import OutgoingHook
from ...plugins.registry import find_protocol, make_recorder
from ...retry import Retry
from ...stats import Stats
from ...subjects import AnySubject, Subject, bare, check_pattern, check_subject, resolve, warn_of_literal_wildcards
from ..handlers.providers import Dependencies
from ..handlers.signature import ContextPart, injected_as
from ..handlers.subscriber import WhenFull, reading_of
from ..peer.asker import Party, notification, opening
from ..peer.peer import Peer, has_gone
from ..peer.subscription import Subscription
from ..pubsub.publisher import YIELD_AFTER, make_publication
from ..rpc.channel import Channel, ChannelContext
from ..rpc.reply import Reply, retried
from ..runtime.access import Authenticate, Authorize
from ..runtime.executor import Middleware
from ..runtime.services import Services
from ..tunnel.endpoint import Entrance
from .acceptor import WHEN_FULL, Listener, Serving
from .dialer import Connecting, Headers
from .lifecycle import DRAIN, Lifespan, check_lifespan
from .parts import BusParts
from .recording import Recording
from .remote_peer import Caller, RemotePeer, User
from .router import Router

if TYPE_CHECKING:
    import ssl

    from typing_extensions import TypeForm

    from ...plugins import Connector, ProtocolAdapter

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


@injected_as("bus")
class Bus(Router):
    """Handlers, subscriptions and any number of links. A client is a bus with one link, a server a bus with many.

    A bus runs while it is entered: ``async with bus:``; `connect`, `serve` and `testing.pair` enter it too. Entering is
    counted; the last one out drains. Afterwards it may be entered again, in another event loop too; handlers stay.

    Args:
        limits: Sizes and times; see `Limits`.
        authenticate: ``authenticate(handshake)`` gives the identity of a new connection; None, and what else is
            empty, refuses; True admits without an identity. Without it every connection is accepted.
        authorize: ``authorize(peer, verb, subject)`` decides what a peer may do. Without it everything. With a parameter
            ``message`` it is given that too, with what the wire says of its sender (a token of uProtocol, for example).
        lifespan: ``lifespan(bus)`` is an async context manager run inside the entered bus; what it yields is ``ctx.state``. It
            has a task of its own, so it may hold a task group. Until it has yielded the bus is not `ready`, and others who
            enter wait; what it raises before is what entering raises. It ends after the handlers. As with an application
            server its end is always the orderly one, whatever was raised in the block, and may take as long as the drain did
            at most (20 s, unless `drain` was told otherwise): then it is cancelled; what it raises then comes out of the
            block (unless something else does: then it is logged). A failure in between, of its task group, closes the bus.
        debug: Send the text of unexpected exceptions to clients. Never in production.
        check_answers: Validate what a handler returns or sends by its annotation, and leave out what that type does not have:
            ``-> User`` sends a ``User``, whatever larger object it is given; so does what a `Subject` or contract promises.
            What does not fit is INTERNAL, and the log names it; what cannot be checked is a TypeError at registration. A
            publication to a `Subject` is validated by its type in the same way. With ``"validate"`` what fits is sent as it is,
            with all that it has. None is False, and under `polybus.testing.pair` ``"validate"``.
        cluster: Make this bus a node of a cluster, in which many processes are one bus, over an engine (NATS): its URL,
            ``auto`` for that in ``POLYBUS_CLUSTER`` (where there is none the bus is alone), or `Cluster`.

    Raises:
        TypeError: `limits` is no `Limits`, a hook cannot be called, or `cluster` is none.
        ValueError: The URL of `cluster` is none of NATS.
    """

    __context_part__: ClassVar[ContextPart]

    @explains(
        "Bus",
        BUS,
        most=1,
        positional="takes no URL: a client is `async with polybus.connect({0!r}) as bus:`, a server `async with "
        "bus.serve({0!r}):` of a Bus() with handlers",
    )
    def __init__(
        self,
        *,
        limits: Limits | None = None,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        lifespan: Lifespan | None = None,
        debug: bool = False,
        check_answers: bool | Literal["validate"] | None = None,
        cluster: str | Cluster | None = None,
    ) -> None:
        check_type(limits, Limits, "limits", "Limits(message=2**20)")
        check_lifespan(lifespan)
        if check_answers not in (None, True, False, "validate"):
            raise TypeError(f"check_answers={shown(check_answers)}: True, False or 'validate'")
        super().__init__()
        services = Services(self, limits if limits is not None else Limits(), authenticate, authorize, debug=debug)
        services.check_answers = check_answers
        self._cluster = Cluster.of(cluster)
        parts = self._parts = BusParts(services, self._lookup, lifespan, self._cluster)
        # The hot path finds the parts here.
        self._services = services
        self._known_subjects = services.subjects.known
        self._outgoing = services.outgoing
        self._pubsub = parts.pubsub
        self._publisher = parts.pubsub.publisher
        self._loopback = parts.loopback
        self._links = parts.links
        self._life = parts.life

    def __repr__(self) -> str:
        runtime = self._services.runtime
        handlers = counted(len(self._lookup.handlers), "handler")
        if runtime is None:
            return f"<Bus not entered, {handlers}>"
        state = "leaving" if self._services.leaving else "ready" if self._services.ready else "starting"
        return f"<Bus {state}, {counted(len(runtime.links), 'link')}, {handlers}>"

    @property
    def limits(self) -> Limits:
        """Sizes and times."""
        return self._services.limits

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

    async def _open(self, subject: str | int, body: Any, mode: str, timeout: float | None, receives: Any) -> Channel[Any, Any]:
        self._services.running.check_here()
        own = self._lookup.find(subject)
        if own is not None:
            return self._loopback.open(own, body, mode, timeout, receives)
        return await self._links.choose(subject).open_channel(subject, body, mode, timeout, receives)

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
                raise has_gone(gone)
            await publisher.publish_kept(message, route, None if to is None else peers, id, deadline)
            return
        targets = route if to is None else publisher.targets(peers)
        await (publisher.publish_observed if self._outgoing else publisher.publish)(message, targets, deadline)
        for client in remote:
            await client.publish(name, body, headers=checked)
        if gone is not None:
            raise has_gone(gone)

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
        (publisher.publish_observed_nowait if self._outgoing else publisher.publish_nowait)(message, targets, deadline)
        if gone is not None:
            raise has_gone(gone)

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
        check_pattern(pattern, self.limits.subject)
        warn_of_literal_wildcards(pattern)
        self._pubsub.add_relay(pattern)

    # -- links -----------------------------------------------------------------------------------------------------------

    @explains("bus.connect", CONNECT)
    def connect(
        self,
        target: str | Connector,
        *,
        protocol: str | ProtocolAdapter | None = None,
        serves: Iterable[str | int] = (),
        headers: Headers = None,
        tls: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        wait: float = 0.0,
        record: str | os.PathLike[str] | None = None,
    ) -> AbstractAsyncContextManager[Peer]:
        """Add a link to this bus; the async context manager yields the `Peer` at the other end.

        Args: as `polybus.connect`.

        Raises:
            ValueError: The URL or an option is wrong.
            ConnectFailed: (on entering) With the address and the reason.
            Unauthorized, Forbidden: (on entering) The server refuses us.
        """
        return Connecting(self._parts, target, protocol, serves, headers, tls, backoff, wait, record)

    @explains("bus.serve", SERVE)
    def serve(
        self,
        target: str | Any,
        *,
        protocol: str | ProtocolAdapter | None = None,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        when_full: str = "drop_oldest",
        insecure: bool = False,
    ) -> AbstractAsyncContextManager[Listener]:
        """Accept links at an address; the async context manager yields the `Listener`.

        Args:
            target: A URL such as ``ubre+ws://127.0.0.1:8000/bus``, or a transport object. Port 0 takes a free port.
            protocol: For a transport object: name or adapter.
            origins: Web origins whose pages may connect, besides those of the same host and port.
            hosts: Further ``Host`` values of a loopback server, behind a proxy.
            tls: For ``tls`` and ``wss``: a server-side context.
            when_full: What happens to publications for a peer whose outbox is full: ``drop_oldest``, ``drop_newest``,
                ``disconnect``.
            insecure: Allow an address that other machines can reach, and clients from there that a proxy brings, although every
                connection is accepted.

        Raises:
            ValueError: The URL or an option is wrong.
            LocalProtocolError: An open address without `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
        return Serving(self._parts, target, protocol, origins, hosts, tls, when_full, insecure)

    @property
    def peers(self) -> list[Peer]:
        """The peers of all links."""
        return self._links.peers

    def peers_of(self, key: str) -> list[Peer]:
        """The peers of one identity (its `Identity.key`), without those on their way out: for ``publish(..., to=...)``."""
        return self._links.peers_of(key)

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> Connector:
        """A connection that runs inside a link of this bus: ``connect(bus.tunnel("plant.7"), protocol="csb")``.

        It goes to the peer that a request to `name` would go to. It comes back after a loss as any connection does, once the
        outer link is back.

        Args:
            name: What the other side serves by `handle_tunnels`.
            params: Shown there in `Handshake.params`.

        Raises:
            ReservedSubject, LocalProtocolError: The name cannot be.
            TypeError: `params` are not text to text.
        """
        return self._links.tunnel(name, params)

    def handle_tunnels(
        self, pattern: str, inner: Bus, *, protocol: str | ProtocolAdapter, when_full: str = "drop_oldest"
    ) -> None:
        """Lead tunnels of these names to another bus, as if their openers had connected to it.

        A bus that does not run yet is entered with the first tunnel, and left together with this one. ``authorize(peer,
        "tunnel", name)`` of this bus is asked first; then `inner` asks its own ``authenticate`` with the outer peer in
        `Handshake.outer`; without one, the opener keeps the identity that it has here.

        Args:
            pattern: ``plant.{id}``: what the names give is in `Handshake.params`.
            inner: Where they lead; may be this bus.
            protocol: What is spoken inside: name or adapter.
            when_full: As in `serve`.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
            ValueError: The protocol or the policy is not known, or the pattern is served already.
            TypeError: `inner` is no bus.
        """
        check_pattern(pattern, self.limits.subject)
        check_type(inner, Bus, "inner", "Bus()")
        if when_full not in WHEN_FULL:
            raise ValueError(f"when_full={when_full!r}: one of {', '.join(WHEN_FULL)}")
        if any(entrance.pattern == pattern for entrance in self._lookup.entrances):
            raise ValueError(f"tunnels of {pattern!r} are served already")
        adapter = find_protocol(protocol, {})
        self._lookup.entrances.append(Entrance(self._parts, pattern, inner._parts, adapter, when_full))

    # -- entering and leaving --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._life.enter_block()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._life.leave_block(error)

    @property
    def ready(self) -> bool:
        """True while new requests are taken: from the lifespan's yield to the beginning of a drain."""
        return self._services.ready

    @property
    def why_not_ready(self) -> str:
        """The reason why a load balancer should send nothing here now; empty while it should.

        The bus has not started, is about to end or has failed, or it has been without the engine of its cluster for longer than
        `Cluster.outage`. ``/readyz`` says this. Requests are taken as long as `ready` is true.
        """
        if not self._services.ready:
            failed = self._services.failed
            return f"it does not take requests: {failed}" if failed else "it does not take requests"
        return next(filter(None, (extension.why_not_ready() for extension in self._links.extensions)), "")

    @property
    def leaving(self) -> bool:
        """True from the beginning of a drain to the end of the bus."""
        return self._services.leaving

    @property
    def state(self) -> Any:
        """The value that the lifespan has yielded."""
        return self._life.state

    async def drain(self, timeout: float = DRAIN) -> None:
        """Stop taking requests, let running handlers finish, tell the peers, write what waits, close the links.

        Streams and channels get a quarter of the time to come to their end by themselves; then they are ended as `Unavailable`.

        In a handler, a middleware or the lifespan of this very bus it returns at once, while the bus drains: they are among
        those that the drain waits for.

        Who cancels it gives it no more time: what still runs then is cut, the peers are told, and the bus is drained.

        Args:
            timeout: Seconds for all of it; what still runs then is cut. The end of the lifespan then gets as many.

        Raises:
            TypeError, ValueError: `timeout` is no number of seconds.
            LocalProtocolError: The bus runs in another event loop.
        """
        await self._life.drain(timeout)

    async def aclose(self) -> None:
        """Leave at once, whatever blocks are entered: links are closed, handlers cancelled. May be called at any time.

        In a handler, a middleware or the lifespan of this very bus it returns at once; the caller is cancelled at its next
        wait.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
            BaseException: What the lifespan raises at its end.
        """
        await self._life.aclose()

    async def wait_closed(self) -> None:
        """Wait until the bus has been left.

        Raises:
            LocalProtocolError: It is not entered, or runs in another event loop.
        """
        await self._life.wait_closed()

    # -- recording ------------------------------------------------------------------------------------------------------

    def record(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 10 << 30,
        max_age: float | timedelta = timedelta(days=7),
        bodies: bool = True,
        redact: Callable[[str, bytes], bytes] | Literal["default"] | None = "default",
        decode: bool = False,
    ) -> AbstractAsyncContextManager[Recording]:
        """Write every frame of every link, in both directions, to a capture: ``async with bus.record("captures/"): ...``

        The bus never waits for it: what the disk does not take is dropped and counted, and the capture says where. Needs ``pip
        install 'polybus[capture]'``.

        Args:
            path: A folder; it is made where there is none. Several recordings may share it.
            max_bytes: Of the folder: the oldest segments beyond that are removed.
            max_age: After which segments are removed; seconds or a `timedelta`.
            bodies: Whether bodies are written; without them, what each message is for.
            redact: ``redact(protocol, frame)`` gives what is written in place of a frame. The default blanks tokens, cookies
                and members named like secrets; None writes all as it is.
            decode: Whether what is sealed (after 64 MiB or a minute) is decoded meanwhile, once for all who read it, by a
                process of the lowest priority. What is not decoded in the end is decoded by those who read it.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is not what it should be.
            CaptureError: (on entering) The folder cannot be made or written.
        """
        recorder = make_recorder(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact, decode=decode)
        return Recording(self._services, recorder)

    # -- the cluster -----------------------------------------------------------------------------------------------------

    @property
    def cluster(self) -> Cluster | None:
        """The cluster that this bus is a node of, as it was given; None for a bus that is alone by intention."""
        return self._cluster

    def user(self, key: str) -> User:
        """A user by the key of the identity, connected here or to another node of the cluster.

        Raises:
            TypeError: `key` is no text.
        """
        check_type(key, str, "key", "bus.user('ann')")
        return User(self._links, key)

    def forward(self, pattern: str | int) -> None:
        """Send what clients ask, and this bus does not handle, on to the cluster, after `authorize`. Off by default.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus was made without ``cluster=``.
        """
        check_pattern(pattern, self.limits.subject)
        if self._links.mesh is None:
            raise LocalProtocolError("bus.forward() leads to the cluster: make the bus with cluster=, as Bus(cluster='auto')")
        self._links.mesh.forward(pattern)

    async def nodes(self) -> Survey[Node]:
        """Ask all nodes of the cluster for what they are, this one included; within 2 s.

        Raises:
            LocalProtocolError: The bus is not entered, or runs in another event loop.
        """
        self._services.running.check_here()
        if self._links.mesh is None:
            return Survey((Node("", self._services.id, "", len(self.peers), here=True),))
        return await self._links.mesh.nodes()

    async def present(self, pattern: str | int) -> Survey[Peer | RemotePeer]:
        """Find the clients that have subscribed to this very pattern, here and at all other nodes; within 2 s.

        Nothing is remembered: a node that was killed has no clients.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid, or the bus is not entered.
        """
        self._services.running.check_here()
        check_pattern(pattern, self.limits.subject)
        if self._links.mesh is None:
            return Survey(tuple(peer for peer in self.peers if pattern in peer.patterns))
        return await self._links.mesh.present(pattern)

    # -- running handlers ------------------------------------------------------------------------------------------------

    @overload
    def use(self, middleware: Middleware) -> Middleware: ...
    @overload
    def use(self, middleware: OutgoingHook, *, outgoing: Literal[True]) -> OutgoingHook: ...
    def use(self, middleware: Any, *, outgoing: bool = False) -> Any:
        """Run around every handler: ``async def middleware(message, ctx, call_next): return await call_next(message)``.

        The first one used is the outermost. May be used as a decorator.

        Args:
            middleware: A middleware, or with `outgoing` an `OutgoingHook`, a plain function.
            outgoing: Call it with everything that the application asks, publishes, notifies or opens on this bus, before it
                leaves. It may add to ``message.headers``, which go to peers that read headers, and may return a function that
                is called with the `Outcome`.

        Raises:
            TypeError: It cannot be called with these arguments, is a class, or is a coroutine function where `outgoing` wants a
                plain one.
        """
        if isinstance(middleware, type):
            name = middleware.__name__
            raise TypeError(f"bus.use({name}): a class, and its objects are called; write bus.use({name}())")
        form, takes = ("def hook(message)", 1) if outgoing else ("async def middleware(message, ctx, call_next)", 3)
        if middleware is None:
            raise TypeError(f"bus.use(None): a function, {form}")
        check_callable(middleware, "middleware", form, takes)
        of_object = getattr(type(middleware), "__call__", None)  # noqa: B004  # whether it is a coroutine function
        if outgoing and (inspect.iscoroutinefunction(middleware) or inspect.iscoroutinefunction(of_object)):
            raise TypeError(f"bus.use({shown(middleware)}, outgoing=True): a plain function, for request() does not wait")
        hooks: list[Any] = self._services.outgoing if outgoing else self._services.executor.middleware
        hooks.append(middleware)
        return middleware

    @property
    def dependencies(self) -> Dependencies:
        """The functions that handlers ask for by ``Depends``; in tests `Dependencies.override` has another one stand in."""
        return Dependencies(self._services.overrides)

    @property
    def debug(self) -> bool:
        """True where clients are sent the text of unexpected exceptions."""
        return self._services.debug

    @debug.setter
    def debug(self, debug: bool) -> None:
        self._services.debug = debug

    @property
    def check_answers(self) -> bool | Literal["validate"] | None:
        """The validation of what handlers return, and of what is published to a `Subject`; see `Bus`."""
        return self._services.check_answers

    @check_answers.setter
    def check_answers(self, check_answers: bool | Literal["validate"] | None) -> None:
        if check_answers is True:
            for handler in self._lookup.handlers.values():
                handler.check_that_answers_are_checked()
        self._services.check_answers = check_answers

    # -- watching --------------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """A snapshot of what the bus has done and has to do."""
        runtime, counters = self._services.runtime, self._services.counters
        links = list(runtime.links) if runtime is not None else []
        peers = [peer for link in links for peer in link.peers]
        return Stats(
            links=len(links),
            peers=len(peers),
            pending=sum(peer.unanswered for peer in peers) + len(self._loopback.calls),
            running=(runtime.running if runtime is not None else 0) + self._loopback.running,
            waiting=sum(peer.waiting for peer in peers) + self._loopback.waiting,
            queued=sum(len(link.outbox) for link in links if link.outbox is not None),
            unread=self._pubsub.unread,
            durables=tuple(self._links.progress),
            **asdict(counters),
        )

    def events(self) -> AsyncIterator[BusEvent]:
        """Iterate over events from now on, as they happen; the oldest of 1,000 unread events give way to new ones.

        Raises:
            LocalProtocolError: (here or by iterating) The bus runs in another event loop.
        """
        if self._services.runtime is not None:
            self._services.runtime.check_here()
        return self._life.keep_events(self._services.events.stream())


def parts_of(bus: Bus) -> BusParts:
    """Give the parts of a bus, for the rooms above it."""
    return bus._parts
