"""Sends requests to handlers of the same bus, and opens streams and channels to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field
from msgspec import Struct

from ..._util.deadlines import Deadlines
from ...body import JSON, OCTETS, BodyFormat
from ...errors import Code, DeadlineExceeded, Disconnected, QueueFull, RequestError, TooManyRequests
from ...headers import check_headers
from ...message import Kind, Message
from ..runtime.loop_prevention import ViaHeader
from ..runtime.memory_budgets import OVERHEAD, MemoryBudget, cost
from ..runtime.outgoing_hooks import Departure, depart
from ..runtime.threads import holds
from .call import Call, ChannelCall
from .channel import CREDIT, Channel
from .reply import InternalReply, ObservedReply, Reply

if TYPE_CHECKING:
    from ..._util.event_loop import Loop
    from ..runtime.ports import RequestHandler
    from ..runtime.services import Services
    from ..runtime.workers import Places
    from .call import ResponseSink


@define(eq=False, repr=False)
class Loopback:
    """Sends a bus's requests to itself. Bodies are encoded, so that handlers see the same values as from a peer."""

    services: Services
    calls: dict[int, Call] = field(factory=dict)
    """Calls, keyed by the `id` of their origin."""
    channels: int = field(default=0, init=False)
    """Number of open streams and channels."""
    _deadlines: Deadlines = field(factory=Deadlines, init=False)

    def start(self, call: Call, places: Places | None) -> None:
        runtime = self.services.running
        self.calls[id(call.origin)] = call
        self.channels += call.of_channel
        call.places = places
        if places is None or places.take(call):
            runtime.workers.submit(call)
        else:
            places.wait(call)
        if call.deadline < self._deadlines.until:
            self._deadlines.add(call.deadline, id(call.origin))
            runtime.deadlines.watch(self, call.deadline)

    @property
    def running(self) -> int:
        return sum(call.started for call in self.calls.values())

    @property
    def waiting(self) -> int:
        return sum(call.places is not None and call.places.waits(call) for call in self.calls.values())

    def expire(self, now: float) -> float:
        for call in self._deadlines.due(now, self.calls):
            if isinstance(call, ChannelCall):
                call.message.id.expire(now)  # the opener's end, which notifies the handler's end
            else:
                reply = call.message.id
                reply.fail(DeadlineExceeded(reply.subject, now - reply.started, "local"))
            call.stop()
        return self._deadlines.next

    def over(self, sink: ResponseSink) -> None:
        self.channels -= isinstance(self.calls.pop(id(sink), None), ChannelCall)

    def stop(self) -> None:
        for call in list(self.calls.values()):
            call.stop()


