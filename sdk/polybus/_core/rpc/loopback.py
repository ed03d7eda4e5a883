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


@define(eq=False, repr=False)
class Loopback:
    """Sends a bus's requests to itself, and receives the results. Implements `ResponseSink`.

    Bodies are encoded, so that handlers see the same values as from a peer. The id of a message is the `Reply`, or the opener's
    end of a channel. Channels need no results, because their two ends notify each other.
    """

    services: Services
    calls: dict[int, Call] = field(factory=dict)
    """Calls, keyed by their `id`."""
    channels: int = field(default=0, init=False)
    """Number of open streams and channels."""
    _deadlines: Deadlines = field(factory=Deadlines, init=False)

    def start(self, call: Call) -> None:
        runtime = self.services.running
        self.calls[id(call)] = call
        self.channels += call.of_channel
        if call.places is None or call.places.take(call):
            runtime.workers.submit(call)
        else:
            call.places.wait(call)
        if call.deadline < self._deadlines.until:
            self._deadlines.add(call.deadline, id(call))
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

    def stop(self) -> None:
        for call in list(self.calls.values()):
            call.stop()

    # -- results ---------------------------------------------------------------------------------------------------------

    def answer(self, call: Call, value: Any) -> None:
        if not call.of_channel:
            raw, body_format = encode_local(value)
            headers = call.message.answer_headers
            if headers:
                headers = check_headers(headers, self.services.limits.headers)
            call.message.id.resolve(Message(Kind.RESPONSE, call.message.subject, None, raw, body_format, headers or None))

    async def answer_later(self, call: Call, value: Any) -> None:
        self.answer(call, value)

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None:
        facts = {"text": text, "reason": reason, "detail": detail}
        message = Message(Kind.ERROR, call.message.subject, code=code, attributes=facts)
        call.message.id.reject(message, self.services.running.time(), own=True)

    def put_off(self, call: Call) -> bool:
        return False

    def proceed(self, call: Call) -> None:
        places = call.places
        assert places is not None
        if places.take(call):  # a bus's own requests have no other limit
            self.services.running.workers.submit(call)
        else:
            places.wait(call, first=True)

    def stopped(self, call: Call) -> None:
        del self.calls[id(call)]
        self.channels -= call.of_channel
        self.services.signal()
        if not (call.of_channel or call.message.id.done()):
            call.message.id.fail(Disconnected("the bus was closed", "this bus", True))

    def returned(self, call: Call) -> None:
        if call.places is not None:
            call.places.leave(call)

    def finished(self, call: Call) -> None:
        if (places := call.places) is not None and not places.drop(call):
            places.leave(call)
        self.stopped(call)


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
        if ttl is not None:
            deadline = now + ttl  # which the enclosing scope and the calling handler limit
        message = self._message(Kind.REQUEST, handler.subject, reply, body, headers, ttl)
        if isinstance(reply, ObservedReply):
            reply.departure = self._depart(message)
        if (refusal := self._refusal(subject)) is not None:
            reply.fail(refusal)
            return reply
        call = Call(services, self.loopback, None, handler, message, deadline, handler.places)
        call.asked_by_holder = holds()
        reply.on_cancel = lambda _: call.stop()
        reply.sent = True
        self.loopback.start(call)
        return reply

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        handler, services = self.handler, self.loopback.services
        if (refusal := self._refusal(handler.subject)) is not None:
            raise refusal
        reply = InternalReply(services.running.loop, handler.subject, Any, services.running.time(), math.inf)
        message = self._message(Kind.NOTIFY, handler.subject, reply, body, headers)
        if services.outgoing:
            self._depart(message).end()
        self.loopback.start(Call(services, self.loopback, None, handler, message, math.inf, handler.places))

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
        near.started = now
        near.deadline = math.inf if timeout is None else now + timeout
        ttl = near.ttl = runtime.ttl(now, near.deadline)
        deadline = math.inf if ttl is None else now + ttl
        message = self._message(Kind.OPEN, subject, near, body, headers, ttl)
        message.attributes.update(mode=mode, hops=hops)
        if services.outgoing:
            near.departure = self._depart(message)
        call = ChannelCall(services, loopback, None, handler, message, deadline, handler.places, channel=far)
        call.asked_by_holder = holds()
        loopback.start(call)
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

    def _message(
        self, kind: Kind, subject: str | int, sender: Any, body: Any, headers: dict[str, str] | None, ttl: float | None = None
    ) -> Message:
        raw, body_format = encode_local(body) if body is not None else (None, JSON)
        message = Message(kind, subject, sender, raw, body_format, headers or None, ttl, checked=raw)
        message.extras = None if self.facts is None else {**self.facts}
        return message

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
