"""The core's object for a peer, behind the public `Peer`: sends requests to the peer, and owns what is in flight."""

from __future__ import annotations

import datetime
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import Factory, define, field

from ..._util.deadlines import Deadlines
from ..._util.sources import sources
from ..._validation import check_given, shown
from ...errors import (
    BadReply,
    BusError,
    Disconnected,
    QueueFull,
    RemoteProtocolError,
    RequestError,
    TooLarge,
    Unsupported,
    another,
)
from ...message import Kind, Message
from ...plugins.mesh import ToNode
from ...subjects import RESERVED_PREFIX
from ..rpc.channel import CREDIT, Channel
from ..rpc.reply import InternalReply, ObservedReply, Reply, failed_reply
from ..runtime.loop_prevention import OF_BRIDGES
from ..runtime.memory_budgets import MemoryBudget, cost
from ..runtime.outgoing_hooks import Departure, depart
from ..runtime.runtime import ALL_ANSWERED
from .dispatch import dispatch
from .inbound_calls import InboundCalls
from .negotiation import ExtensionProbe, Negotiation
from .peer import Peer
from .remote_subscriptions import RemoteSubscriptions
from .streams import Streams

if TYPE_CHECKING:
    from ...plugins import Identity
    from ..link.link import Link
    from ..rpc.call import Call
    from ..runtime.services import Services
    from .authorization_queue import InboundAuthorization, OutboundAuthorization
    from .ports import PeerHost

_UNHEARD: Final = (
    "increase timeout=, or check the handler; nothing has come over this link yet: "
    "does the server speak {}, in the format and dialect of this URL?"
)