class HandlerParty(Struct, frozen=True, eq=False):
    """A handler of this bus as the receiver of requests. Implements `peer.party_verbs.Party`.

    Attributes:
        facts: Attributes for the messages to the handler, such as the identity that was passed to `Bus.as_`.
    """

    loopback: Loopback
    handler: RequestHandler
    facts: Mapping[str, Any] | None = None

    @property
    def services(self) -> Services:
        return self.loopback.services

    def send_request(
        self, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        """Send a request to the handler, using the handler's own spelling of the subject."""
        handler, services = self.handler, self.loopback.services
        runtime = services.running
        now = runtime.time()
        deadline = now + timeout
        hooks = services.outgoing
        ttl = runtime.ttl(now, deadline)
        reply: Reply[Any] = (ObservedReply if hooks else Reply)(runtime.loop, subject, returns, now, deadline, ttl)
        raw, body_format = encode_local(body) if body is not None else (None, JSON)
        if ttl is not None:
            deadline = now + ttl  # which the enclosing scope and the calling handler limit
        message = Message(Kind.REQUEST, handler.subject, reply, raw, body_format, headers, ttl, checked=raw)
        message.extras = None if self.facts is None else {**self.facts}
        if isinstance(reply, ObservedReply):
            reply.departure = self._depart(message)
        if (refusal := self._refusal(subject)) is not None:
            reply.fail(refusal)
            return reply
        call = Call(services, LocalSink(self.loopback, reply), None, handler, message, deadline)
        call.asked_by_holder = holds()
        reply.on_cancel = lambda _: call.stop()
        reply.sent = True
        self.loopback.start(call, handler.places)
        return reply

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        handler, services = self.handler, self.loopback.services
        if (refusal := self._refusal(handler.subject)) is not None:
            raise refusal
        raw, body_format = encode_local(body) if body is not None else (None, JSON)
        reply = InternalReply(services.running.loop, handler.subject, Any, services.running.time(), math.inf)
        facts = None if self.facts is None else {**self.facts}
        message = Message(Kind.NOTIFY, handler.subject, reply, raw, body_format, headers, attributes=facts, checked=raw)
        if services.outgoing:
            self._depart(message).end()
        call = Call(services, LocalSink(self.loopback, reply), None, handler, message, math.inf)
        self.loopback.start(call, handler.places)

    async def open_channel(
        self,
        subject: str | int,
        body: Any,
        mode: str,
        timeout: float | None,
        hops: int = 0,
        headers: dict[str, str] | None = None,
    ) -> Channel[Any, Any]:
        handler = self.handler
        self.services.running.check_here()
        if handler.style != mode:
            raise RequestError(Code.INVALID_ARGUMENT, f"{handler.subject!r} does not answer {mode}")
        return self.converse(handler.subject, body, mode, timeout, hops, headers)

    def converse(
        self, subject: str | int, body: Any, mode: str, timeout: float | None, hops: int, headers: dict[str, str] | None
    ) -> Channel[Any, Any]:
        """Open a stream or channel that has passed `hops` bridges and tunnels. Returns the opener's end."""
        loopback, handler = self.loopback, self.handler
        services = loopback.services
        runtime = services.running
        now = runtime.time()
        limit = 2 * runtime.limits.channels
        if loopback.channels >= limit:
            raise TooManyRequests(f"{limit} channels of this bus to itself are open (Limits.channels)")
        port = LocalPort(runtime.loop, MemoryBudget(runtime))
        near: Channel[Any, Any] = Channel(runtime.loop, port, subject, CREDIT)
        far: Channel[Any, Any] = Channel(runtime.loop, port, subject, CREDIT, receiving=mode != "stream")
        port.ends = (near, far)
        raw, body_format = encode_local(body) if body is not None else (None, JSON)
        near.started = now
        near.deadline = math.inf if timeout is None else now + timeout
        ttl = near.ttl = runtime.ttl(now, near.deadline)
        deadline = math.inf if ttl is None else now + ttl
        attributes = {**(self.facts or {}), "mode": mode, "hops": hops}
        message = Message(Kind.OPEN, subject, near, raw, body_format, headers, ttl, attributes=attributes, checked=raw)
        if services.outgoing:
            near.departure = self._depart(message)
        call = ChannelCall(services, LocalSink(loopback), None, handler, message, deadline, channel=far)
        call.asked_by_holder = holds()
        loopback.start(call, handler.places)
        return near

    async def forward(self, message: Message, deadline: float) -> Message:
        """Forward a request from a bridge, and return the answer. Raises the errors of `Reply`."""
        ViaHeader.strip(message)
        timeout = max(0.0, deadline - self.services.running.time())
        reply = self.send_request(message.subject, message.body, timeout, Any, message.headers)
        await reply
        assert reply.message is not None
        return reply.message

    async def forward_notification(self, message: Message) -> None:
        """Forward a notification from a bridge. Raises the errors of `send_notify`."""
        ViaHeader.strip(message)
        await self.send_notify(message.subject, message.body, message.headers)

    def _depart(self, message: Message) -> Departure:
        services = self.loopback.services
        return depart(services.outgoing, message, None, services.limits.headers)

    def _refusal(self, subject: str | int) -> RequestError | QueueFull | None:
        """Return the error if the handler cannot be called at the moment, otherwise None."""
        style, running = self.handler.style, len(self.loopback.calls)
        if style in ("stream", "channel"):
            return RequestError(Code.INVALID_ARGUMENT, f"{subject!r} is a {style}: use bus.{style}()")
        if running >= self.loopback.services.limits.pending:
            return QueueFull(f"{running} requests of this bus to itself already run (Limits.pending)")
        return None


class LocalSink(Struct, eq=False):
    """Receives the results of a bus's requests to itself. Implements `ResponseSink`.

    Streams and channels do not use replies. Their two ends notify each other.
    """

    _loopback: Loopback
    _reply: Reply[Any] | None = None

    def answer(self, call: Call, value: Any) -> None:
        raw, body_format = encode_local(value)
        if self._reply is not None:
            headers = call.message.answer_headers
            if headers:
                headers = check_headers(headers, call.services.limits.headers)
            self._reply.resolve(Message(Kind.RESPONSE, call.message.subject, None, raw, body_format, headers or None))

    async def answer_later(self, call: Call, value: Any) -> None:
        self.answer(call, value)

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None:
        facts = {"text": text, "reason": reason, "detail": detail}
        if self._reply is not None:
            message = Message(Kind.ERROR, call.message.subject, code=code, attributes=facts)
            self._reply.reject(message, self._loopback.services.running.time(), own=True)

    def put_off(self, call: Call) -> bool:
        return False

    def proceed(self, call: Call) -> None:
        places = call.places
        assert places is not None
        if places.take(call):  # a bus's own requests have no other limit
            self._loopback.services.running.workers.submit(call)
        else:
            places.wait(call, first=True)

    def stopped(self, call: Call) -> None:
        self._over(call)

    def returned(self, call: Call) -> None:
        if call.places is not None:
            call.places.leave(call)

    def finished(self, call: Call) -> None:
        if (places := call.places) is not None and not places.drop(call):
            places.leave(call)
        self._over(call)

    def _over(self, call: Call) -> None:
        self._loopback.over(self)
        call.services.signal()
        if self._reply is not None and not self._reply.done():
            self._reply.fail(Disconnected("the bus was closed", "this bus", True))


class LocalPort(Struct, eq=False):
    _loop: Loop
    budget: MemoryBudget
    ends: tuple[Channel[Any, Any], ...] = ()

    def channel_send(self, channel: Channel[Any, Any], kind: Kind, value: Any, code: Code | None, facts: dict[str, Any]) -> int:
        other = self.ends[1] if channel is self.ends[0] else self.ends[0]
        if kind is Kind.CREDIT:
            count = facts["credit"]
            self._loop.call_soon(lambda: other.received_credit(count))
            return OVERHEAD
        raw, body_format = encode_local(value) if kind is Kind.ITEM else (None, JSON)
        message = Message(kind, channel.subject, None, raw, body_format, code=code, attributes=facts)
        receive = other.received_item if kind is Kind.ITEM else other.received_end
        self._loop.call_soon(lambda: receive(message))
        return cost(message)

    def channel_room(self) -> None:
        """Return None, because the queue is already limited by credit."""

    def channel_done(self, channel: Channel[Any, Any]) -> None:
        """Do nothing."""


def encode_local(value: Any) -> tuple[bytes, BodyFormat]:
    """Encode a body as bytes if it is binary, otherwise as JSON."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return OCTETS.encode(value), OCTETS
    return JSON.encode(value), JSON
