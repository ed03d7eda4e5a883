"""Whoever is at the other end of a link: the verbs towards it, and what is kept for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._rpc.channel import Opening
from .._rpc.reply import Reply
from .._validation import seconds
from ..errors import BadReply, BusError, Disconnected, RemoteProtocolError, another
from ..message import Kind, Message
from ..subjects import AnySubject, Subject, resolve
from .extension_probe import Question
from .streams import ChannelledPeer

if TYPE_CHECKING:
    from collections import deque

    import anyio

    from .._handlers.router import WhenFull
    from .._pubsub.subscription import Subscription
    from .._rpc.call import Call
    from .._rpc.channel import Channel
    from .._tunnel import TunnelConnector
    from .._util.priority_queue import UrgentQueue

__all__ = ["Peer"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")


class Peer(ChannelledPeer):
    """One peer: a connection's other end, or one of many behind a broker.

    Attributes:
        id: Random text, for logs and for telling peers apart.
        connected_at: When the link came up (aware, UTC).
    """

    __slots__ = ()

    # Declared in `KnownPeer`; again here for type checkers, because both set them.
    pending: dict[Any, Reply[Any]]
    waiting: deque[Call] | UrgentQueue[Call] | None
    calls: dict[Any, Call] | None
    channels: dict[Any, Channel[Any, Any]] | None
    undecided: deque[Message] | None
    scopes: set[anyio.CancelScope] | None

    # -- who it is -------------------------------------------------------------------------------------------------------

    async def aclose(self, reason: str = "") -> None:
        """Send the peer away. Returns when it has been told, without waiting for it.

        Args:
            reason: Shown to the peer where the wire can.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
        """
        link = self.link
        link.runtime.check_here()
        if self.key is None:
            link.close(1000, reason)
        elif link.crowd is not None:
            link.crowd.send_away(self, 1000, reason)

    def departed(self) -> BusError:
        """Why one that has gone is not there."""
        link = self.link
        return link.disconnected(sent=False) if self.key is None else Disconnected("the peer has gone", self.address, False)

    # -- the verbs -------------------------------------------------------------------------------------------------------

    @overload
    def request(
        self,
        subject: Subject[In, Out],
        body: In = ...,
        *,
        timeout: float = ...,
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
        headers: Mapping[str, str] | None = ...,
    ) -> Reply[Any]: ...
    def request(
        self,
        subject: str | int | Subject[Any, Any],
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
    ) -> Reply[Any]:
        """Ask this peer. See `Bus.request`.

        Raises:
            EncodeError: The body cannot be written; the error names the path.
            Unsupported: The wire cannot carry this.
            ReservedSubject, LocalProtocolError: The subject or a header is not the application's to use.
            TypeError, ValueError: `timeout` or `headers` are of a wrong type, or cannot be.
        """
        name, returns = resolve(subject, returns)
        if isinstance(subject, Subject):
            body = subject.given(body)
        timeout = seconds(timeout)
        bus = self.link.bus
        bus._check_subject(name)
        return self._request(Kind.REQUEST, name, body, timeout, returns, bus._headers(headers))

    def _request(
        self, kind: Kind, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        link = self.link
        runtime = link.runtime
        now = runtime.time()
        deadline = now + timeout
        ttl = runtime.ttl(now, deadline)
        reply: Reply[Any] = Reply(runtime.loop, subject, returns, now, deadline)
        message = Message(kind, subject, None, None, link.format, headers, ttl)
        if body is not None:
            message.format = chosen = link.format_for(body, subject)
            message.raw = chosen.encode(body)
        reply._abandon = self._abandoned
        link.request(message, reply, self)
        if deadline < self._due:
            self._watch(deadline)
        return reply

    def _fit_body(self, message: Message) -> None:
        """Write the body of what came over a bridge, where it has not come as bytes.

        Raises:
            EncodeError: The wire cannot carry it.
        """
        if message.raw is None and message.has_body:
            message.format = chosen = self.link.format_for(message.body, message.subject)
            message.raw = chosen.encode(message.body)

    def _pass_on(self, message: Message, timeout: float) -> Reply[Any]:
        """Ask what came over a bridge, its body as it is where the wire can carry that.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: The wire cannot carry it.
        """
        link = self.link
        runtime = link.runtime
        now = runtime.time()
        reply: Reply[Any] = Reply(runtime.loop, message.subject, Any, now, now + timeout)
        message.ttl = runtime.ttl(now, reply.deadline)
        self._fit_body(message)
        reply._abandon = self._abandoned
        link.request(message, reply, self)
        if reply.deadline < self._due:
            self._watch(reply.deadline)
        return reply

    async def publish(
        self,
        subject: str | int | Subject[Any, Any],
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Publish to this peer alone. See `Bus.publish`.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: There was no room in the outbox for `timeout` seconds.
            Disconnected: The peer has gone.
        """
        await self.link.bus.publish(subject, body, headers=headers, to=self, timeout=timeout)

    @overload
    def subscribe(self, pattern: Subject[In, Any], *, queue: int = ..., when_full: WhenFull = ...) -> Subscription[In]: ...
    @overload
    def subscribe(
        self, pattern: str | int, *, returns: type[T], queue: int = ..., when_full: WhenFull = ...
    ) -> Subscription[T]: ...
    @overload
    def subscribe(
        self, pattern: AnySubject, *, returns: Any = ..., queue: int = ..., when_full: WhenFull = ...
    ) -> Subscription[Any]: ...
    def subscribe(
        self, pattern: AnySubject, *, returns: Any = Any, queue: int = 1000, when_full: WhenFull = "drop_oldest"
    ) -> Subscription[Any]:
        """Receive what this peer publishes: ``async with peer.subscribe("news.*") as news: async for message in news: ...``

        This peer alone is asked, also one that dialled in. Entering returns when it knows. On a link that this bus opened the
        subscription is restored when the link comes back; otherwise iterating raises `Disconnected` when the peer has gone.

        Args:
            pattern: ``*`` one token, ``>`` the rest.
            returns: The type that bodies are converted to; those that do not fit are skipped and counted.
            queue: Publications that wait to be read.
            when_full: What happens to one more; see `WhenFull`.

        Raises:
            LocalProtocolError: The pattern is not valid; (on entering) the bus runs in another event loop.
            ReservedSubject: It begins with ``_polybus.``.
            ValueError: The queue or the policy is not possible.
            TypeError: `returns` is no type, or none that a body can be read as.
            Unsupported: (on entering) The wire or a bare peer cannot carry it.
            Forbidden: (on entering) The peer refused.
            Disconnected: (on entering, by iterating) The peer has gone.
        """
        return self.link.bus._subscription(pattern, returns, queue, when_full, peer=self)

    async def notify(
        self, subject: str | int | Subject[Any, Any], body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell this peer's handler, without an answer. See `Bus.notify`.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
        """
        await self.link.bus.notify(subject, body, headers=headers, to=self)

    def stream(
        self, subject: str | int | Subject[Any, Any], body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> Opening[Any, Any]:
        """Ask this peer for a stream. See `Bus.stream`."""
        stream: Any = self.link.bus.stream
        opening: Opening[Any, Any] = stream(subject, body, returns=returns, timeout=timeout, to=self)
        return opening

    def channel(
        self, subject: str | int | Subject[Any, Any], *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> Opening[Any, Any]:
        """Open a channel to this peer. See `Bus.channel`."""
        channel: Any = self.link.bus.channel
        opening: Opening[Any, Any] = channel(subject, sends=sends, receives=receives, timeout=timeout, to=self)
        return opening

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> TunnelConnector:
        """A connection to this peer that runs inside its link. See `Bus.tunnel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError: As `Bus.tunnel`.
        """
        return self.link.bus._tunnel(name, params, self)

    # -- deadlines and endings -------------------------------------------------------------------------------------------

    def _watch(self, deadline: float) -> None:
        self._due = deadline
        self.link.runtime.watch(self, deadline)

    def _expire(self, now: float) -> float:
        """End what is past its deadline. The earliest deadline that remains."""
        self._due = due = math.inf
        self.turn_again()
        for reply in [*self.pending.values(), *(self._unsent or ())]:
            if reply.deadline <= now:
                self._timed_out(reply, now)
            else:
                due = min(due, reply.deadline)
        for call in list(self.calls.values()) if self.calls else ():
            if call.deadline <= now:
                call.expire()
            else:
                due = min(due, call.deadline)
        for channel in list(self.channels.values()) if self.channels else ():
            if channel.deadline <= now:
                channel.expire(now)
            else:
                due = min(due, channel.deadline)
        due = self._due = min(due, self._due)  # what has ended may have brought a new deadline
        return due

    def _timed_out(self, reply: Reply[Any], now: float) -> None:
        if reply.sent or self.connected:
            reply._expire(now)
        else:
            reply._fail(Disconnected("it did not come back within the timeout", self.address, False))
        if reply._abandon is not None:
            try:
                reply._abandon(reply)
            except Exception:  # of a plugin's session: it must not cost others their deadlines
                self.link.broken()

    def _unsent_reply(self, reply: Reply[Any]) -> None:
        self._unsent = self._unsent if self._unsent is not None else {}
        self._unsent[reply] = None

    def _sending(self, reply: Reply[Any]) -> None:
        """A reply leaves the outbox."""
        if self._unsent is not None:
            self._unsent.pop(reply, None)
        reply._abandon = self._abandoned

    def _abandoned(self, reply: Reply[Any]) -> None:
        """Nobody waits for this answer any more."""
        if self._unsent is not None:
            self._unsent.pop(reply, None)
        if reply.key is None or self.pending.pop(reply.key, None) is None:
            return
        link = self.link
        if link.session is None:
            return
        if isinstance(reply, Question):
            self._unanswered(reply)
            return
        link.session.forget(reply.key, link.runtime.time())
        link.flush()  # a session may have something to say of it
        if self._extended is None and not self._silent and link.session.capabilities.extensions:
            link.runtime.spawn(self._cancel_when_known, reply.key, reply.subject)
        elif self._extended:
            self._send_cancel(reply.key, reply.subject)

    async def _cancel_when_known(self, key: Any, subject: str | int) -> None:
        try:
            if await self.extended():
                self._send_cancel(key, subject)
        except BusError:
            return

    def answered_badly(self, error: RemoteProtocolError) -> None:
        """The answer to one of our requests was malformed."""
        reply = self.pending.pop(error.reply_id, None)
        if reply is not None:
            reply._fail(BadReply(f"the answer to {reply.subject!r} is malformed: {error.text}"))

    def answered_in_vain(self, key: Any, text: str) -> None:
        """An answer to one of our requests came and is not taken: where no other comes, the end of the request says so."""
        reply = self.pending.get(key)
        if reply is not None:
            reply._passed_over(f"an answer came and was not taken, {text}")

    def _send_cancel(self, key: Any, subject: str | int) -> None:
        self.link.answer(Message(Kind.CANCEL, subject, key), self)

    def _cut_off(self, reason: str, error: BusError | None) -> None:
        """Nothing more will come from it: fail what waits for it."""
        failed = error if error is not None else Disconnected(reason, self.address, True)
        pending, self.pending = self.pending, {}
        for reply in pending.values():
            reply._fail(another(failed))
        for channel in list(self.channels.values()) if self.channels else ():
            channel.lost(another(failed))

    def _lost(self, reason: str, *, going_on: bool, error: BusError | None = None) -> None:
        """The connection is gone: end what was in flight. With `going_on` the link will come back."""
        waiting, self.waiting = self.waiting, None
        for call in waiting or ():
            self.release(call.message)
            call.ended = True  # never started, so no place is to be given back
            call.discard()
        self.link.runtime.crowded.pop(self, None)
        self.link.stuck.pop(self, None)
        self.link.runtime.bell.ring()
        for call in list(self.calls.values()) if self.calls else ():
            call.stop()
        self._cut_off(reason, error)
        for message in self.undecided or ():
            self.release(message)
        self.calls = self.channels = self.undecided = None
        if self.undelivered is not None:
            self.undelivered.lost()
        scopes, self.scopes = self.scopes, None
        for scope in list(scopes or ()):
            scope.cancel()
        self.link.bus.lost(self, None if going_on else error or Disconnected(reason, self.address, False))
        if self.link.upstream:
            self.link.runtime.ends.lost(self)
        else:
            self.link.runtime.ends.forget(self)
        self._asking = self._late = None
        self._silent = False
        if self._extended is False:
            self._extended = None  # another may answer at that address
        if not going_on:
            for reply in list(self._unsent or ()):
                reply._fail(Disconnected(reason, self.address, False) if error is None else another(error))
            self._unsent = None
            self.link.runtime.timed.pop(self, None)
            self._extended = None