@define(eq=False, repr=False, weakref_slot=False)
class PeerCore:
    """The core's object for a peer behind the public `Peer`. Implements `party_verbs.Party` and `_core.link.ports.PeerPort`."""

    host: PeerHost
    link: Link
    key: Any
    """Key of the peer's session on a multiplexed link."""
    admitted: Identity
    _address: str = ""
    public: Peer = field(default=Factory(Peer, takes_self=True), init=False)
    """Public `Peer`, for events, `Message.peer` and `authorize`."""
    connected_at: datetime.datetime = field(factory=partial(datetime.datetime.now, datetime.UTC), init=False)
    pending: dict[Any, Reply[Any]] = field(factory=dict, init=False)
    """Requests that have been sent but not answered."""
    due: float = field(default=math.inf, init=False)
    until: float = field(default=math.inf, init=False)
    """Value of `Deadlines.until`. Requests with an earlier deadline must be watched."""
    _deadlines: Deadlines | None = field(default=None, init=False)
    grants: dict[str | int, bool] | None = field(default=None, init=False)
    """Cached results of `authorize` for the verb `deliver`."""
    undecided: InboundAuthorization | None = field(default=None, init=False)
    """Messages from the peer that wait for an asynchronous `authorize`."""
    undelivered: OutboundAuthorization | None = field(default=None, init=False)
    """Publications to the peer that wait for an asynchronous `authorize`."""
    _id: str | None = field(default=None, init=False)
    _scopes: set[anyio.CancelScope] | None = field(default=None, init=False)
    # Parts are created on first use, so that idle connections stay small.
    _budget: MemoryBudget | None = field(default=None, init=False)
    inbound_if_any: InboundCalls | None = field(default=None, init=False)
    _negotiation: Negotiation | None = field(default=None, init=False)
    streams_if_any: Streams | None = field(default=None, init=False)
    _subscriptions: RemoteSubscriptions | None = field(default=None, init=False)

    # -- identity --------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        if self._id is None:
            self._id = sources.get().urandom(6).hex()
        return self._id

    @property
    def identity(self) -> Any:
        return self.admitted.value

    @property
    def identity_key(self) -> str | None:
        return self.admitted.key

    def renew(self, identity: Identity) -> None:
        """Adopt a renewed identity, including in tunnels that the peer has opened."""
        self.admitted, self.grants = identity, None
        for listener in self.host.lookup.listeners:
            listener.renewed(self)

    @property
    def address(self) -> str:
        return self._address or self.link.address

    @property
    def protocol(self) -> str:
        return self.link.adapter.name

    @property
    def transport(self) -> str:
        return self.link.transport.name if self.link.transport is not None else ""

    @property
    def connected(self) -> bool:
        link = self.link
        if not link.stands:
            return False
        return self.key is None or link.multiplexed is None or link.multiplexed.peers.get(self.key) is self

    @property
    def gone(self) -> bool:
        """True if the peer has left for good."""
        link = self.link
        if self.key is not None:
            return link.multiplexed is None or link.multiplexed.peers.get(self.key) is not self
        return link.ends is not None

    def departed(self) -> Disconnected:
        return Disconnected("the peer disconnected", self.address, False)

    def __repr__(self) -> str:
        return f"<Peer {self.id} {self.protocol}+{self.transport} {self.address}>"

    async def extended(self) -> bool:
        return self.speaks_extensions or await self.negotiation.extended()

    def send_away(self, reason: str) -> None:
        """Close the peer's link, or disconnect only the peer if the link is multiplexed."""
        link = self.link
        link.runtime.check_here()
        if self.key is None:
            link.close(1000, reason)
        elif link.multiplexed is not None:
            link.multiplexed.send_away(self, 1000, reason)

    # -- parts -----------------------------------------------------------------------------------------------------------

    @property
    def budget(self) -> MemoryBudget:
        """Memory budget for this peer's queued requests and hellos, subscriptions and unread items."""
        budget = self._budget
        if budget is None:
            runtime = self.link.runtime
            budget = self._budget = MemoryBudget(runtime, runtime.limits.waiting_bytes, self.link.share)
        return budget

    @property
    def inbound(self) -> InboundCalls:
        if self.inbound_if_any is None:
            self.inbound_if_any = InboundCalls(self)
        return self.inbound_if_any

    @property
    def negotiation(self) -> Negotiation:
        if self._negotiation is None:
            self._negotiation = Negotiation(self)
        return self._negotiation

    @property
    def streams(self) -> Streams:
        if self.streams_if_any is None:
            self.streams_if_any = Streams(self)
        return self.streams_if_any

    @property
    def subscriptions(self) -> RemoteSubscriptions:
        if self._subscriptions is None:
            self._subscriptions = RemoteSubscriptions(self)
        return self._subscriptions

    def greet(self) -> None:
        """Send a hello on a new connection if it must be the first message."""
        if self._negotiation is not None or self.host.pubsub.passes_on or self.link.greets:
            self.negotiation.greet()

    def mark_bare(self) -> None:
        self.negotiation.speaks_extensions = False

    # The following properties don't create parts.

    @property
    def speaks_extensions(self) -> bool | None:
        """True if the peer runs polybus, or None if this is not known yet."""
        return None if self._negotiation is None else self._negotiation.speaks_extensions

    @property
    def silent(self) -> bool:
        """True if the peer didn't answer a hello in time."""
        return self._negotiation is not None and self._negotiation.silent

    @property
    def passes_on(self) -> bool | None:
        """True if the peer forwards publications, or None if this is not known yet."""
        return False if self._negotiation is None else self._negotiation.passes_on

    @property
    def may_be_ours(self) -> bool:
        """True if the peer is connected and may support the extensions."""
        session = self.link.session
        return (
            self.connected and self.speaks_extensions is not False and session is not None and session.capabilities.extensions
        )

    @property
    def calls(self) -> Mapping[Any, Call]:
        return {} if self.inbound_if_any is None else self.inbound_if_any.calls

    @property
    def waiting(self) -> int:
        return 0 if self.inbound_if_any is None else len(self.inbound_if_any.waiting or ()) + self.inbound_if_any.held

    @property
    def channels(self) -> Mapping[Any, Channel[Any, Any]]:
        return {} if self.streams_if_any is None else self.streams_if_any.channels

    @property
    def patterns(self) -> Mapping[str | int, int]:
        return {} if self._subscriptions is None else self._subscriptions.patterns

    @property
    def unanswered(self) -> int:
        """Number of unanswered requests to the peer, including those in the outbox."""
        outbox = self.link.outbox
        return len(self.pending) + (0 if outbox is None else outbox.requests_of(self))

    # -- requests to the peer --------------------------------------------------------------------------------------------

    def send_request(
        self, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None, to: Any = None
    ) -> Reply[Any]:
        """Send a request without checking its arguments. In a cluster, `to` is its address behind the peer."""
        link, pending = self.link, self.pending
        runtime, ask, encode = link.runtime, link.ask, link.format.encode
        now = runtime.time()
        deadline = now + timeout
        ttl = runtime.ttl(now, deadline)
        if (
            not link.flowing
            or ask is None
            or headers is not None
            or to is not None
            or ttl is None
            or ttl >= 1e12
            or link.services.outgoing
            or len(pending) >= runtime.limits.pending
        ):
            message = Message(Kind.REQUEST, subject, None, None, link.format, headers, ttl)
            return self._send_message(message, body, returns, now, deadline, to)
        raw = None if body is None else encode(body)
        try:
            key, frame = ask(subject, raw, ttl)
        except (RequestError, QueueFull, Disconnected) as error:
            return failed_reply(runtime, subject, returns, timeout, error)
        # All at once, because the attributes of a `Reply` are slow: see `awaited_first`.
        reply: Reply[Any] = Reply(runtime.loop, subject, returns, now, deadline, ttl, self.abandoned, True, key)
        pending[key] = reply
        if deadline < self.until:
            self.watch_reply(reply)
        link.services.counters.sent += 1
        try:
            if len(pending) == 1 and link.send_alone is not None:
                link.send_alone(frame)
            else:
                link.transport.send(frame)  # type: ignore[union-attr]  # a flowing link has one
        except TooLarge as error:  # the connection, a tunnel, takes less than the session
            pending.pop(key, None)
            reply.fail(error)
        return reply

    def _send_message(self, message: Message, body: Any, returns: Any, now: float, deadline: float, to: Any) -> Reply[Any]:
        link = self.link
        hooks = link.services.outgoing
        reply: Reply[Any] = (ObservedReply if hooks else Reply)(
            link.runtime.loop, message.subject, returns, now, deadline, message.ttl, self.abandoned
        )
        if body is not None:
            if not link.one_format:
                message.format = link.format_for(body, message.subject)
            message.raw = message.checked = message.format.encode(body)
        if to is not None:
            message.extras = {"to": to}
        if hooks:
            self._request_observed(message, reply)
        else:
            link.request(message, reply, self)
        return reply

    def _request_observed(self, message: Message, reply: Any) -> None:
        departure = reply.departure = self.depart(message)
        try:
            self.link.request(message, reply, self)
        except BaseException as error:
            departure.end(error)
            raise

    def depart(self, message: Message) -> Departure:
        """Call the outgoing hooks for a message to this peer, except for the bus's own messages."""
        services, subject, facts = self.link.services, message.subject, message.extras
        of_the_bus = isinstance(subject, str) and subject.startswith(RESERVED_PREFIX)
        if of_the_bus or (facts is not None and isinstance(facts.get("to"), ToNode)):
            return Departure([])
        return depart(services.outgoing, message, self, services.limits.headers)

    @property
    def reads_headers(self) -> bool:
        """True if the peer reads headers, because the protocol defines headers or the peer is known to run polybus."""
        link = self.link
        if link.bare_headers or link.inner:
            return link.carries_headers
        return link.carries_headers and self.speaks_extensions is True

    @property
    def services(self) -> Services:
        return self.link.services

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None, to: Any = None) -> None:
        if self.gone:
            raise self.departed()
        link = self.link
        message = Message(Kind.NOTIFY, subject, None, None, link.format, headers)
        if to is not None:
            self._check_destination(to)
            message.extras = {"to": to}
        if body is not None:
            message.format = chosen = link.format_for(body, subject)
            message.raw = message.checked = chosen.encode(body)
        await self.send_notification(message)

    def _check_destination(self, to: Any) -> None:
        check_given(to, str, "to", "to='//device1/10AB/3'")
        if not self.link.destinations:
            raise Unsupported(
                f"to={shown(to)}: {self.protocol} has no addresses behind a peer; leave out to=, or pass a Peer from bus.peers"
            )

    async def open_channel(
        self,
        subject: str | int,
        body: Any,
        mode: str,
        timeout: float | None,
        hops: int = 0,
        headers: dict[str, str] | None = None,
        to: Any = None,
    ) -> Channel[Any, Any]:
        link, streams = self.link, self.streams
        link.runtime.check_here()
        kept = headers if link.carries_headers else None
        channel: Channel[Any, Any] = Channel(link.runtime.loop, streams, subject, 0)
        await streams.open_channel(channel, body, mode, timeout, CREDIT, hops, to=to, headers=kept)
        return channel

    async def send_notification(self, message: Message) -> None:
        """Send a notification once there is space. Raises `QueueFull` after 30 seconds."""
        link = self.link
        deadline = link.runtime.time() + 30.0
        if link.services.outgoing:
            with self.depart(message):
                await self._notify(message, deadline)
        else:
            await self._notify(message, deadline)

    async def _notify(self, message: Message, deadline: float) -> None:
        link = self.link
        while not link.flowing:
            if link.publish(message, self, deadline):
                return
            if not await link.room(deadline):
                raise QueueFull(f"no room in the outbox to {self.address}")
        link.write(message, self)  # not `publish`: a notification has its own id, so its frame is not shared

    def pass_on(self, message: Message, timeout: float) -> Reply[Any]:
        """Send a request from a bridge. If possible, the body is not changed."""
        link = self.link
        runtime = link.runtime
        now = runtime.time()
        reply = InternalReply(runtime.loop, message.subject, Any, now, now + timeout)
        message.ttl = runtime.ttl(now, reply.deadline)
        self._fit_body(message)
        self.ask(message, reply)
        return reply

    def ask(self, message: Message, reply: Reply[Any]) -> None:
        """Send an encoded request for an existing reply."""
        reply.on_cancel = self.abandoned
        self.link.request(message, reply, self)

    async def forward(self, message: Message, deadline: float) -> Message:
        await self._fit_headers(message)
        reply = self.pass_on(message, max(0.0, deadline - self.link.runtime.time()))
        await reply
        assert reply.message is not None
        return reply.message

    async def forward_notification(self, message: Message) -> None:
        await self._fit_headers(message)
        self._fit_body(message)
        await self.send_notification(message)

    async def _fit_headers(self, message: Message) -> None:
        if message.headers and not await self.negotiation.reads_headers():
            message.headers = {name: text for name, text in message.headers.items() if name.lower() not in OF_BRIDGES} or None

    def _fit_body(self, message: Message) -> None:
        if message.raw is None and message.has_body:
            message.format = chosen = self.link.format_for(message.body, message.subject)
            message.raw = message.checked = chosen.encode(message.body)

    def abandoned(self, reply: Reply[Any]) -> None:
        if reply.key is None or self.pending.pop(reply.key, None) is None:
            return
        link = self.link
        if link.session is None:
            return
        if isinstance(reply, ExtensionProbe):
            self.negotiation.unanswered(reply)
            return
        link.forget(reply.key)
        speaks_extensions = self.speaks_extensions
        if speaks_extensions or link.session.capabilities.built_in:
            self._send_cancel(reply.key, reply.subject)
        elif speaks_extensions is None and not self.silent and link.session.capabilities.extensions:
            link.runtime.spawn(self._cancel_when_known, reply.key, reply.subject)

    async def _cancel_when_known(self, key: Any, subject: str | int) -> None:
        try:
            if await self.extended():
                self._send_cancel(key, subject)
        except BusError:
            return

    def _send_cancel(self, key: Any, subject: str | int) -> None:
        self.link.answer(Message(Kind.CANCEL, subject, key), self)

    # -- messages of the peer --------------------------------------------------------------------------------------------

    receive = dispatch  # a method without a call of its own

    def late_answer(self, message: Message) -> Reply[Any] | None:
        return None if self._negotiation is None else self._negotiation.late_answer(message.id)

    def in_flight(self, id: Any) -> bool:
        return id in self.calls or id in self.channels

    def answered_badly(self, error: RemoteProtocolError) -> None:
        reply = self.pending.pop(error.reply_id, None)
        if reply is not None:
            reply.fail(BadReply(f"the answer to {reply.subject!r} is malformed: {error.text}"))

    def answered_in_vain(self, key: Any, text: str) -> None:
        reply = self.pending.get(key)
        if reply is not None:
            reply.pass_over(f"an answer came and was not taken, {text}")

    # -- memory and tasks ------------------------------------------------------------------------------------------------

    def hold(self, message: Message) -> bool:
        """Charge this peer for a message that must wait. Returns False if there is not enough memory."""
        if not self.budget.hold(cost(message)):
            return False
        message.forget_value()
        return True

    def release(self, message: Message) -> None:
        self.budget.release(cost(message))

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a task that is cancelled when this peer leaves."""
        scope = self.link.runtime.cancel_scope()
        scopes = self._scopes = self._scopes if self._scopes is not None else set()
        scopes.add(scope)
        self.link.runtime.spawn(_within, scopes, scope, function, args)

    # -- deadlines and the end -------------------------------------------------------------------------------------------

    def watch(self, deadline: float) -> None:
        if deadline < self.due:
            self.due = deadline
            self.link.runtime.deadlines.watch(self, deadline)

    def watch_reply(self, reply: Reply[Any]) -> None:
        deadlines = self._deadlines = self._deadlines if self._deadlines is not None else Deadlines()
        deadlines.add(reply.deadline, reply.key)
        self.until = deadlines.until
        self.watch(reply.deadline)

    def expire(self, now: float) -> float:
        self.due = due = math.inf
        if self.inbound_if_any is not None:
            self.inbound_if_any.resume()
        if self._deadlines is not None:
            for reply in self._deadlines.due(now, self.pending):
                self.timed_out(reply, now)
            self.until, due = self._deadlines.until, self._deadlines.next
        if self.inbound_if_any is not None:
            due = min(due, self.inbound_if_any.expire(now))
        if self.streams_if_any is not None:
            due = min(due, self.streams_if_any.expire(now))
        due = self.due = min(due, self.due)  # the code above may have added a deadline
        return due

    def timed_out(self, reply: Reply[Any], now: float) -> None:
        if reply.sent or self.connected:
            reply.expire(now, self.link.silence() if self._is_understood(reply) else _UNHEARD.format(self.protocol))
        else:
            reply.fail(self.link.still_down(self.address))
        if reply.on_cancel is not None:
            try:
                reply.on_cancel(reply)
            except Exception:  # an error of a plugin must not affect other deadlines
                self.link.broken()

    def _is_understood(self, reply: Reply[Any]) -> bool:
        """Return False if nothing has been received on this link, so that the peer may use another protocol."""
        link = self.link
        heard = self.transport in ("ws", "wss") or link.inner or link.services.counters.received > 0
        return heard or not reply.sent

    def lost(self, ids: Collection[Any], error: BusError) -> None:
        calls, channels = self.calls, self.channels
        for id in ids:
            if (reply := self.pending.pop(id, None)) is not None:
                reply.fail(another(error))
            if (channel := channels.get(id)) is not None:
                channel.lost(another(error))
            if (call := calls.get(id)) is not None:
                call.stop()

    def cut_off(self, reason: str, error: BusError | None) -> None:
        failed = error if error is not None else Disconnected(reason, self.address, True)
        unread = error is None and reason == ALL_ANSWERED and not self.link.services.leaving  # or it may be our own goodbye
        unanswered = Disconnected(reason, self.address, False) if unread else failed
        pending, self.pending = self.pending, {}
        for reply in pending.values():
            reply.fail(another(unanswered))
        if self.streams_if_any is not None:
            self.streams_if_any.lost(failed)

    def connection_lost(self, reason: str, *, going_on: bool, error: BusError | None = None) -> None:
        link = self.link
        runtime = link.runtime
        if self.inbound_if_any is not None:
            self.inbound_if_any.lost()
        runtime.notifier.signal()
        self.cut_off(reason, error)
        self.streams_if_any = None
        if self.undecided is not None:
            self.undecided.lost()
        if self.undelivered is not None:
            self.undelivered.lost()
        scopes, self._scopes = self._scopes, None
        for scope in list(scopes or ()):
            scope.cancel()
        if self._subscriptions is not None:
            self._subscriptions.clear()
        self.host.lost(self, None if going_on else error or Disconnected(reason, self.address, False))
        if link.upstream:
            runtime.bus_identities.lost(self)
        else:
            runtime.bus_identities.forget(self)
        if going_on and self.speaks_extensions and self._negotiation is not None:
            self._negotiation.lost()
        else:
            self._negotiation = None  # another program may now use that address
        if not going_on:
            runtime.deadlines.forget(self)


async def _within(
    scopes: set[anyio.CancelScope], scope: anyio.CancelScope, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
) -> None:
    try:
        with scope:
            await function(*args)
    finally:
        scopes.discard(scope)
