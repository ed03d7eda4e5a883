"""The bus: one symmetric object for clients, servers and everything between."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from ._loop import elsewhere
from .arguments import check_callable, check_type, seconds, shown
from .authority import Authenticate, Authority, Authorize
from .body import JSON
from .channel import Channel, Opening, encode_local
from .errors import (
    Disconnected,
    Forbidden,
    NoHandler,
    QueueFull,
    Unauthorized,
)
from .events import BusEvent
from .execution import Middleware
from .fanout import BREATH, Route, own_format
from .life import Lifespan
from .limits import Limits
from .message import Kind, Message
from .passages import Passages
from .peer import Peer
from .reply import Reply
from .router import Listen, WhenFull, check_queue
from .routing import has_gone
from .stats import Counters, Stats
from .subjects import Subject, check_pattern, check_subject, resolve
from .subscription import Subscription
from .tunnels import Entrance

if TYPE_CHECKING:
    from .capture.recorder import Recorder
    from .capture.recording import Recording

__all__ = ["Bus", "Middleware"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")

AnySubject: TypeAlias = "str | int | Subject[Any, Any]"

_TIMEOUT = 30.0


class Bus(Passages):
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

    # -- recording ------------------------------------------------------------------------------------------------------

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
            raise has_gone(peer)
        link = peer._link
        message = Message(Kind.NOTIFY, name, None, None, link.format, checked)
        if body is not None:
            message.format = chosen = link.format_for(body, name)
            message.raw = chosen.encode(body)
        await self._tell(peer, message)

    async def _tell(self, peer: Peer, message: Message) -> None:
        """Write a notification as soon as there is room.

        Raises:
            QueueFull: There was none in time.
            EncodeError, Unsupported, TooLarge: The wire cannot carry it.
        """
        link, deadline = peer._link, self._running.time() + 30.0
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
        distribution = self._distribution
        distribution.unbroken += 1
        if distribution.unbroken >= BREATH:
            await distribution.breathe()
        try:
            route = distribution.routes.get(name) or distribution.route(name)
        except TypeError:  # not hashable: `route` says what it should be
            route = distribution.route(name)
        sole = route.sole
        if to is None and headers is None and body is not None and sole is not None and (link := sole._link).flowing:
            if get_ident() != link.runtime.thread:
                raise elsewhere()
            distribution.publish_alone(route, link, body)
            return
        self._running.check_thread()
        peers, gone = (route.peers, None) if to is None else self._recipients(to)
        deadline = self._running.time() + timeout
        message = self._publication(route, name, body, headers, None if to is None else peers)
        if to is None and route.two_ways:
            await distribution.publish_two_ways(message, route, deadline)
        else:
            await distribution.publish(message, peers, route.inboxes if to is None else (), deadline)
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
            raise has_gone(gone)

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

    def _waiter(self) -> Any:
        runtime = self._running
        runtime.check_thread()
        return runtime.loop.waiter()

    def _wake(self, waiter: Any) -> None:
        if self._runtime is not None:
            self._runtime.loop.wake(waiter)
