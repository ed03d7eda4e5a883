"""The bus: one symmetric object for clients, servers and everything between."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

import anyio

from ._loop import elsewhere
from .arguments import check_callable, check_type, seconds, shown
from .authority import Authenticate, Authority, Authorize
from .body import JSON
from .channel import Channel, Opening, encode_local
from .connecting import Backoff, Connecting, Headers
from .distribution import Route, own_format
from .errors import (
    AmbiguousRoute,
    BusError,
    Code,
    Disconnected,
    Forbidden,
    NoHandler,
    QueueFull,
    Unauthorized,
    another,
)
from .events import BusEvent, DeadLettered
from .execution import Middleware
from .headers import check_headers
from .life import Life, Lifespan, Phase
from .limits import Limits
from .link import Link, State
from .message import Kind, Message
from .peer import Peer
from .plugins import Closed
from .reply import Reply
from .router import Listen, WhenFull, check_queue
from .serving import WHEN_FULL, Listener, Serving
from .stats import Counters, Stats
from .subjects import Subject, canonical, check_pattern, check_subject, is_pattern, matches, resolve
from .subscription import Subscription
from .tunnel import TunnelConnector
from .tunnels import Entrance
from .urls import find_protocol

if TYPE_CHECKING:
    import ssl

    from .capture.recorder import Recorder
    from .capture.recording import Recording
    from .handlers import Handler
    from .plugins import Connector, ProtocolAdapter

__all__ = ["Bus", "Middleware"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")

AnySubject: TypeAlias = "str | int | Subject[Any, Any]"

logger: logging.Logger = logging.getLogger("polybus")

_CHECKED = 4096
_KEPT = 4096
_TIMEOUT = 30.0


class Bus(Life):
    """Handlers, subscriptions and any number of links. A client is a bus with one link, a server a bus with many.

    A bus runs while it is entered: ``async with bus:``; `connect`, `serve` and `testing.pair` enter it too. Entering is
    counted; the last one out drains. Afterwards it may be entered again, in another event loop too; handlers stay.

    Args:
        limits: Sizes and times; see `Limits`.
        authenticate: ``authenticate(handshake)`` decides who a stranger is; None refuses. Without it everybody may come in.
        authorize: ``authorize(peer, verb, subject)`` decides what a peer may do. Without it everything. With a parameter
            ``message`` it is given that too, with what the wire says of who asks (a token of uProtocol, for example).
        lifespan: ``lifespan(bus)`` is an async context manager run inside the entered bus; what it yields is ``ctx.state``. It
            has a task of its own, so it may hold a task group. Until it has yielded the bus is not `ready`, and others who
            enter wait; what it raises before is what entering raises. It ends after the handlers. As with an application
            server its end is always the orderly one, whatever was raised in the block, and may take as long as the drain did
            at most (20 s, unless `drain` was told otherwise): then it is cancelled; what it raises then comes out of the
            block (unless something else does: then it is logged). A failure in between, of its task group, closes the bus.
        debug: Send the text of unexpected exceptions to the asker. Never in production.

    Raises:
        TypeError: `limits` is no `Limits`, or a hook cannot be called.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        lifespan: Lifespan | None = None,
        debug: bool = False,
    ) -> None:
        check_type(limits, Limits, "limits", "Limits(message=2**20)")
        check_callable(authenticate, "authenticate", "authenticate(handshake)")
        check_callable(authorize, "authorize", "authorize(peer, verb, subject)")
        check_callable(lifespan, "lifespan", "lifespan(bus), that gives an async context manager")
        self._id = secrets.token_hex(4)
        super().__init__(self, limits, lifespan)
        self.debug: bool = debug
        self._authority = Authority(authenticate, authorize, self.limits.handshake_timeout)
        self._authorize = authorize
        self._deliver = self._distribution.deliver
        self._counters = Counters()
        self._emit = self._events.emit
        self._recorders: list[Recorder] = []
        self._checked: set[str | int] = set()
        self._entrances: list[Entrance] = []
        self._passages: list[Any] = []
        """Where bridges begin: `gateway.Passage`."""

    # -- links -----------------------------------------------------------------------------------------------------------

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
        return Connecting(
            self,
            target,
            protocol=protocol,
            serves=serves,
            headers=headers,
            tls=tls,
            backoff=backoff,
            wait=wait,
            record=record,
            gives_bus=False,
        )

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
            insecure: Allow an address that other machines can reach although everybody is let in.

        Raises:
            ValueError: The URL or an option is wrong.
            LocalProtocolError: An open address without `authenticate`.
            OSError: (on entering) The address cannot be bound.
        """
        return Serving(
            self,
            target,
            protocol=protocol,
            origins=origins,
            hosts=hosts,
            tls=tls,
            when_full=when_full,
            insecure=insecure,
        )

    def record(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 10 << 30,
        max_age: float | timedelta = timedelta(days=7),
        bodies: bool = True,
        redact: Callable[[str, bytes], bytes] | Literal["default"] | None = "default",
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

        Raises:
            ImportError: pyarrow is not installed.
            TypeError, ValueError: An argument is not what it should be.
            CaptureError: (on entering) The folder cannot be made or written.
        """
        capture: Any = import_module("polybus.capture")  # floors above; loaded when somebody asks
        recorder = capture.make_recorder(path, max_bytes=max_bytes, max_age=max_age, bodies=bodies, redact=redact)
        recording: AbstractAsyncContextManager[Recording] = capture.Recording(self, recorder)
        return recording

    @property
    def peers(self) -> list[Peer]:
        """Everybody linked to this bus."""
        return [peer for link in self._runtime.links for peer in link.peers] if self._runtime is not None else []

    def peers_of(self, key: str) -> list[Peer]:
        """The peers of one identity (its `Identity.key`), without those on their way out: for ``publish(..., to=...)``."""
        return [peer for peer in self.peers if peer.identity_key == key and not peer.gone]

    def _link_up(self, link: Link) -> None:
        if link.opened:
            if link not in self._opened:
                self._opened.append(link)
            if link.peer is not None:
                self._distribution.upstream = tuple(dict.fromkeys((*self._distribution.upstream, link.peer)))
        self._distribution.restore(link)

    def _peer_up(self, peer: Peer) -> None:
        """One of many peers on a link is there."""
        self._distribution.met(peer)

    def _link_gone(self, link: Link, why: Closed) -> None:
        if link in self._opened:
            self._opened.remove(link)
            self._distribution.upstream = tuple(p for p in self._distribution.upstream if p._link is not link)
            if not self._opened and not self._listeners and why.code != 1000:
                gone = link.runtime.gone = link._disconnected(sent=False)
                for subscription in list(self._subscriptions):
                    subscription.fail(another(gone))
        for listener in self._listeners:
            listener._gate.gone(link)
        self._own_links.discard(link)

    def _check_gone(self) -> None:
        """
        Raises:
            BusError: The last link that this bus opened is gone for good, and it serves nobody: why.
        """
        gone = self._running.gone
        if gone is not None and not self._opened and not self._listeners:
            raise another(gone)

    async def _announced(self, link: Link) -> None:
        """Wait until a new link knows of what this bus has subscribed to."""
        if self._distribution._interest and (peer := link.peer) is not None:
            await self._distribution.restored(peer)
            if peer._extended is False or peer._silent:
                return
            try:
                await peer.hello()
            except BusError:
                return

    async def _close_link(self, link: Link, *, drain: bool, code: int = 1000) -> None:
        until = link.runtime.bell.until
        if drain:
            with anyio.move_on_after(self.limits.close_timeout):
                await until(lambda: not link.outbox or link.state is not State.UP)
        link.close(code, "leaving")
        with anyio.move_on_after(self.limits.close_timeout + 1):
            await until(lambda: link.state is State.CLOSED)
        link.abort(Closed(code, "leaving"))

    # -- requests --------------------------------------------------------------------------------------------------------

    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
        to: Peer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[Out]: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: type[T],
        to: Peer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[T]: ...
    @overload
    def request(
        self,
        subject: str | int,
        body: Any = ...,
        *,
        timeout: float = ...,
        returns: Any = ...,
        to: Peer | None = ...,
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[Any]: ...
    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        to: Peer | None = None,
        headers: Mapping[str, str] | None = None,
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
        name: str | int
        if isinstance(subject, Subject):
            name, returns = resolve(subject, returns)
        else:
            name = subject
        try:
            if name not in self._checked:
                self._check_subject(name)
        except TypeError:  # not hashable, so certainly no subject
            check_subject(name)
        if timeout != _TIMEOUT:
            timeout = seconds(timeout)
        checked = None if headers is None else self._headers(headers)
        if to is not None:
            self._check_peer(to)
        else:
            if name in self._handlers:
                return self._loopback.request(name, body, timeout, returns, checked)
            try:
                to = self._route(name)
            except (NoHandler, Disconnected, Unauthorized, Forbidden) as error:
                runtime = self._running
                now = runtime.time()
                failed: Reply[Any] = Reply(runtime.loop, name, returns, now, now + timeout)
                failed._fail(error)
                return failed
        return to._request(Kind.REQUEST, name, body, timeout, returns, checked)

    def _route(self, subject: str | int) -> Peer:
        opened = self._opened
        if len(opened) == 1 and opened[0]._peer is not None:
            return opened[0]._peer
        self._check_gone()  # the better errors: of this, and where the bus is not entered
        opened = [link for link in opened if link.crowd is None]  # at the end of the others are clients, behind a broker
        if not opened:
            if self._phase in (Phase.DRAINING, Phase.DRAINED, Phase.CLOSING):
                raise Disconnected("this bus is being left")
            raise NoHandler(f"nobody to ask for {subject!r}: no handler here, and no link opened by this bus (to= asks a peer)")
        links = [link for link in opened if any(matches(pattern, subject) for pattern in link.serves)]
        if not links or links[0].peer is None:
            urls = ", ".join(link.url for link in opened)
            raise AmbiguousRoute(f"several links could take {subject!r} ({urls}): say to=, or connect with serves=")
        return links[0].peer

    async def notify(
        self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None, to: Peer | None = None
    ) -> None:
        """Tell one handler, without an answer; routed like a request.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
            BadRequest: This bus's own handler answers a stream or channel.
            NoHandler, AmbiguousRoute, Unsupported, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `request`.
        """
        name, _ = resolve(subject, Any)
        self._check_subject(name)
        self._running.check_here()
        checked = self._headers(headers)
        if to is None and name in self._handlers:
            self._loopback.notify(name, body, checked)
            return
        if to is not None:
            self._check_peer(to)
        peer = to if to is not None else self._route(name)
        if peer.gone:
            raise _gone(peer)
        link = peer._link
        message = Message(Kind.NOTIFY, name, None, None, link.format, checked)
        if body is not None:
            message.format = chosen = link.format_for(body, name)
            message.raw = chosen.encode(body)
        deadline = self._running.time() + 30.0
        while True:
            if link.flowing:
                link.write(message, peer)  # not `publish`: a notification has an id of its own, its frame is not shared
                return
            if link.publish(message, peer, deadline):
                return
            if not await link.room(len(message.raw or b""), deadline):
                raise QueueFull(f"no room in the outbox to {peer.address}")

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
        if timeout != _TIMEOUT:
            timeout = seconds(timeout)
        try:
            route = self._distribution.routes.get(name) or self._distribution.route(name)
        except TypeError:  # not hashable: `route` says what it should be
            route = self._distribution.route(name)
        sole = route.sole
        if to is None and headers is None and body is not None and sole is not None and (link := sole._link).flowing:
            if get_ident() != link.runtime.thread:
                raise elsewhere()
            self._distribution.publish_alone(route, link, body)
            return
        self._running.check_thread()
        peers, gone = (route.peers, None) if to is None else self._recipients(to)
        deadline = self._running.time() + timeout
        message = self._publication(route, name, body, headers, None if to is None else peers)
        if to is None and route.two_ways:
            await self._distribution.publish_two_ways(message, route, deadline)
        else:
            await self._distribution.publish(message, peers, route.inboxes if to is None else (), deadline)
        if gone is not None:
            raise _gone(gone)

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
        self._running.check_here()
        route = self._route_of(name)
        peers, gone = (route.peers, None) if to is None else self._recipients(to)
        deadline = self._running.time() + seconds(timeout)
        message = self._publication(route, name, body, headers, None if to is None else peers)
        if to is None and route.two_ways:
            self._distribution.publish_two_ways_nowait(message, route, deadline)
        else:
            self._distribution.publish_nowait(message, peers, route.inboxes if to is None else (), deadline)
        if gone is not None:
            raise _gone(gone)

    def _route_of(self, name: str | int) -> Route:
        try:
            route = self._distribution.routes.get(name)
        except TypeError:  # not hashable: `route` says what it should be
            route = None
        return route if route is not None else self._distribution.route(name)

    def _check_peer(self, to: Any) -> None:
        """
        Raises:
            TypeError: Not a peer.
            ValueError: A peer of another bus.
        """
        if not isinstance(to, Peer):
            raise TypeError(f"to={shown(to)}: a Peer (of bus.peers, bus.peers_of(key) or ctx.peer), not {type(to).__name__}")
        if to._link.bus is not self:
            raise ValueError(f"to={to!r}: a peer of another bus; ask that bus, or the peer itself")

    def _recipients(self, to: Any) -> tuple[tuple[Peer, ...], Peer | None]:
        """Those who are there, each once, and one who is not."""
        given: list[Any] = [*to] if isinstance(to, Iterable) and not isinstance(to, (str, bytes)) else [to]
        for peer in given:
            self._check_peer(peer)
        peers = list(dict.fromkeys(given))
        there = tuple(peer for peer in peers if not peer.gone)
        return there, next((peer for peer in peers if peer.gone), None) if len(there) < len(peers) else None

    def _publication(
        self, route: Route, name: str | int, body: Any, headers: Mapping[str, str] | None, peers: tuple[Peer, ...] | None
    ) -> Message:
        checked = None if headers is None else self._headers(headers)
        if body is None:
            return Message(Kind.PUBLISH, name, headers=checked)
        choose = route.choose if peers is None else own_format(peers)
        body_format = JSON if choose is None else choose(body, name)
        if body_format is JSON and route.sole is None:
            raw, body_format = encode_local(body)
        else:
            raw = body_format.encode(body)
        return Message(Kind.PUBLISH, name, None, raw, body_format, checked)

    def subscribe(
        self,
        pattern: AnySubject,
        *,
        returns: Any = Any,
        queue: int = 1000,
        when_full: WhenFull = "block",
        local: bool = True,
    ) -> Subscription:
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
            Unsupported: (on entering) A bare peer matches exact subjects only, or no link carries such a subject (a number).
            Forbidden: (on entering) The peer refused.
        """
        name = pattern.name if isinstance(pattern, Subject) else pattern
        if isinstance(pattern, Subject) and returns is Any:
            returns = pattern.takes
        check_pattern(name, self.limits.subject)
        check_queue(queue, when_full)
        return Subscription(self, name, returns, queue, when_full, local)

    def relay(self, pattern: str | int) -> None:
        """Pass matching publications of peers on to the other peers that subscribed. Off by default: sessions are isolated.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
        """
        check_pattern(pattern, self.limits.subject)
        self._distribution.relay(pattern)
        if self._runtime is not None:
            self._runtime.spawn(self._distribution.announce_later, pattern)

    async def _subscribe(self, subscription: Subscription) -> None:
        self._running.check_here()
        self._check_gone()
        self._subscriptions[subscription] = None
        self._distribution.local.add(subscription.pattern, subscription)
        self._distribution.want(subscription.pattern)
        await self._distribution.announce(subscription.pattern)

    def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            del self._subscriptions[subscription]
            self._distribution.local.remove(subscription.pattern, subscription)
            self._distribution.unwant(subscription.pattern)

    def _add_listen(self, listen: Listen) -> None:
        super()._add_listen(listen)
        if self._runtime is not None:
            inbox = self._start_listen(listen)
            self._runtime.spawn(self._distribution.announce_later, inbox.pattern)

    def _peer_subscribed(self, peer: Peer, pattern: str | int) -> None:
        self._distribution.remote.add(pattern, peer)

    def _peer_unsubscribed(self, peer: Peer, pattern: str | int) -> None:
        self._distribution.remote.remove(pattern, peer)

    def _forget_patterns(self, peer: Peer) -> None:
        for pattern, size in (peer.patterns or {}).items():
            peer.account.release(size)
            self._distribution.remote.remove(pattern, peer)
        peer.patterns = None
        self._distribution.not_bare(peer)

    def _too_many_subscriptions(self, peer: Peer, pattern: str | int) -> None:
        if not peer.warned:  # once: it may want thousands
            peer.warned = True
            limit = self.limits.subscriptions
            logger.warning("polybus: %r wants more than %d subscriptions; %.100r and others refused", peer, limit, pattern)

    # -- streams and channels --------------------------------------------------------------------------------------------

    def stream(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        returns: Any = Any,
        timeout: float | None = None,
        to: Peer | None = None,
    ) -> Opening[Any, Any]:
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
        self._check_opening(name, timeout, to)
        return Opening(lambda: self._open(name, body, "stream", timeout, returns, to), half_closed=True)

    def channel(
        self,
        subject: AnySubject,
        *,
        sends: Any = Any,
        receives: Any = Any,
        timeout: float | None = None,
        to: Peer | None = None,
    ) -> Opening[Any, Any]:
        """Open a conversation: ``async with bus.channel("chat") as ch: await ch.send(...); async for item in ch: ...``

        Raises:
            BusError: As `stream`.
        """
        name, receives = resolve(subject, receives)
        self._check_opening(name, timeout, to)
        return Opening(lambda: self._open(name, None, "channel", timeout, receives, to), half_closed=False)

    def _check_opening(self, subject: str | int, timeout: float | None, to: Peer | None) -> None:
        self._check_subject(subject)
        if timeout is not None:
            seconds(timeout)
        if to is not None:
            self._check_peer(to)

    async def _open(
        self,
        subject: str | int,
        body: Any,
        mode: str,
        timeout: float | None,
        receives: Any,
        to: Peer | None,
        hops: int | None = None,
    ) -> Channel[Any, Any]:
        self._running.check_here()
        if to is None and subject in self._handlers:
            return self._loopback.open(subject, body, mode, timeout, receives)
        peer = to if to is not None else self._route(subject)
        return (await peer._open(subject, body, mode, timeout, hops)).typed(receives, Any)

    # -- tunnels ---------------------------------------------------------------------------------------------------------

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> TunnelConnector:
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
        return self._tunnel(name, params, None)

    def _tunnel(self, name: str, params: Mapping[str, str] | None, peer: Peer | None) -> TunnelConnector:
        if not isinstance(name, str):
            raise TypeError(f"tunnel({shown(name)}): a name, for example 'plant.7', not {type(name).__name__}")
        self._check_subject(name)
        given = dict(params or {})
        if not all(isinstance(text, str) for pair in given.items() for text in pair):
            raise TypeError(f"params={shown(params)}: text to text")

        def route() -> Peer:
            self._running.check_here()
            return peer if peer is not None else self._route(name)

        def lasting() -> bool:
            runtime = self._runtime
            return runtime is not None and not runtime.closing and (bool(self._opened) if peer is None else not peer.gone)

        return TunnelConnector(route, lasting, name, given)

    def handle_tunnels(
        self, pattern: str, inner: Bus, *, protocol: str | ProtocolAdapter, when_full: str = "drop_oldest"
    ) -> None:
        """Lead tunnels of these names to another bus, as if their openers had connected to it.

        A bus that does not run yet is entered with the first tunnel, and left together with this one. ``authorize(peer,
        "tunnel", name)`` of this bus is asked first; then `inner` asks its own ``authenticate`` with the outer peer in
        `Handshake.outer`; without one, whoever comes is who it is here.

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
        if any(entrance.pattern == pattern for entrance in self._entrances):
            raise ValueError(f"tunnels of {pattern!r} are served already")
        self._entrances.append(Entrance(self, pattern, inner, find_protocol(protocol, {}), when_full))

    def _entrance(self, name: str | int) -> Any:
        """Who serves a tunnel, in place of a handler."""
        found = next((entrance for entrance in self._entrances if entrance.fits(name)), None)
        if found is None and (passage := self._passage(name, "tunnel")) is not None:
            return passage.underpass
        return found

    # -- bridges ---------------------------------------------------------------------------------------------------------

    def _passage(self, subject: str | int, kind: str) -> Any:
        """Where a bridge takes such messages, if one does."""
        return next((passage for passage in self._passages if passage.fits(subject, kind)), None)

    def _open_passage(self, passage: Any) -> None:
        self._passages.append(passage)
        source = passage.route.source
        if "request" in passage.route.kinds and not is_pattern(source):
            self._distribution.handled(source)

    def _close_passage(self, passage: Any) -> None:
        if passage in self._passages:
            self._passages.remove(passage)

    def _answered(self) -> list[str | int]:
        """The subjects that are answered here, by handlers or over bridges."""
        crossing = [passage.route.source for passage in self._passages if "request" in passage.route.kinds]
        return [*self._handlers, *(source for source in crossing if not is_pattern(source))]

    # -- running handlers ------------------------------------------------------------------------------------------------

    def use(self, middleware: Middleware) -> Middleware:
        """Run around every handler: ``async def middleware(message, ctx, call_next): return await call_next(message)``.

        The first one used is the outermost. May be used as a decorator.

        Raises:
            TypeError: It cannot be called.
        """
        if not callable(middleware):
            raise TypeError(f"bus.use({shown(middleware)}): a function, async def middleware(message, ctx, call_next)")
        self._execution.middleware.append(middleware)
        return middleware

    # -- authority -------------------------------------------------------------------------------------------------------

    def _asks(self, peer: Peer, verb: str, subject: str | int, message: Message) -> Any:
        return self._authority.asks(peer, verb, subject, message)

    async def _allowed(self, allowed: Any) -> bool:
        return await self._authority.answer(allowed)

    async def _may(self, peer: Peer, verb: str, subject: str | int, message: Message) -> bool:
        return await self._authority.may(peer, verb, subject, message)

    # -- watching --------------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """A snapshot of what the bus has done and has to do."""
        runtime, counters = self._runtime, self._counters
        links = list(runtime.links) if runtime is not None else []
        peers = [peer for link in links for peer in link.peers]
        return Stats(
            links=len(links),
            peers=len(peers),
            pending=sum(len(peer.pending) + len(peer._unsent or ()) for peer in peers) + len(self._loopback.calls),
            running=(runtime.running if runtime is not None else 0) + self._loopback.running,
            waiting=sum(len(peer.waiting or ()) for peer in peers),
            queued=sum(len(link.outbox) for link in links if link.outbox is not None),
            sent=counters.sent,
            received=counters.received,
            dropped=counters.dropped,
            late=counters.late,
            malformed=counters.malformed,
            refused=counters.refused,
            failed=counters.failed,
            reconnects=counters.reconnects,
        )

    def events(self) -> AsyncIterator[BusEvent]:
        """What happens from now on, as it happens; the oldest of 1,000 unread events give way to new ones.

        Raises:
            LocalProtocolError: (here or by iterating) The bus runs in another event loop.
        """
        if self._runtime is not None:
            self._runtime.check_here()
        return self._events.stream()

    # -- small things ----------------------------------------------------------------------------------------------------

    def _check_subject(self, subject: str | int) -> None:
        try:
            known = subject in self._checked
        except TypeError:  # not hashable, so certainly no subject
            known = False
        if not known:
            check_subject(subject, self.limits.subject)
            if len(self._checked) >= _CHECKED:
                self._checked.clear()
            self._checked.add(subject)

    def _handler(self, subject: str | int) -> Handler | None:
        """Who answers a subject."""
        found = self._handlers.get(subject)
        if found is None and self._by_uri and isinstance(subject, str):
            found = self._by_uri.get(canonical(subject))
        return found

    def _handler_of(self, message: Message) -> Handler | None:
        """Who answers a message; an address in it gets the spelling of the handler's registration, or else the canonical one.

        What `authorize` is asked about is then what the application has written, whatever the peer wrote.
        """
        subject = message.subject
        found = self._handler(subject)
        if isinstance(subject, str) and "/" in subject:
            message.subject = canonical(subject) if found is None else found.subject
        return found

    def _dead_letter(self, peer: Peer | None, message: Message, code: Code, reason: str) -> None:
        """Tell who reads events that a message could not be delivered."""
        if self._events.read:
            kept = message if len(message.raw or b"") <= _KEPT else None  # a thousand unread events hold no large bodies
            self._emit(DeadLettered(peer=peer, subject=message.subject, code=code, reason=reason, message=kept))

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str] | None:
        return None if headers is None else check_headers(headers, self.limits.headers)

    def _waiter(self) -> Any:
        runtime = self._running
        runtime.check_thread()
        return runtime.loop.waiter()

    def _wake(self, waiter: Any) -> None:
        if self._runtime is not None:
            self._runtime.loop.wake(waiter)


def _gone(peer: Peer) -> Disconnected:
    return Disconnected("the peer has gone", peer.address, False)
