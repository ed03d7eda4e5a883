"""Whoever is at the other end of a link: the verbs towards it, and what is kept for it."""

from __future__ import annotations

import datetime
import math
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import anyio

from . import incoming
from .account import OVERHEAD, Account, cost
from .arguments import seconds
from .calls import Answer, Call
from .channel import CREDIT, Channel, Opening
from .errors import (
    BadReply,
    BusError,
    Code,
    DeadlineExceeded,
    Disconnected,
    RemoteProtocolError,
    RequestCancelled,
    TooManyRequests,
    Unsupported,
    another,
)
from .hello import HELLO, HELLO_TIMEOUT, LATE, Question
from .message import Kind, Message
from .reply import Reply
from .subjects import Subject, resolve
from .urgency import UrgentQueue

if TYPE_CHECKING:
    from .body import BodyFormat
    from .deliveries import Deliveries
    from .link import Link
    from .plugins import Identity
    from .tunnel import TunnelConnector

__all__ = ["Peer"]

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")


class Peer(Answer):
    """One peer: a connection's other end, or one of many behind a broker.

    Attributes:
        id: Random text, for logs and for telling peers apart.
        connected_at: When the link came up (aware, UTC).
    """

    __slots__ = (
        "__weakref__",
        "_allowed",
        "_asking",
        "_answers_only",
        "_due",
        "_extended",
        "_id",
        "_identity",
        "_late",
        "_link",
        "_silent",
        "_unsent",
        "_where",
        "account",
        "calls",
        "channels",
        "connected_at",
        "key",
        "large",
        "patterns",
        "pending",
        "scopes",
        "stopping",
        "undecided",
        "undelivered",
        "waiting",
        "warned",
    )

    def __init__(self, link: Link, key: Any, identity: Identity, where: str = "") -> None:
        self._link = link
        self._identity = identity
        self._where = where
        self._id: str | None = None
        self.key: Any = key
        """How the session names this peer, where it has many."""
        self.connected_at: datetime.datetime = datetime.datetime.now(datetime.UTC)
        self.pending: dict[Any, Reply[Any]] = {}
        """Requests that were written and wait for their answer."""
        self.calls: dict[Any, Call] | None = None
        """Requests of this peer whose handlers run or wait, by their id."""
        self.waiting: deque[Call] | UrgentQueue[Call] | None = None
        """Requests whose turn has not come: in order, and by urgency where the wire has priorities."""
        self.large: dict[Call, int] | None = None
        """Requests that run and have large bodies, and what those cost."""
        self.scopes: set[anyio.CancelScope] | None = None
        """Of tasks that end when it is gone."""
        self.stopping: int = 0
        """Handlers of requests that are over already: each keeps its place until it returns."""
        self.patterns: dict[str | int, int] | None = None
        """What the peer has subscribed to, and what that is charged with."""
        self.channels: dict[Any, Channel[Any, Any]] | None = None
        self.warned: bool = False
        """Whether the log says already that it wants too many subscriptions."""
        self.account: Account = Account(link.runtime, link.runtime.limits.waiting_bytes)
        """What this peer makes the bus keep: requests and questions that wait, items that nobody has read."""
        self.undecided: deque[Message] | None = None
        """Messages that wait for an asynchronous `authorize`."""
        self.undelivered: Deliveries | None = None
        """Publications to it that wait for an asynchronous `authorize`."""
        self._unsent: dict[Reply[Any], None] | None = None
        self._allowed: dict[str | int, bool] | None = None
        self._due = math.inf
        self._extended: bool | None = None
        self._answers_only = False
        self._silent = False
        """Whether it was asked who it is, and has not answered in time."""
        self._asking: Question | None = None
        self._late: dict[Any, Question] | None = None
        """Questions without an answer as yet, by their id."""

    # -- who it is -------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Random text that tells peers apart."""
        if self._id is None:
            self._id = secrets.token_hex(6)
        return self._id

    @property
    def identity(self) -> Any:
        """What `authenticate` gave."""
        return self._identity.value

    @property
    def identity_key(self) -> str | None:
        """The key under which `Bus.peers_of` finds it."""
        return self._identity.key

    @property
    def address(self) -> str:
        """Network address, as far as the transport knows it."""
        return self._where or self._link.address

    @property
    def protocol(self) -> str:
        """Name of the protocol."""
        return self._link.adapter.name

    @property
    def transport(self) -> str:
        """Name of the transport; empty while there is no connection."""
        return self._link.transport.name if self._link.transport is not None else ""

    @property
    def connected(self) -> bool:
        """Whether the link is up, and the peer there."""
        link = self._link
        return link.state.value == "up" and (self.key is None or link.crowd is None or link.crowd.peers.get(self.key) is self)

    @property
    def gone(self) -> bool:
        """Whether it has left for good; one whose link is to come back has not."""
        link = self._link
        if self.key is not None:
            return link.crowd is None or link.crowd.peers.get(self.key) is not self
        return link.state.value == "closed" or (link._closing is not None and not link._wanted)

    def __repr__(self) -> str:
        return f"<Peer {self.id} {self.protocol}+{self.transport} {self.address}>"

    async def aclose(self, reason: str = "") -> None:
        """Send the peer away. Returns when it has been told, without waiting for it.

        Args:
            reason: Shown to the peer where the wire can.

        Raises:
            LocalProtocolError: The bus runs in another event loop.
        """
        link = self._link
        link.runtime.check_here()
        if self.key is None:
            link.close(1000, reason)
        elif link.crowd is not None:
            link.crowd.send_away(self, 1000, reason)

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
        timeout = seconds(timeout)
        bus = self._link.bus
        bus._check_subject(name)
        return self._request(Kind.REQUEST, name, body, timeout, returns, bus._headers(headers))

    def _request(
        self, kind: Kind, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        link = self._link
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

    def _pass_on(self, message: Message, timeout: float) -> Reply[Any]:
        """Ask what came over a bridge, its body as it is where the wire can carry that.

        Raises:
            EncodeError, Unsupported, LocalProtocolError: The wire cannot carry it.
        """
        link = self._link
        runtime = link.runtime
        now = runtime.time()
        reply: Reply[Any] = Reply(runtime.loop, message.subject, Any, now, now + timeout)
        message.ttl = runtime.ttl(now, reply.deadline)
        if message.raw is None and message.has_body:
            message.format = chosen = link.format_for(message.body, message.subject)
            message.raw = chosen.encode(message.body)
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
        await self._link.bus.publish(subject, body, headers=headers, to=self, timeout=timeout)

    async def notify(
        self, subject: str | int | Subject[Any, Any], body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell this peer's handler, without an answer. See `Bus.notify`.

        Raises:
            EncodeError: The body cannot be written.
            QueueFull: The outbox is full.
            Disconnected: The peer has gone.
        """
        await self._link.bus.notify(subject, body, headers=headers, to=self)

    def stream(
        self, subject: str | int | Subject[Any, Any], body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> Opening[Any, Any]:
        """Ask this peer for a stream. See `Bus.stream`."""
        return self._link.bus.stream(subject, body, returns=returns, timeout=timeout, to=self)

    def channel(
        self, subject: str | int | Subject[Any, Any], *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> Opening[Any, Any]:
        """Open a channel to this peer. See `Bus.channel`."""
        return self._link.bus.channel(subject, sends=sends, receives=receives, timeout=timeout, to=self)

    def tunnel(self, name: str, *, params: Mapping[str, str] | None = None) -> TunnelConnector:
        """A connection to this peer that runs inside its link. See `Bus.tunnel`.

        Raises:
            ReservedSubject, LocalProtocolError, TypeError: As `Bus.tunnel`.
        """
        return self._link.bus._tunnel(name, params, self)

    # -- extensions between our own buses --------------------------------------------------------------------------------

    async def extended(self) -> bool:
        """Whether the peer is known to be one of ours and to speak the extensions. It is asked when that is first needed.

        An answer or a refusal is final. Silence is not: the peer may be busy. Then this is False, the next use asks again, and
        an answer that comes late counts.

        Raises:
            Disconnected: The link broke meanwhile.
        """
        if self._extended is None:
            await self._told(self.question())
        return bool(self._extended)

    def question(self) -> Question:
        """The question who the peer is, asked unless it is out already: each waits for a second, so that is one a second."""
        asking = self._asking
        if asking is None or asking.done():
            to_tell = self._link.bus._distribution.to_tell(self)
            asking = self._asking = self._ask({"v": 1, "subscribes": to_tell} if to_tell else {"v": 1})
        return asking

    async def hello(self, confirm: list[str | int] | None = None) -> list[str | int]:
        """Ask the peer who it is. Also a barrier: what was written before has been handled when this returns.

        Args:
            confirm: Patterns that were just subscribed.

        Returns:
            Those of `confirm` that the peer refused.
        """
        answer = await self._told(self._ask({"v": 1, "confirm": confirm} if confirm else {"v": 1}))
        refused = answer.get("refused", []) if isinstance(answer, dict) else []
        return refused if isinstance(refused, list) else []

    @staticmethod
    async def _told(question: Question) -> Any:
        """The answer to a question; None where there is none.

        Raises:
            Disconnected: The link broke meanwhile.
        """
        try:
            return await question
        except (Disconnected, RequestCancelled):
            raise
        except (BusError, ConnectionError):
            return None

    def _ask(self, body: dict[str, Any]) -> Question:
        link = self._link
        runtime = link.runtime
        now = runtime.time()
        question = Question(self, now)
        message = Message(Kind.REQUEST, HELLO, None, None, link.format, None, runtime.ttl(now, question.deadline))
        question._abandon = self._abandoned
        try:
            message.format = chosen = link.format_for(body, HELLO)
            message.raw = chosen.encode(body)
            link.request(message, question, self)
        except BusError as error:  # this wire cannot carry it, or not now
            question._fail(error)
        if question.deadline < self._due:
            self._watch(question.deadline)
        return question

    def _answered(self, answer: Any) -> None:
        """It has said who it is."""
        if isinstance(answer, dict) and answer.get("v") == 1:
            self._answers_only = answer.get("answers_only") is True
            self.is_ours(answer.get("subscribes"))
        else:
            self._extended = False

    def is_ours(self, subscribes: Any = None) -> None:
        """It has shown to be one of ours.

        Args:
            subscribes: How many subscriptions it has still to tell.
        """
        late = self._silent
        self._extended, self._silent = True, False
        if self.key is None and self._link.session is not None:
            self._link.set_shared()
        distribution = self._link.bus._distribution
        distribution.known(self, subscribes)
        if late:
            distribution.known_late(self)

    def not_extended(self, without: str) -> Unsupported:
        """The error of a verb that takes one of ours.

        Args:
            without: What cannot be done.
        """
        if self._extended is None:
            return Unsupported(
                f"{self!r} has not answered for {HELLO_TIMEOUT:.0f} s: it may be a bare peer, or busy; {without} until it has "
                "said that it is a polybus peer: try again later"
            )
        return Unsupported(f"{self!r} is not a polybus peer: {without}")

    async def _open(
        self, subject: str | int, body: Any, mode: str, timeout: float | None, hops: int | None = None
    ) -> Channel[Any, Any]:
        channel: Channel[Any, Any] = Channel(self._link.runtime.loop, self, subject, 0)
        await self._open_channel(channel, body, mode, timeout, CREDIT, hops)
        return channel

    async def _open_channel(
        self, channel: Channel[Any, Any], body: Any, mode: str, timeout: float | None, credit: int, hops: int | None
    ) -> None:
        """Write an open. `hops` are the tunnels that it has come through, where that is not what the link itself says."""
        link, subject = self._link, channel.subject
        if link.session is not None and not link.session.capabilities.extensions:
            raise Unsupported(f"{self.protocol} cannot carry a {mode}")
        if not await self.extended():
            raise self.not_extended(f"it can carry requests, but no {mode}")
        if self._answers_only:
            raise Unsupported(f"{self!r} only answers on this connection: it can carry requests, but no {mode}")
        now = link.runtime.time()
        if len(self.channels or ()) >= 2 * link.runtime.limits.channels:
            raise TooManyRequests(f"{len(self.channels or ())} channels are open on this peer (Limits.channels)")
        if hops is None:
            hops = link.transport.hops if link.transport is not None else 0
        facts = {"mode": mode, "credit": credit, "hops": hops}
        message = Message(
            Kind.OPEN, subject, None, None, link.format, None, link.runtime.ttl(now, now + timeout if timeout else math.inf)
        )
        message._attributes = facts
        if body is not None:
            message.format = chosen = link.format_for(body, subject)
            message.raw = chosen.encode(body)
        if link.outbox is not None:  # what was published before leaves before
            await link.room(0, now + (30.0 if timeout is None else timeout))
        if not self.connected:
            raise Disconnected("the link is down", self.address, False)
        link.check_initiates(self)
        channel.started = now
        channel.id = link.write(message, self)
        channels = self.channels = self.channels if self.channels is not None else {}
        channels[channel.id] = channel
        if timeout is not None:
            channel.deadline = now + timeout
            if channel.deadline < self._due:
                self._watch(channel.deadline)

    @property
    def takes_items(self) -> bool:
        """Whether an item written now would not add to what waits for too long already."""
        outbox = self._link.outbox
        return outbox is None or outbox.takes_answers

    def channel_frame(self, channel: Channel[Any, Any], frame: bytes, body_format: BodyFormat | None) -> int:
        """Write a frame of a tunnel as an item. What it costs the other side until it is read.

        Args:
            body_format: How it travels; None for a value of this wire.
        """
        if body_format is None:
            return self.channel_send(channel, Kind.ITEM, frame, None, {})
        self._link.answer(Message(Kind.ITEM, channel.subject, channel.id, frame, body_format), self)
        return len(frame) + OVERHEAD

    def channel_send(self, channel: Channel[Any, Any], kind: Kind, value: Any, code: Code | None, facts: dict[str, Any]) -> int:
        """A channel's port: write an item, a credit or an end. What it costs the other side until it is read."""
        link = self._link
        message = Message(kind, channel.subject, channel.id, None, link.format, code=code)
        if facts:
            message._attributes = facts
        if kind is Kind.ITEM:
            message.format = chosen = link.format_for(value, channel.subject)
            message.raw = chosen.encode(value)
        link.answer(message, self)
        return cost(message)

    def channel_room(self) -> Awaitable[None] | None:
        """A channel's port: something to wait for while too much waits to be written."""
        return self._link.room_for_answer() if self._link.outbox is not None else None

    def channel_done(self, channel: Channel[Any, Any]) -> None:
        """A channel's port: it is over."""
        if self.channels is not None and self.channels.pop(channel.id, None) is not None:
            session = self._link.session
            if session is not None:
                session.forget(channel.id, self._link.runtime.time())

    # -- calls.Answer: outcomes of this peer's requests ------------------------------------------------------------------

    def answer(self, call: Call, value: Any) -> None:
        response = self._response(call, value)
        if response is not None:
            self._link.answer(response, self)

    async def answer_later(self, call: Call, value: Any) -> None:
        """`answer`, when less waits for the peer. It keeps its handler's place until then, and is charged.

        Raises:
            EncodeError: It cannot be written.
        """
        response = self._response(call, value)
        del value
        if response is None or call.ended:
            return
        link = self._link
        held, size = Account(link.runtime), cost(response)
        if not held.hold(size):
            link.too_slow(self, "answers wait for it, and the bus keeps too much already (Limits.total_bytes)")
            return
        try:
            await link.room_for_answer()
        finally:
            held.release(size)
        if not call.ended:
            link.answer(response, self)

    def _response(self, call: Call, value: Any) -> Message | None:
        message = call.message
        if message.kind is not Kind.REQUEST:
            return None
        link = self._link
        response = Message(Kind.RESPONSE, message.subject, message.id, None, link.format)
        response.reply_to = message.reply_to
        if call.away and isinstance(value, Message):  # over a bridge: as it came, where this wire can carry that
            response.raw, response.format, response._value = value.raw, value.format, value._value
            if value.raw is None and value.has_body:
                response.format = chosen = link.format_for(value.body, message.subject)
                response.raw = chosen.encode(value.body)
        elif value is not None:
            response.format = chosen = link.format_for(value, message.subject)
            response.raw = chosen.encode(value)
        return response

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None:
        kind = call.message.kind
        if kind is Kind.REQUEST:
            self.send_error(call.message, code, text, reason, detail, delivered=call.delivered)
        elif kind is Kind.OPEN:
            self.send_error(call.message, code, text, reason, detail, kind=Kind.END, delivered=call.delivered)
            if self.channels is not None:
                self.channels.pop(call.message.id, None)

    def send_error(
        self,
        message: Message,
        code: Code,
        text: str,
        reason: str | None = None,
        detail: Any = None,
        kind: Kind = Kind.ERROR,
        *,
        delivered: bool = False,
    ) -> None:
        """Answer a message with an error.

        Args:
            delivered: A handler had the message, and this is what it says; otherwise the bus itself refuses it.
        """
        if not delivered:
            self._link.bus._dead_letter(self, message, code, text)
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
        alternatives: tuple[dict[str, Any], ...] = (
            {"text": text, "reason": reason, "detail": detail},
            {"text": text, "reason": reason, "detail": None},
            {"text": text[:200], "reason": None, "detail": None},
            {"text": "", "reason": None, "detail": None},
        )
        # Some answer must go out: without its detail, with less text, and at last with hardly anything.
        for facts in alternatives:
            if not delivered:
                facts["undelivered"] = True
            error = Message(kind, message.subject, message.id, code=code, attributes=facts)
            error.reply_to = message.reply_to
            try:
                self._link.answer(error, self)
            except BusError:
                continue
            return
        self._link.bus._counters.dropped += 1

    def finished(self, call: Call) -> None:
        if self.calls is not None and self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]
        if not call.started and self.waiting and call in self.waiting:
            self.waiting.remove(call)
            self.release(call.message)
        else:
            self._place_free(call)

    def stopped(self, call: Call) -> None:
        if self.calls is not None and self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]
        self.stopping += 1
        self._link.runtime.stopping += 1
        self._link.runtime.bell.ring()

    def returned(self, call: Call) -> None:
        self.stopping -= 1
        self._link.runtime.stopping -= 1
        self._place_free(call)

    def _place_free(self, call: Call) -> None:
        runtime = self._link.runtime
        runtime.running -= 1
        if self.large and (size := self.large.pop(call, 0)):
            runtime.large.release(size)
        if self.waiting or runtime.crowded:
            incoming.next_call(self)
        runtime.bell.ring()

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a task of the bus for as long as this peer is there."""
        scope = anyio.CancelScope()
        scopes = self.scopes = self.scopes if self.scopes is not None else set()
        scopes.add(scope)
        self._link.runtime.spawn(_within, scopes, scope, function, args)

    def hold(self, message: Message) -> bool:
        """Take account of a message of this peer that has to wait. False if too much waits already."""
        if not self.account.hold(cost(message)):
            return False
        message.forget_value()
        return True

    def release(self, message: Message) -> None:
        """It waits no more."""
        self.account.release(cost(message))

    # -- deadlines and endings -------------------------------------------------------------------------------------------

    def _watch(self, deadline: float) -> None:
        self._due = deadline
        self._link.runtime.watch(self, deadline)

    def _expire(self, now: float) -> float:
        """End what is past its deadline. The earliest deadline that remains."""
        due = math.inf
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
        self._due = due
        return due

    def _timed_out(self, reply: Reply[Any], now: float) -> None:
        if reply.sent or self.connected:
            reply._fail(DeadlineExceeded(reply.subject, now - reply.started, "local"))
        else:
            reply._fail(Disconnected("it did not come back within the timeout", self.address, False))
        if reply._abandon is not None:
            reply._abandon(reply)

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
        link = self._link
        if link.session is None:
            return
        if isinstance(reply, Question):
            self._unanswered(reply)
            return
        link.session.forget(reply.key, link.runtime.time())
        if self._extended is None and not self._silent and link.session.capabilities.extensions:
            link.runtime.spawn(self._cancel_when_known, reply.key, reply.subject)
        elif self._extended:
            self._send_cancel(reply.key, reply.subject)

    def _unanswered(self, question: Question) -> None:
        """A question is out for long: its answer may still come."""
        late = self._late = self._late if self._late is not None else {}
        late[question.key] = question
        session = self._link.session
        if len(late) > LATE and session is not None:
            oldest = next(iter(late))
            del late[oldest]
            session.forget(oldest, self._link.runtime.time())

    def late_answer(self, id: Any) -> Question | None:
        """The question that an answer to nothing in `pending` is for."""
        return self._late.pop(id, None) if self._late else None

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

    def _send_cancel(self, key: Any, subject: str | int) -> None:
        self._link.answer(Message(Kind.CANCEL, subject, key), self)

    def _lost(self, reason: str, *, going_on: bool, error: BusError | None = None) -> None:
        """The connection is gone: end what was in flight. With `going_on` the link will come back."""
        failed = error if error is not None else Disconnected(reason, self.address, True)
        pending, self.pending = self.pending, {}
        for reply in pending.values():
            reply._fail(another(failed))
        waiting, self.waiting = self.waiting, None
        for call in waiting or ():
            self.release(call.message)
            call.ended = True  # never started, so no place is to be given back
            call.discard()
        self._link.runtime.crowded.pop(self, None)
        self._link.runtime.bell.ring()
        for call in list(self.calls.values()) if self.calls else ():
            call.stop()
        for channel in list(self.channels.values()) if self.channels else ():
            channel.lost(another(failed))
        for message in self.undecided or ():
            self.release(message)
        self.calls = self.channels = self.undecided = None
        if self.undelivered is not None:
            self.undelivered.lost()
        scopes, self.scopes = self.scopes, None
        for scope in list(scopes or ()):
            scope.cancel()
        self._link.bus._forget_patterns(self)
        self._asking = self._late = None
        self._silent = False
        if self._extended is False:
            self._extended = None  # another may answer at that address
        if not going_on:
            for reply in list(self._unsent or ()):
                reply._fail(Disconnected(reason, self.address, False) if error is None else another(error))
            self._unsent = None
            self._link.runtime.timed.pop(self, None)
            self._extended = None


async def _within(
    scopes: set[anyio.CancelScope], scope: anyio.CancelScope, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
) -> None:
    try:
        with scope:
            await function(*args)
    finally:
        scopes.discard(scope)
